"""A constant rate: the baseline every rule is compared with."""

from dataclasses import dataclass

from feda2l.rates.base import Schedule, Setting


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """rate(t) = base."""

    summary = "the base rate throughout"
    role = "constant"

    def factor(self, index: int, setting: Setting) -> float:
        return 1.0
