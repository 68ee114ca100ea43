"""Build models by name or by import path. A new built-in model is a new file and an entry in `MODELS`."""

import inspect
from collections.abc import Callable

from torch import nn

from feda2l.errors import FedA2LError
from feda2l.imports import import_object
from feda2l.models.cnn import cnn, small_cnn
from feda2l.models.mlp import mlp
from feda2l.models.resnet import resnet18, resnet18_gn, resnet34, resnet34_gn
from feda2l.models.timer import Timer, timer_next_patch
from feda2l.names import look_up
from feda2l.plain_values import PlainDict

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
    """Build a model by name.

    Args:
        name: A key of `MODELS`, or `"package.module:Class"` for your own model. Your class gets `classes` and `input`
            if it has parameters of these names. If it has a parameter `horizon`, it is a forecaster: it gets `input`
            and `horizon` and no `classes`.
        classes: Number of classes of a classifier.
        input: (channels, height, width) of images, default (3, 32, 32); or (length, channels) of windows.
        horizon: Number of time steps that a forecaster predicts.

    Raises:
        FedA2LError: The name is unknown, or your class fails or does not return a trainable `torch.nn.Module`.

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
        raise FedA2LError(
            f"model.name = {name!r} returned a {type(model).__name__}, expected a torch.nn.Module", see="own-code"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise FedA2LError(f"model.name = {name!r} has no trainable parameter", see="own-code")
    return model


def _taken(make: Callable[..., object], classes: int, input: tuple[int, ...] | None, horizon: int | None) -> PlainDict:
    """Return the arguments that the model accepts. A forecaster has no classes and default lengths."""
    taken = inspect.signature(make).parameters
    if "horizon" in taken:
        lengths = {"input": input, "horizon": horizon}
        return {key: value for key, value in lengths.items() if value is not None and key in taken}
    everything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values())
    offered = {"classes": classes, "input": input or (3, 32, 32)}
    return {key: value for key, value in offered.items() if everything or key in taken}
