"""Models by name, or a user's own by import path. A new model is one file and one entry in `MODELS`."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from feda2l.errors import FedA2LError
from feda2l.imports import import_object
from feda2l.models.cnn import cnn, small_cnn
from feda2l.models.mlp import mlp
from feda2l.models.resnet import resnet18, resnet18_gn, resnet34, resnet34_gn
from feda2l.names import look_up

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "small_cnn": small_cnn,
    "cnn": cnn,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet18_gn": resnet18_gn,
    "resnet34_gn": resnet34_gn,
}


def build(name: str, *, classes: int = 10, input: tuple[int, ...] = (3, 32, 32)) -> nn.Module:
    """The model of that name for `input` (channels, height, width) and `classes`.

    `"package.module:Class"` builds a user's own; it is given `classes` and `input` where it takes them.

    >>> sum(p.numel() for p in build("cnn", classes=100).parameters())
    924708
    """
    if ":" not in name:
        return look_up(name, MODELS, "model.name")(classes=classes, input=input)
    make = import_object(name, "model.name")
    offered: dict[str, Any] = {"classes": classes, "input": input}
    try:
        taken = inspect.signature(make).parameters
        everything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values())
        model = make(**{key: value for key, value in offered.items() if everything or key in taken})
    except Exception as error:  # a user's class may raise anything
        raise FedA2LError(f"model.name = {name!r} could not be built: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise FedA2LError(f"model.name = {name!r} gave a {type(model).__name__}, not a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise FedA2LError(f"model.name = {name!r} has no trainable parameter")
    return model
