"""The model that the nodes of a run start from, for tests that train it on their own."""

from typing import Any

from torch import nn

from feda2l.experiment.assemble import Shape, new_model
from feda2l.experiment.spec import Spec


def start_of(settings: dict[str, Any]) -> nn.Module:
    """The common start of a run on the digits."""
    spec = Spec.parse(settings)
    return new_model(spec.model.name or "mlp", spec.seed, Shape((1, 8, 8), 10))
