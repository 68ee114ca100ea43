"""FedA2L's global decay as a plain schedule from round 1."""

import math
from dataclasses import dataclass

from feda2l.equations import decay_factor
from feda2l.errors import FedA2LError
from feda2l.rates.base import Schedule, Setting


@dataclass(frozen=True, kw_only=True)
class InverseSqrt(Schedule):
    """rate(t) = base * (1 + decay * t)^(-1/2), without warm-up (`decay_only` has FedA2L's warm-up)."""

    summary = "base * (1 + decay * t)^(-1/2)"

    decay: float = 0.3

    def __post_init__(self) -> None:
        if not 0 <= self.decay < math.inf:
            raise FedA2LError(f"rates.decay = {self.decay}: must be 0 or more")

    def factor(self, index: int, setting: Setting) -> float:
        return decay_factor(index, self.decay)
