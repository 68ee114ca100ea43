"""A small perceptron for digits and other small inputs."""

import math

from torch import nn


def mlp(*, classes: int = 10, input: tuple[int, ...] = (1, 8, 8), hidden: int = 64) -> nn.Sequential:
    """input -> hidden -> hidden -> classes with ReLU: 3 layers, 8,970 parameters for digits."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input), hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )
