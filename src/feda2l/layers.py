"""Which parameters make one layer, and the parameter groups an optimiser needs for layer-wise rates."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from feda2l.errors import FedA2LError

Granularity = Literal["module", "tensor", "block", "model"]


@dataclass(frozen=True)
class Layer:
    """One layer: its name and its trainable parameters, by their full names, in `named_parameters` order."""

    name: str
    tensors: tuple[str, ...]

    def measured(self, which: Literal["all", "weight"]) -> tuple[int, ...]:
        """Positions of the tensors that its signals are taken over.

        `weight` means the one tensor of that name (the released code); a layer with none or several is
        measured over all of its tensors, as every layer is with `all` (the paper).
        """
        weights = tuple(i for i, name in enumerate(self.tensors) if name.rpartition(".")[2] == "weight")
        return weights if which == "weight" and len(weights) == 1 else tuple(range(len(self.tensors)))


def find_layers(model: nn.Module, granularity: Granularity = "module") -> list[Layer]:
    """The layers of a model, in `named_parameters` order; frozen parameters belong to none.

    A layer is one module that owns parameters and has no parts that own any; its bias shares its rate. A bare
    parameter of a larger module is a layer of its own. A tied tensor belongs to the first module that names it.
    What is named `lora_...` within a module (LoRA's A and B) makes one layer, named as the module.
    Other granularities are for ablations: every `tensor`, every `block` (the dotted name up to its first
    number, else the top-level module) or the whole `model` as one layer.
    """
    owners = {name for name, module in model.named_modules() if next(module.parameters(False), None) is not None}
    inner = {parent for name in owners for parent in _parents(name)}
    members: dict[str, list[str]] = {}
    for full, parameter in model.named_parameters():
        if parameter.requires_grad:
            bare = full.rpartition(".")[0] in inner
            members.setdefault(_clean(_layer_of(full, bare, granularity)), []).append(full)
    if not members:
        raise FedA2LError(f"{type(model).__name__} has no trainable parameter: there is no layer to set a rate for")
    return [Layer(name, tuple(_clean(full) for full in tensors)) for name, tensors in members.items()]


def layer_groups(model: nn.Module, *, granularity: Granularity = "module") -> list[dict[str, Any]]:
    """One optimiser parameter group a layer: `{"params": [...], "name": ..., "tensors": [...]}`.

    Hand the list to any torch optimiser in place of `model.parameters()`; `feda2l.FedA2L` then sets each
    group's `lr`. Groups added later without `tensors` are left alone.

    >>> [group["name"] for group in layer_groups(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))]
    ['0', '2']
    """
    parameters = {_clean(name): parameter for name, parameter in model.named_parameters()}
    return [
        {
            "params": [parameters[tensor] for tensor in layer.tensors],
            "name": layer.name,
            "tensors": list(layer.tensors),
        }
        for layer in find_layers(model, granularity)
    ]


def _layer_of(full: str, bare: bool, granularity: Granularity) -> str:
    """The layer of a parameter; a `bare` one belongs to a module whose parts own parameters too."""
    match granularity:
        case "tensor":
            return full
        case "model":
            return "model"
        case "module":
            return _module_of(full, bare)
    parts = _clean(full.rpartition(".")[0] or full).split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[: number + 1])


def _module_of(full: str, bare: bool) -> str:
    parts = full.split(".")
    for depth, part in enumerate(parts):
        if part.startswith("lora_"):
            # B starts at zero and only the product A B has an effect: separate signals would say little
            return ".".join(parts[:depth]) or "model"
    return full if bare else ".".join(parts[:-1]) or "model"


def _parents(name: str) -> Iterator[str]:
    """Every module that contains the one named, the root ("") included; none for the root itself."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _clean(name: str) -> str:
    """The name without the part that `torch.compile` puts into it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod") or "model"
