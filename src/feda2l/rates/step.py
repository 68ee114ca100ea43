"""StepLR: the rate is multiplied by a factor every `step_size` rounds."""

import math
from dataclasses import dataclass

from feda2l.errors import FedA2LError
from feda2l.rates.base import Schedule, Setting


@dataclass(frozen=True, kw_only=True)
class Step(Schedule):
    """rate(t) = base * gamma^(t // step_size). It is constant for the first `step_size` rounds."""

    summary = "times gamma every step_size rounds (StepLR)"

    step_size: int = 100
    gamma: float = 0.5

    def __post_init__(self) -> None:
        if self.step_size < 1:
            raise FedA2LError(f"rates.step_size = {self.step_size}: must be at least 1 round")
        if not 0 < self.gamma < math.inf:
            raise FedA2LError(f"rates.gamma = {self.gamma}: must be above 0")

    def factor(self, index: int, setting: Setting) -> float:
        return float(self.gamma ** (index // self.step_size))
