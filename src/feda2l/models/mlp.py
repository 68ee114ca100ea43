"""A small multilayer perceptron for digits and other small inputs."""

import math
from collections import OrderedDict

from torch import nn


def mlp(*, classes: int = 10, input: tuple[int, ...] = (1, 8, 8), hidden: int = 64) -> nn.Sequential:
    """input -> hidden -> hidden -> classes with ReLU: 3 layers, 8,970 parameters for digits."""
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            fc1=nn.Linear(math.prod(input), hidden),
            relu1=nn.ReLU(),
            fc2=nn.Linear(hidden, hidden),
            relu2=nn.ReLU(),
            fc3=nn.Linear(hidden, classes),
        )
    )
