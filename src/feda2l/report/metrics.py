"""Statistics over the seeds of one method."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class RoundsToTarget(NamedTuple):
    """Rounds to a target over seeds. A seed that does not reach it is censored."""

    reached: int
    runs: int
    median: float | None  # censored runs count as later than every round; None if the median is censored
    mean: float | None  # only if every run reached it
    std: float | None  # of the sample

    @property
    def population_std(self) -> float | None:
        return None if self.std is None else self.std * ((self.runs - 1) / self.runs) ** 0.5


def rounds_over_seeds(rounds: Sequence[float | None]) -> RoundsToTarget:
    """Summarize the rounds, or seconds, of all seeds.

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
