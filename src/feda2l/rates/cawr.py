"""Cosine annealing with warm restarts (Loshchilov and Hutter: SGDR, ICLR 2017)."""

import math
from dataclasses import dataclass

from feda2l.errors import FedA2LError
from feda2l.rates.base import Schedule, Setting


@dataclass(frozen=True, kw_only=True)
class Cawr(Schedule):
    """rate(t) = base * (1 + cos(pi * c / T)) / 2, where t is c rounds into a cycle of T rounds.

    The first cycle has `period` rounds; each later one is `growth` times as long as the previous one.
    """

    summary = "half a cosine to zero, restarted every period rounds (CosineAnnealingWarmRestarts)"

    period: int = 50
    growth: int = 1

    def __post_init__(self) -> None:
        if self.period < 1:
            raise FedA2LError(f"rates.period = {self.period}: must be at least 1 round")
        if self.growth < 1:
            raise FedA2LError(f"rates.growth = {self.growth}: must be at least 1")

    def factor(self, index: int, setting: Setting) -> float:
        length = self.period
        if self.growth == 1:
            index %= length
        while index >= length:
            index -= length
            length *= self.growth
        return (1 + math.cos(math.pi * index / length)) / 2
