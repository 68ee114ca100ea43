"""Read and check the optimizer groups that FedA2L sets the learning rates of."""

import weakref
from collections.abc import Mapping, MutableMapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from feda2l.errors import FedA2LError, warn_once
from feda2l.plain_values import PlainDict

Group = PlainDict
Shapes = dict[str, dict[str, list[int]]]

REFUSED: dict[type[Optimizer], str] = {
    torch.optim.LBFGS: "it accepts one parameter group only and chooses its own step lengths by a line search",
    torch.optim.Rprop: "it reads `lr` only for its first step and then adapts one step size per parameter",
}


class Home(NamedTuple):
    """The module that holds a parameter, and the parameter's name in it."""

    module: "weakref.ref[nn.Module]"
    name: str

    @classmethod
    def of(cls, module: nn.Module, name: str) -> "Home":
        return cls(weakref.ref(module), name)

    def holds(self, parameter: Tensor) -> bool:
        """Return whether the module still uses this parameter; True if the module no longer exists."""
        module = self.module()
        return module is None or module._parameters.get(self.name) is parameter


# where `layer_groups` found each parameter: not stored in the groups, which are saved with the optimizer's state
HOMES: MutableMapping[Tensor, Home] = WeakIdKeyDictionary()
# the FedA2L of each optimizer, while both exist
_OWNERS: "weakref.WeakKeyDictionary[Optimizer, weakref.ref[object]]" = weakref.WeakKeyDictionary()


def demand_supported(optimizer: Optimizer) -> None:
    """Raise for an optimizer whose steps do not follow the rates of its groups."""
    for kind, reason in REFUSED.items():
        if isinstance(optimizer, kind):
            raise FedA2LError(
                f"FedA2L cannot set the rates of {type(optimizer).__name__}: {reason}. Use SGD, Adam, AdamW, RMSprop "
                "or another optimizer that multiplies its step by each group's lr"
            )


def claim(optimizer: Optimizer, owner: object) -> None:
    """Check that nothing else sets this optimizer's rates, and note that `owner` does so from now on."""
    other = _OWNERS.get(optimizer)
    if other is not None and other() is not None:
        raise FedA2LError(
            "another FedA2L already sets this optimizer's rates, and the two would overwrite each other: use that one, "
            "delete it first, or build a new optimizer"
        )
    if hasattr(getattr(optimizer, "step", None), "_wrapped_by_lr_sched"):
        warn_once(
            f"another learning rate scheduler was built on this {type(optimizer).__name__}. FedA2L takes the present "
            "lr of each group as its base rate and overwrites later changes: do not step the other scheduler",
            stacklevel=3,
        )
    _OWNERS[optimizer] = weakref.ref(owner)


def layer_groups_of(optimizer: Optimizer) -> list[Group]:
    """Return the optimizer's groups that `layer_groups` made."""
    groups = [group for group in getattr(optimizer, "param_groups", ()) if "tensors" in group]
    if not groups:
        raise FedA2LError(
            f"{type(optimizer).__name__} has no layer groups: build the optimizer with feda2l.layer_groups(model) in "
            "place of model.parameters()"
        )
    names = [group["name"] for group in groups]
    for name, group in zip(names, groups, strict=True):
        if names.count(name) > 1:
            raise FedA2LError(f'{names.count(name)} layer groups are named "{name}": give each its own group["name"]')
        if len(group["tensors"]) != len(group["params"]):
            raise FedA2LError(
                f"layer {name}: {len(group['tensors'])} tensor names for {len(group['params'])} parameters"
            )
    return groups


def demand_still_used(groups: list[Group]) -> None:
    """Raise if the model has replaced a parameter: the optimizer would keep training the old one."""
    for group in groups:
        for name, parameter in zip(group["tensors"], group["params"], strict=True):
            home = HOMES.get(parameter)
            if home is not None and not home.holds(parameter):
                raise FedA2LError(
                    f"layer {group['name']}: the model no longer uses the parameter {name} that the optimizer trains; "
                    "it was replaced. Change parameters in place, or build the optimizer and FedA2L again"
                )


def shapes_of(groups: list[Group]) -> Shapes:
    """Return the shape of each tensor of each layer, by name."""
    return {
        group["name"]: {
            tensor: list(parameter.shape) for tensor, parameter in zip(group["tensors"], group["params"], strict=True)
        }
        for group in groups
    }


def demand_equal(given: Mapping[str, Mapping[str, list[int]]], expected: Shapes) -> None:
    """Raise unless both have the same layers, with tensors of the same names and shapes, in the same order."""
    if list(given) != list(expected):
        unlike = [name for name in (*expected, *given) if (name in expected) != (name in given)] or ["their order"]
        raise FedA2LError(f"these are not the layers FedA2L was built with: they differ in {', '.join(unlike[:5])}")
    for layer in expected:
        if dict(given[layer]) != dict(expected[layer]):
            raise FedA2LError(
                f"layer {layer}: FedA2L was built with the tensors {dict(expected[layer])}, "
                f"not with {dict(given[layer])}"
            )


def uncompiled(name: str) -> str:
    """Return a parameter's name without the part that `torch.compile` adds to it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod") or "model"


def without_wrapper(shapes: Mapping[str, Mapping[str, list[int]]]) -> Shapes:
    """Return the shapes under the names of the bare model: `DataParallel` adds `module.` to every name.

    >>> without_wrapper({"module.0": {"module.0.weight": [2, 3]}})
    {'0': {'0.weight': [2, 3]}}
    """
    bare = {uncompiled(layer): {uncompiled(name): shape for name, shape in shapes[layer].items()} for layer in shapes}
    if not all(layer == "module" or layer.startswith("module.") for layer in bare):
        return bare
    return {
        layer.removeprefix("module").removeprefix(".") or "model": {
            name.removeprefix("module."): shape for name, shape in tensors.items()
        }
        for layer, tensors in bare.items()
    }


def read_rates(groups: list[Group]) -> list[float]:
    """Return the present learning rate of each group."""
    return [float(group["lr"]) for group in groups]


def write_rates(groups: list[Group], rates: list[float]) -> list[float]:
    """Set the learning rate of each group; return the rates as the groups hold them, in their own precision."""
    seen: set[int] = set()
    for group, rate in zip(groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):
            # torch hands one tensor to all groups: each needs its own before it is filled
            if id(group["lr"]) in seen:
                group["lr"] = group["lr"].clone()
            seen.add(id(group["lr"]))
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
    return read_rates(groups)


def warn_of_changed_rates(groups: list[Group], written: list[float]) -> list[float]:
    """Warn if somebody else changed a rate since FedA2L wrote it; return the present rates."""
    present = read_rates(groups)
    for group, rate, ours in zip(groups, present, written, strict=True):
        if rate != ours:
            warn_once(
                f"layer {group['name']}: its lr was changed from {ours:g} to {rate:g} after FedA2L had set it, by hand "
                "or by another scheduler. FedA2L overwrites it in its next step(). To change the base rate, build the "
                "optimizer and FedA2L again",
                stacklevel=5,
            )
            break
    return present
