"""HyperbolicLR and ExpHyperbolicLR (Kim: HyperbolicLR, 2024), and the form in the paper's released code."""

import math
from dataclasses import dataclass

from feda2l.errors import FedA2LError
from feda2l.rates.base import Schedule, Setting


@dataclass(frozen=True, kw_only=True)
class Hyperbolic(Schedule):
    """rate(x) = base + (base - low) * (h(x) - h(0)), h(x) = sqrt((N - x)/U * (2 - (N + x)/U)).

    N is the horizon and U the `upper_bound` (default 2 N); the end value depends on N/U. With `warmup_rounds` the rate
    first rises linearly from `low`. `low` must not be above the base rate.
    """

    summary = "a hyperbola whose early part does not depend on the horizon (HyperbolicLR)"
    has_end = True

    upper_bound: float | None = None
    low: float = 1e-6
    warmup_rounds: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.low < math.inf:
            raise FedA2LError(f"rates.low = {self.low}: must be above 0")
        if self.warmup_rounds < 0:
            raise FedA2LError(f"rates.warmup_rounds = {self.warmup_rounds}: must be 0 or more rounds")

    def factor(self, index: int, setting: Setting) -> float:
        base = _one_base(setting, self.low)
        if index < self.warmup_rounds:
            return (self.low + (base - self.low) * index / self.warmup_rounds) / base
        length = max(setting.horizon - self.warmup_rounds, 1)
        upper = 2 * length if self.upper_bound is None else self.upper_bound
        if upper < length:
            raise FedA2LError(f"rates.upper_bound = {upper}: must be at least the horizon, {length} rounds")
        x = min(index - self.warmup_rounds, length)

        def h(x: float) -> float:
            return math.sqrt((length - x) / upper * (2 - (length + x) / upper))

        return self.curve(h(x) - h(0), base)

    def curve(self, fall: float, base: float) -> float:
        return 1 + (1 - self.low / base) * fall


@dataclass(frozen=True, kw_only=True)
class ExpHyperbolic(Hyperbolic):
    """rate(x) = base * (base / low)^(h(x) - h(0))."""

    summary = "the hyperbola on a logarithmic scale (ExpHyperbolicLR)"

    def curve(self, fall: float, base: float) -> float:
        return float((base / self.low) ** fall)


@dataclass(frozen=True, kw_only=True)
class HyperbolicReference(Schedule):
    """rate(x) = low + (base - low) * sqrt(1 - x/N): the released code doubles the upper bound, which gives this."""

    summary = "the square-root curve that the released code calls Hyperbolic"
    has_end = True

    low: float = 1e-6

    def __post_init__(self) -> None:
        if not 0 <= self.low < math.inf:
            raise FedA2LError(f"rates.low = {self.low}: must be 0 or more")

    def factor(self, index: int, setting: Setting) -> float:
        share = max(1 - index / setting.horizon, 0.0)
        floor = self.low / _one_base(setting, self.low)
        return floor + (1 - floor) * math.sqrt(share)


def _one_base(setting: Setting, low: float) -> float:
    """Return the base rate: hyperbolic schedules are not proportional to it, so they need one number."""
    assert isinstance(setting.base, float | int)
    if low > setting.base:
        raise FedA2LError(
            f"rates.low = {low}: must be at most the base rate, {setting.base:g}; the schedule falls from base to low"
        )
    return setting.base
