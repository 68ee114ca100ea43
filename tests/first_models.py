"""The initial model of a run, for tests that train it in a separate loop."""

from typing import Any

from torch import nn

from feda2l.runs.assemble import ModelShape, new_model
from feda2l.spec.spec import Spec

# a user's module with a convolution and a BatchNorm layer
NORMED = """
class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.fc = nn.Linear(108, 10)

    def forward(self, x):
        return self.fc(self.norm(self.conv(x)).relu().flatten(1))
"""


def initial_model(settings: dict[str, Any]) -> nn.Module:
    """The initial model that all nodes share in a run on the digits."""
    spec = Spec.parse(settings)
    return new_model(spec.model.name or "mlp", spec.seed, ModelShape((1, 8, 8), 10))
