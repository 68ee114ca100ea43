"""The one-cycle policy (Smith and Topin: Super-convergence, 2019), as in torch's OneCycleLR."""

import math
from dataclasses import dataclass

from feda2l.errors import FedA2LError
from feda2l.rates.base import Schedule, Setting


@dataclass(frozen=True, kw_only=True)
class OneCycle(Schedule):
    """A cosine rise from base/25 to base over 30 % of the horizon, then a cosine fall to base/25e4.

    Momentum moves in the opposite direction, 0.95 -> 0.85 -> 0.95, unless `cycle_momentum` is false. By default it does
    so if the optimizer is SGD with momentum.
    """

    summary = "one rise and fall over the horizon, momentum cycled against it (OneCycleLR)"
    has_end = True

    rise: float = 0.3
    start_divisor: float = 25.0
    end_divisor: float = 1e4
    cycle_momentum: bool | None = None
    low_momentum: float = 0.85
    high_momentum: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.rise < 1:
            raise FedA2LError(f"rates.rise = {self.rise}: must be a share of the horizon between 0 and 1")
        for key in ("start_divisor", "end_divisor"):
            if not 0 < getattr(self, key) < math.inf:
                raise FedA2LError(f"rates.{key} = {getattr(self, key)}: must be above 0")
        if not 0 <= self.low_momentum <= self.high_momentum < 1:
            raise FedA2LError(
                f"rates.low_momentum = {self.low_momentum}, rates.high_momentum = {self.high_momentum}: "
                "must satisfy 0 <= low <= high < 1"
            )

    def factor(self, index: int, setting: Setting) -> float:
        start = 1 / self.start_divisor
        return self._cycle(index, setting, start, 1.0, start / self.end_divisor)

    def momentum(self, index: int, setting: Setting) -> float | None:
        if self.cycle_momentum and not setting.momentum:
            raise FedA2LError(
                "rates.cycle_momentum = true needs an optimizer with momentum, but training.momentum is 0 "
                "(or the optimizer is not sgd); omit rates.cycle_momentum or set it to false"
            )
        if self.cycle_momentum is False or not setting.momentum:
            return None
        return self._cycle(index, setting, self.high_momentum, self.low_momentum, self.high_momentum)

    def _cycle(self, index: int, setting: Setting, start: float, middle: float, end: float) -> float:
        last = setting.horizon - 1
        peak = self.rise * setting.horizon - 1
        index = min(index, last)  # after the horizon the rate stays at the end value
        if index <= peak:
            return _cosine(start, middle, index / peak if peak > 0 else 1.0)
        return _cosine(middle, end, (index - peak) / (last - peak))


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))
