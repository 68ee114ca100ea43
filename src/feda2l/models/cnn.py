"""Convolutional networks: the paper's 4-layer CNN, and a small CNN for digits."""

from collections import OrderedDict

from torch import nn

from feda2l.errors import FedA2LError


def cnn(*, classes: int = 10, input: tuple[int, ...] = (3, 32, 32)) -> nn.Sequential:
    """The paper's 4-layer CNN: two 5x5 convolutions with pooling, two linear layers.

    For 32x32 RGB images it has 878,538 parameters with 10 classes and 924,708 with 100 classes.
    """
    channels, height, width = input
    # each 5x5 convolution removes 4 pixels, each pooling halves the size
    height, width = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    if height < 1 or width < 1:
        raise FedA2LError(
            f"model.name = 'cnn' needs images of at least 16x16 pixels, got {input[1]}x{input[2]}; use small_cnn"
        )
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 32, 5),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(32, 64, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(64 * height * width, 512),
            relu3=nn.ReLU(),
            fc2=nn.Linear(512, classes),
        )
    )


def small_cnn(*, classes: int = 10, input: tuple[int, ...] = (1, 8, 8)) -> nn.Sequential:
    """Two padded 3x3 convolutions, one pooling, one linear layer: 9,930 parameters for digits."""
    channels, height, width = input
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 16, 3, padding=1),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(16, 32, 3, padding=1),
            relu2=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc=nn.Linear(32 * (height // 2) * (width // 2), classes),
        )
    )
