"""How many rows of a population step together in node-batched kernels."""

from collections.abc import Sequence
from statistics import fmean

LEAST = 90_000_000  # parameters of a group that keep a card busy: nine ResNet-18, fourteen Timers
MOST = 225_000_000  # larger groups are no faster, and rows come in any number
WASTE = 1.15  # a group may cost this much more than its rows hold
STEP = 0.9  # what a step of a group costs beside its rows, in rows: ten ResNets against twenty


def group_size(runs: Sequence[Sequence[int]], width: int) -> int:
    """How many rows a group has. `runs` has the number of steps of each row, `width` parameters each.

    A group takes as many steps as its longest row, rows come longest first, and a place without a row costs as much as
    any other. Runs that train alike train once, so that anything from half of the runs to all of them may be there: of
    the sizes that keep a card busy the one that costs least on average over these. Where that is too much, the
    largest size that does not waste much when all are there.

    >>> group_size([[184] * 8] * 16, 6_515_200)  # 16 runs of Timer on exchange rates
    16
    """
    largest = min(sum(map(len, runs)), max(MOST // width, 1))
    busy = range(largest, -(-LEAST // width) - 1, -1)
    lined = [_longest_first(runs[:live]) for live in range((len(runs) + 1) // 2, len(runs) + 1)]
    waste = {size: fmean(_waste(lengths, size) for lengths in lined) for size in busy}
    best = min(busy, key=lambda size: waste[size] * (1 + STEP / size), default=None)
    if best is not None and waste[best] <= WASTE:
        return best
    return next(size for size in range(largest, 0, -1) if _waste(lined[-1], size) <= WASTE or size <= 5)


def _longest_first(runs: Sequence[Sequence[int]]) -> list[int]:
    return sorted((length for run in runs for length in run), reverse=True)


def _waste(lengths: Sequence[int], size: int) -> float:
    """What the groups of these rows, which come longest first, cost beside what the rows hold."""
    return size * sum(lengths[::size]) / max(sum(lengths), 1)
