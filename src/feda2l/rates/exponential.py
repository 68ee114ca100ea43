"""ExponentialLR: the rate is multiplied by a constant factor every round."""

import math
from dataclasses import dataclass

from feda2l.errors import FedA2LError
from feda2l.rates.base import Schedule, Setting


@dataclass(frozen=True, kw_only=True)
class Exponential(Schedule):
    """rate(t) = base * gamma^t; usual values in decentralized learning are 0.998 and 0.99."""

    summary = "times gamma every round (ExponentialLR)"

    gamma: float = 0.998

    def __post_init__(self) -> None:
        if not 0 < self.gamma < math.inf:
            raise FedA2LError(f"rates.gamma = {self.gamma}: must be above 0")

    def factor(self, index: int, setting: Setting) -> float:
        return float(self.gamma**index)
