"""Small user models that the runs of `promised_bytes.py` import by path; every process of a run can import them."""

from torch import Tensor, nn


class Normed(nn.Module):
    """A convolution and a linear layer with BatchNorm and dropout, for the digits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.drop = nn.Dropout(0.3)
        self.last = nn.BatchNorm1d(108)
        self.fc = nn.Linear(108, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.drop(self.norm(self.conv(x)).relu().flatten(1))
        result: Tensor = self.fc(self.last(hidden))
        return result


class PartlyFrozen(nn.Sequential):
    """A perceptron whose first layer is never trained."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        self[1].requires_grad_(False)


class Forecaster(nn.Module):
    """A linear forecast: [n, input, channels] -> [n, horizon, channels]."""

    def __init__(self, input: tuple[int, ...], horizon: int) -> None:
        super().__init__()
        self.head = nn.Linear(input[0], horizon)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(x.transpose(1, 2)).transpose(1, 2)
        return result
