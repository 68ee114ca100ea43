"""Example user models that every rank can import."""

import os

from torch import Tensor, nn


class Normed(nn.Module):
    """A convolution and its BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.fc = nn.Linear(108, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.conv(x)).relu().flatten(1))  # type: ignore[no-any-return]


class Forecaster(nn.Module):
    """[n, input, channels] -> [n, horizon, channels]."""

    def __init__(self, input: tuple[int, ...], horizon: int) -> None:
        super().__init__()
        self.head = nn.Linear(input[0], horizon)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.transpose(1, 2)).transpose(1, 2)  # type: ignore[no-any-return]


class Failing(nn.Module):
    """A model that raises an error during training on every rank except the first."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and os.environ.get("RANK") != "0":
            raise ValueError("this model cannot")
        return self.fc(x.flatten(1))  # type: ignore[no-any-return]
