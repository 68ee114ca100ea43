"""Is a difference between two methods more than chance? Paired by seed, exact, and honest about few seeds."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["LEVEL", "PairedTest", "paired_test", "seeds_needed"]

LEVEL = 0.05
_ROUNDING = 1e-9  # of a value
_EXACT = 16  # seeds up to which every assignment of signs is looked at


class PairedTest(NamedTuple):
    """A two-sided paired permutation test of the mean difference (second minus first)."""

    seeds: int
    difference: float
    interval: tuple[float, float] | None  # of the mean difference, 95 %, Student's t; None for one seed
    p: float
    smallest: float  # the p that these seeds give when all of them agree

    @property
    def verdict(self) -> str:
        """What can be said, in words."""
        if self.smallest > LEVEL:
            more = f"{self.seeds} seed{'s' * (self.seeds != 1)} cannot show it"
            return f"{more} (p = {self.p:.2g}, {self.smallest:.2g} at the least; {seeds_needed()} seeds could)"
        return f"{'more than chance' if self.p <= LEVEL else 'within chance'} (p = {self.p:.2g}, {self.seeds} seeds)"


def seeds_needed(level: float = LEVEL) -> int:
    """
    >>> seeds_needed()
    6
    """
    return math.ceil(1 - math.log2(level))


def paired_test(first: Sequence[float], second: Sequence[float]) -> PairedTest:
    """How often random signs of the seeds' differences give a mean at least as far from 0.

    >>> paired_test([5, 6, 7], [1, 2, 3]).p
    0.25
    >>> paired_test([0.3], [0.1 + 0.2]).difference
    0.0
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    # what differs in its last digits alone was only summed in another order
    differences = np.where(np.isclose(a, b, rtol=_ROUNDING, atol=0.0), 0.0, b - a)
    count = len(differences)
    if count == 0:
        raise ValueError("a paired test needs at least one pair")
    if count <= _EXACT:
        signs = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    else:
        random = np.random.default_rng(1).choice((-1, 1), size=(1 << _EXACT, count))
        signs = np.vstack([np.ones((1, count), dtype=int), random])  # the one seen is one of them
    sums = np.abs(signs @ differences)
    seen = abs(differences.sum())
    p = float((sums >= seen - 1e-9 * max(1.0, seen)).mean())
    return PairedTest(count, float(differences.mean()), _interval(differences), p, 2.0 / 2.0**count)


def _interval(differences: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float] | None:
    from scipy.stats import t

    count = len(differences)
    if count < 2:
        return None
    half = float(t.ppf(0.975, count - 1)) * float(differences.std(ddof=1)) / math.sqrt(count)
    mean = float(differences.mean())
    return mean - half, mean + half
