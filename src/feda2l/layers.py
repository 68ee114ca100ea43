"""Find the layers of a model, and build the optimizer's parameter groups for layer-wise rates."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from torch import nn
from torch.nn.parameter import is_lazy

from feda2l.errors import FedA2LError
from feda2l.names import nearest
from feda2l.optimizer_groups import HOMES, Home, uncompiled
from feda2l.plain_values import PlainDict

Granularity = Literal["module", "tensor", "block", "model"]
WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


@dataclass(frozen=True)
class Layer:
    """One layer: its name and the full names of its trainable parameters, in `named_parameters` order."""

    name: str
    tensors: tuple[str, ...]

    def measured(self, which: Literal["all", "weight"]) -> tuple[int, ...]:
        """Return the positions of the tensors that the signals are measured on.

        `all` measures every tensor (the paper). `weight` measures only the tensor named `weight` (the released code);
        a layer with no such tensor, or with several weight tensors, is measured on all of its tensors.
        """
        last = [name.rpartition(".")[2] for name in self.tensors]
        weights = tuple(i for i, name in enumerate(last) if name.endswith("weight"))
        one = len(weights) == 1 and last[weights[0]] == "weight"
        return weights if which == "weight" and one else tuple(range(len(self.tensors)))


def find_layers(model: nn.Module, granularity: Granularity = "module", *, split_recurrent: bool = False) -> list[Layer]:
    """Return the layers of a model, in `named_parameters` order. Frozen and empty parameters belong to no layer.

    A layer is one module that owns parameters and has no submodules that own any; its bias shares its rate. A
    parameter owned directly by a larger module is a layer of its own. Further rules:

    - `nn.MultiheadAttention` is one layer: its projections and its output projection together.
    - A parametrized module (`weight_norm`, `spectral_norm`) is one layer.
    - The `lora_...` parameters of a module (LoRA's A and B) form one layer, named after the module.
    - A tied tensor belongs to the first module that names it.
    - An LSTM, GRU or RNN is one layer, or one layer per stacked level with `split_recurrent`.

    The other granularities are for ablations: every `tensor`, every `block` (the dotted name up to its first number,
    else the top-level module), or the whole `model` as one layer.
    """
    if granularity not in get_args(Granularity):
        raise FedA2LError(
            f"granularity = {granularity!r} is unknown; {nearest(str(granularity), get_args(Granularity))}"
        )
    if not isinstance(model, nn.Module):
        raise FedA2LError(f"a {type(model).__name__} is not a model: pass a torch.nn.Module")
    model = _unwrapped(model)
    owners = _Owners(model, split_recurrent)
    members: dict[str, list[str]] = {}
    for full, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise FedA2LError(f"parameter {full} has no shape yet: run one forward pass before finding the layers")
        if parameter.requires_grad and parameter.numel():
            layer = owners.module_layer(full) if granularity == "module" else _ablation_layer(full, granularity)
            members.setdefault(uncompiled(layer), []).append(uncompiled(full))
    if not members:
        raise FedA2LError(f"{type(model).__name__} has no trainable parameter, so it has no layer to set a rate for")
    return [Layer(name, tuple(tensors)) for name, tensors in members.items()]


def layer_groups(
    model: nn.Module, *, granularity: Granularity = "module", split_recurrent: bool = False
) -> list[PlainDict]:
    """Return one optimizer parameter group per layer: `{"params": [...], "name": ..., "tensors": [...]}`.

    Pass the list to a torch optimizer in place of `model.parameters()`; `feda2l.FedA2L` then sets each group's `lr`.
    FedA2L does not touch groups without `tensors`, which you add yourself. A model wrapped in `DataParallel`,
    `DistributedDataParallel` or `torch.compile` gets the same names as the bare model.

    Args:
        model: the model, after it is on its final device and before anything replaces its parameters.
        granularity: what one layer is; keep `module` unless you run an ablation. See `feda2l.layers.find_layers`.
        split_recurrent: one layer per stacked level of an LSTM, GRU or RNN (both directions together) instead of one
            for the whole module. Choose it when the levels of a deep recurrent network should learn at different rates.

    >>> [group["name"] for group in layer_groups(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))]
    ['0', '2']
    >>> [group["name"] for group in layer_groups(nn.LSTM(4, 3, num_layers=2), split_recurrent=True)]
    ['l0', 'l1']
    """
    layers = find_layers(model, granularity, split_recurrent=split_recurrent)
    model = _unwrapped(model)
    parameters = {uncompiled(name): parameter for name, parameter in model.named_parameters()}
    _remember_homes(model)
    return [
        {
            "params": [parameters[tensor] for tensor in layer.tensors],
            "name": layer.name,
            "tensors": list(layer.tensors),
        }
        for layer in layers
    ]


class _Owners:
    """The modules of a model that own parameters, as layers see them."""

    def __init__(self, model: nn.Module, split_recurrent: bool) -> None:
        named = dict(model.named_modules())
        self.attention = [name for name, module in named.items() if isinstance(module, nn.MultiheadAttention)]
        recurrent = [name for name, module in named.items() if isinstance(module, nn.RNNBase)]
        self.split = set(recurrent) if split_recurrent else set()
        owners = {_owner(full) for full, _ in model.named_parameters()}
        self.larger = {parent for name in owners for parent in _parents(name)}

    def module_layer(self, full: str) -> str:
        """Return the layer of a parameter for the granularity `module`."""
        for name in self.attention:
            if not name or full.startswith(f"{name}."):
                return name or "model"
        parts = full.split(".")
        for depth, part in enumerate(parts):
            if part.startswith("lora_"):
                # B starts at zero and only the product A B has an effect: separate signals would say little
                return ".".join(parts[:depth]) or "model"
        owner = _owner(full)
        if owner in self.split:
            level = parts[-1].removesuffix("_reverse").rpartition("_")[2]  # weight_ih_l0_reverse: l0
            return f"{owner}.{level}" if owner else level
        return full if owner in self.larger else owner or "model"


def _ablation_layer(full: str, granularity: Granularity) -> str:
    """Return the layer of a parameter for the granularities `tensor`, `model` and `block`."""
    if granularity == "tensor":
        return full
    if granularity == "model":
        return "model"
    parts = uncompiled(full.rpartition(".")[0] or full).split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[: number + 1])


def _owner(full: str) -> str:
    """Return the module that a parameter belongs to; a parametrization belongs to the module that it changes."""
    parts = full.split(".")
    end = parts.index("parametrizations") if "parametrizations" in parts[:-1] else len(parts) - 1
    return ".".join(parts[:end])


def _parents(name: str) -> Iterator[str]:
    """Yield every module that contains the named one, ending with the root (""); nothing for the root itself."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside `DataParallel`, `DistributedDataParallel` and `torch.compile`, in any order."""
    while True:
        inner = model.module if isinstance(model, WRAPPERS) else getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _remember_homes(model: nn.Module) -> None:
    """Note which module holds each parameter under which name, so that FedA2L notices a replaced parameter."""
    for module in reversed(list(model.modules())):  # the first module that names a tied tensor is written last
        for name, parameter in module.named_parameters(recurse=False):
            HOMES[parameter] = Home.of(module, name)
