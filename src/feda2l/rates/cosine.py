"""Cosine annealing to zero over the horizon, with an optional linear warm-up."""

import math
from dataclasses import dataclass

from feda2l.errors import FedA2LError
from feda2l.rates.base import Schedule, Setting


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """rate(t) = base * (1 + cos(pi * s)) / 2, where s is the completed share of the horizon (CosineAnnealingLR).

    During the first w = `warmup_rounds` rounds the rate rises linearly, base * (t + 1) / (w + 1); s counts after them.
    """

    summary = "half a cosine to zero at the horizon, optional linear warm-up (CosineAnnealingLR)"
    has_end = True

    warmup_rounds: int = 0

    def __post_init__(self) -> None:
        if self.warmup_rounds < 0:
            raise FedA2LError(f"rates.warmup_rounds = {self.warmup_rounds}: must be 0 or more rounds")

    def factor(self, index: int, setting: Setting) -> float:
        if index < self.warmup_rounds:
            return (index + 1) / (self.warmup_rounds + 1)
        length = max(setting.horizon - self.warmup_rounds, 1)
        share = min((index - self.warmup_rounds) / length, 1.0)
        return (1 + math.cos(math.pi * share)) / 2
