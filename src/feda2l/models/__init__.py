"""Models by name or by import path; a new one is a file and an entry in `MODELS`. Nothing is trained here."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from feda2l.errors import FedA2LError
from feda2l.imports import import_object
from feda2l.models.cnn import cnn, small_cnn
from feda2l.models.mlp import mlp
from feda2l.models.resnet import resnet18, resnet18_gn, resnet34, resnet34_gn
from feda2l.models.timer import Timer, timer_next_patch
from feda2l.names import look_up

__all__ = ["MODELS", "build"]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "small_cnn": small_cnn,
    "cnn": cnn,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet18_gn": resnet18_gn,
    "resnet34_gn": resnet34_gn,
    "timer": Timer,
    "timer_next_patch": timer_next_patch,
}


def build(
    name: str, *, classes: int = 10, input: tuple[int, ...] | None = None, horizon: int | None = None
) -> nn.Module:
    """The model of that name for `input` and `classes`, or for `input` and `horizon` where it forecasts series.

    `input` is (channels, height, width) of pictures, (3, 32, 32) unless given, or (length, channels) of windows.
    `"package.module:Class"` builds a user's own; it is given `classes` and `input` where it takes them, and is taken
    to forecast if it takes `horizon`.

    >>> sum(p.numel() for p in build("cnn", classes=100).parameters())
    924708
    >>> sum(p.numel() for p in build("timer").parameters())
    6514784
    """
    if ":" not in name:
        make = look_up(name, MODELS, "model.name")
        return make(**_taken(make, classes, input, horizon))
    make = import_object(name, "model.name")
    try:
        model = make(**_taken(make, classes, input, horizon))
    except Exception as error:  # a user's class may raise anything
        raise FedA2LError(
            f"model.name = {name!r} could not be built: {type(error).__name__}: {error}", see="own-code"
        ) from error
    if not isinstance(model, nn.Module):
        raise FedA2LError(f"model.name = {name!r} gave a {type(model).__name__}, not a torch.nn.Module", see="own-code")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise FedA2LError(f"model.name = {name!r} has no trainable parameter", see="own-code")
    return model


def _taken(
    make: Callable[..., Any], classes: int, input: tuple[int, ...] | None, horizon: int | None
) -> dict[str, Any]:
    """What of these the model takes. One that forecasts has no classes, and lengths of its own where none are given."""
    taken = inspect.signature(make).parameters
    if "horizon" in taken:
        lengths = {"input": input, "horizon": horizon}
        return {key: value for key, value in lengths.items() if value is not None and key in taken}
    everything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values())
    offered = {"classes": classes, "input": input or (3, 32, 32)}
    return {key: value for key, value in offered.items() if everything or key in taken}
