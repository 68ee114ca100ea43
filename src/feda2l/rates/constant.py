"""A constant rate: the baseline of every comparison."""

from dataclasses import dataclass

from feda2l.rates.base import Schedule, Setting


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """rate(t) = base."""

    summary = "the base rate in every round"
    role = "constant"

    def factor(self, index: int, setting: Setting) -> float:
        return 1.0
