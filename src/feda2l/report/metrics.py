"""Figures over several runs of one method: what its seeds came to together."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class RoundsToTarget(NamedTuple):
    """Rounds to a target over seeds. Never reached is censored, not a number."""

    reached: int
    runs: int
    median: float | None  # censored runs count as later than every round; None if the median is among them
    mean: float | None  # only where every run reached it
    std: float | None  # of the sample

    @property
    def population_std(self) -> float | None:
        return None if self.std is None else self.std * ((self.runs - 1) / self.runs) ** 0.5


def rounds_over_seeds(rounds: Sequence[float | None]) -> RoundsToTarget:
    """Rounds, or seconds, of every seed.

    >>> rounds_over_seeds([12, None, 14])
    RoundsToTarget(reached=2, runs=3, median=14, mean=None, std=None)
    """
    reached = [value for value in rounds if value is not None]
    ranked = sorted(float("inf") if value is None else value for value in rounds)
    median = statistics.median(ranked)
    complete = len(reached) == len(rounds)
    return RoundsToTarget(
        reached=len(reached),
        runs=len(rounds),
        median=None if median == float("inf") else median,
        mean=statistics.mean(reached) if complete else None,
        std=statistics.stdev(reached) if complete and len(reached) > 1 else None,
    )


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; the latter is 0 for one value."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0
