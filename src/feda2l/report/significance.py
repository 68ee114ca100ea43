"""Is a difference between two methods significant, or small enough not to matter? All tests of seeds are paired.

- `paired_test`: is the mean difference zero? Exact for up to 16 seeds.
- `censored_test`: which side is earlier, where some runs did not reach the target? Exact for up to 16 seeds.
- `log_rank_p`: the same question without pairs.
- `equivalence_test`: is the difference smaller than a margin that the user states?
- `holm`: corrects p values for the number of tests.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LEVEL",
    "CensoredTest",
    "EquivalenceTest",
    "PairedTest",
    "censored_test",
    "equivalence_test",
    "holm",
    "log_rank_p",
    "paired_test",
    "seeds_needed",
    "times_test",
]

LEVEL = 0.05
_ROUNDING = 1e-9  # relative difference of two equal values that were summed in another order
_ASSIGNMENTS = 2**16  # of signs to the seeds: all of them up to 16 seeds, else a random sample
_Floats = NDArray[np.float64]


class PairedTest(NamedTuple):
    """A two-sided paired permutation test of the mean difference (second minus first)."""

    seeds: int
    difference: float
    interval: tuple[float, float] | None  # 95 % interval of the mean difference, Student's t; None for one seed
    p: float
    smallest: float  # the p-value if all seeds agree

    @property
    def direction(self) -> float:
        """Negative if the second side has the lower values, zero if both are equal."""
        return self.difference

    @property
    def verdict(self) -> str:
        """The result as a phrase."""
        return _verdict(self.seeds, self.p, self.smallest)


class CensoredTest(NamedTuple):
    """A two-sided paired permutation test of times, some of which are only known to be later than all the others."""

    seeds: int
    reached: tuple[int, int]  # the runs of each side that reached the target
    medians: tuple[float | None, float | None]  # None: the median run did not reach the target
    direction: float  # mean difference of the ranks, second minus first; negative if the second side is earlier
    p: float
    smallest: float  # the p-value if all seeds agree

    @property
    def verdict(self) -> str:
        """The result as a phrase."""
        return _verdict(self.seeds, self.p, self.smallest)


class EquivalenceTest(NamedTuple):
    """Two one-sided paired t tests (TOST) of the mean difference (second minus first) against a margin."""

    seeds: int
    margin: float
    difference: float
    interval: tuple[float, float] | None  # 90 % interval of the mean difference; None where no t test is possible
    p: float | None  # the larger p of the two tests; None where no t test is possible

    @property
    def equivalent(self) -> bool:
        """Whether the difference is shown to lie within the margin on both sides."""
        return self.p is not None and self.p <= LEVEL

    @property
    def verdict(self) -> str:
        """The result as a phrase."""
        if self.p is None or self.interval is None:
            why = "one seed has no spread" if self.seeds == 1 else "all seeds differ by the same amount"
            return f"equivalence cannot be tested: {why}"
        low, high = self.interval
        found = "equivalent" if self.equivalent else "not shown to be equivalent"
        numbers = f"TOST p = {self.p:.2g}, 90 % interval {low:+.3g} to {high:+.3g}, {self.seeds} seeds"
        return f"{found} within {self.margin:g} ({numbers})"


def seeds_needed(level: float = LEVEL) -> int:
    """Return the number of seeds from which a paired test can be significant.

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
    differences = _differences(first, second)
    count, mean = len(differences), float(differences.mean())
    interval = None if count == 1 else _interval(differences, 0.95)
    return PairedTest(count, mean, interval, _sign_flip_p(differences), _smallest(count))


def censored_test(first: Sequence[float | None], second: Sequence[float | None]) -> CensoredTest:
    """Test which side is earlier, where None means that a run did not reach the target.

    All times of both sides are ranked together. Equal times share their mean rank, and None has the last rank: later
    than all that arrived, by an unknown amount. The test flips the signs of the seeds' rank differences d_i, as
    `paired_test` does. No time has to be invented for a run that did not arrive.

    >>> censored_test([None, 30, None], [20, 22, 25]).p
    0.25
    """
    from scipy.stats import rankdata

    if len(first) != len(second):
        raise ValueError("a paired test needs as many values on both sides")
    times = np.array([math.inf if time is None else time for time in (*first, *second)], dtype=float)
    # equal times that were summed in another order share a rank
    ranks = rankdata([float(f"{time:.9g}") for time in times])
    differences = _differences(ranks[: len(first)].tolist(), ranks[len(first) :].tolist())
    return CensoredTest(
        seeds=len(differences),
        reached=(_arrived(first), _arrived(second)),
        medians=(_median(first), _median(second)),
        direction=float(differences.mean()),
        p=_sign_flip_p(differences),
        smallest=_smallest(len(differences)),
    )


def times_test(first: Sequence[float | None], second: Sequence[float | None]) -> PairedTest | CensoredTest:
    """Compare mean times if all runs have one, otherwise ranks: no average contains a run that did not arrive."""
    known = [[time for time in times if time is not None] for times in (first, second)]
    if len(known[0]) == len(first) and len(known[1]) == len(second):
        return paired_test(*known)
    return censored_test(first, second)


def log_rank_p(
    first: Sequence[float | None],
    second: Sequence[float | None],
    first_ends: Sequence[float],
    second_ends: Sequence[float],
) -> float:
    """Return the two-sided p of the log-rank test (`scipy.stats.logrank`) of two unpaired groups of runs.

    A run that did not reach the target (None) is at risk until its end. Unlike `censored_test`, the log-rank test uses
    where a run stopped. It does not use the pairs, and its p is approximate for few runs.

    >>> round(log_rank_p([1, 2, None], [4, 5, 6], [3, 3, 3], [6, 6, 6]), 3)
    0.116
    """
    from scipy.stats import CensoredData, logrank

    if _arrived(first) + _arrived(second) == 0:
        return 1.0
    sides = []
    for times, ends in ((first, first_ends), (second, second_ends)):
        known = [end if time is None else time for time, end in zip(times, ends, strict=True)]
        sides.append(CensoredData.right_censored(known, [time is None for time in times]))
    p = float(logrank(*sides).pvalue)
    return 1.0 if math.isnan(p) else p  # the test is undefined if no time distinguishes the sides


def equivalence_test(first: Sequence[float], second: Sequence[float], margin: float) -> EquivalenceTest:
    """Test whether the mean difference lies within a margin on both sides: two one-sided paired t tests (TOST).

        t_low = (mean + margin) / se,  t_high = (mean - margin) / se,  p = max(P(T > t_low), P(T < t_high)).

    A large p of `paired_test` does not show that two methods are equal; a small p of this test does, up to the margin.

    Args:
        first: One value per seed.
        second: The value of the same seed on the other side.
        margin: The largest difference that does not matter to you. Choose it before you look at the results.

    >>> equivalence_test([1.0, 2.0, 3.0, 4.0], [1.1, 1.9, 3.1, 3.9], margin=0.5).equivalent
    True
    """
    from scipy.stats import ttest_1samp

    if not (math.isfinite(margin) and margin > 0):
        raise ValueError(f"the margin must be positive and finite, not {margin}")
    differences = _differences(first, second)
    count, mean = len(differences), float(differences.mean())
    if count == 1 or float(differences.std()) <= _ROUNDING * max(1.0, abs(mean)):
        return EquivalenceTest(count, margin, mean, None, None)
    low = ttest_1samp(differences, -margin, alternative="greater").pvalue
    high = ttest_1samp(differences, margin, alternative="less").pvalue
    return EquivalenceTest(count, margin, mean, _interval(differences, 0.90), float(max(low, high)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p values corrected for their number by Holm's method, in the order given.

    With p_(1) <= ... <= p_(m): corrected p_(i) = max over j <= i of min(1, (m - j + 1) p_(j)).

    >>> holm([0.03, 0.01])
    [0.03, 0.02]
    """
    corrected, highest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = highest
    return corrected


def _verdict(seeds: int, p: float, smallest: float) -> str:
    if smallest > LEVEL:
        more = f"{seeds} seed{'s' * (seeds != 1)} cannot show it"
        return f"{more} (p = {p:.2g}, {smallest:.2g} at the least; {seeds_needed()} seeds could)"
    return f"{'more than chance' if p <= LEVEL else 'within chance'} (p = {p:.2g}, {seeds} seeds)"


def _smallest(seeds: int) -> float:
    return 2.0 / 2.0**seeds


def _differences(first: Sequence[float], second: Sequence[float]) -> _Floats:
    """Second minus first per seed; values that are equal up to rounding differ by 0."""
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if a.shape != b.shape or not a.size:
        raise ValueError("a paired test needs at least one pair")
    return np.where(np.isclose(a, b, rtol=_ROUNDING, atol=0.0), 0.0, b - a)


def _interval(differences: _Floats, level: float) -> tuple[float, float]:
    """The interval of the mean, by Student's t."""
    from scipy.stats import t

    count, mean = len(differences), float(differences.mean())
    half = float(t.ppf((1 + level) / 2, count - 1)) * float(differences.std(ddof=1)) / math.sqrt(count)
    return mean - half, mean + half


def _sign_flip_p(differences: _Floats) -> float:
    from scipy.stats import permutation_test

    if len(differences) == 1:
        return 1.0
    observed = abs(differences.sum())
    least = observed - 1e-9 * max(1.0, observed)  # a sum that is equal up to rounding counts as equal

    def distance(signed: _Floats, axis: int) -> _Floats:
        sums: _Floats = np.abs(signed.sum(axis=axis))
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
    return float(test.pvalue)


def _arrived(times: Sequence[float | None]) -> int:
    return sum(time is not None for time in times)


def _median(times: Sequence[float | None]) -> float | None:
    value = median(math.inf if time is None else time for time in times)
    return None if math.isinf(value) else value
