"""Is a difference between two methods significant? Tests are paired by seed and exact for up to 16 seeds."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEVEL", "PairedTest", "paired_test", "seeds_needed"]

LEVEL = 0.05
_ROUNDING = 1e-9  # relative difference of two equal values that were summed in another order
_ASSIGNMENTS = 2**16  # of signs to the seeds: all of them up to 16 seeds, else a random sample


class PairedTest(NamedTuple):
    """A two-sided paired permutation test of the mean difference (second minus first)."""

    seeds: int
    difference: float
    interval: tuple[float, float] | None  # 95 % interval of the mean difference, Student's t; None for one seed
    p: float
    smallest: float  # the p-value if all seeds agree

    @property
    def verdict(self) -> str:
        """The result as a phrase."""
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
    """Test whether the mean difference is 0, by random signs of the seeds' differences d:

    p = P(|sum of s_i d_i| >= |sum of d_i|) with s_i = -1 or 1, each with probability 1/2.

    >>> paired_test([5, 6, 7], [1, 2, 3]).p
    0.25
    >>> paired_test([0.3], [0.1 + 0.2]).difference
    0.0
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    differences = np.where(np.isclose(a, b, rtol=_ROUNDING, atol=0.0), 0.0, b - a)
    count = len(differences)
    if count == 0:
        raise ValueError("a paired test needs at least one pair")
    mean, smallest = float(differences.mean()), 2.0 / 2.0**count
    if count == 1:
        return PairedTest(1, mean, None, 1.0, smallest)
    from scipy.stats import permutation_test, t

    observed = abs(differences.sum())
    least = observed - 1e-9 * max(1.0, observed)  # a sum that is equal up to rounding counts as equal

    def distance(signed: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
        sums: NDArray[np.float64] = np.abs(signed.sum(axis=axis))
        return np.maximum(sums, np.where(sums >= least, observed, 0.0))

    test = permutation_test(
        (differences,),
        distance,
        permutation_type="samples",
        alternative="greater",
        n_resamples=_ASSIGNMENTS,
        vectorized=True,
        rng=1,
    )
    half = float(t.ppf(0.975, count - 1)) * float(differences.std(ddof=1)) / math.sqrt(count)
    return PairedTest(count, mean, (mean - half, mean + half), float(test.pvalue), smallest)
