"""Choose the number of rows that train together in node-batched kernels."""

from collections.abc import Sequence
from statistics import fmean

LEAST = 90_000_000  # parameters per group that keep a GPU busy: nine ResNet-18 or fourteen Timers
MOST = 225_000_000  # larger groups are not faster
WASTE = 1.15  # maximum cost of a group relative to the work of its rows
STEP = 0.9  # fixed cost of a group's step in units of rows, measured with ten and twenty ResNets


def group_size(runs: Sequence[Sequence[int]], width: int) -> int:
    """Return the number of rows per group.

    A group takes as many steps as its longest row, rows are sorted longest first, and an empty place costs as much as
    a row. Identical runs train only once, so between half and all of the runs may be active. Of the sizes that keep a
    GPU busy, the result has the lowest mean cost over these cases. If that wastes too much, it is the largest size
    with little waste when all runs are active.

    Args:
        runs: The number of steps of each row, for each run.
        width: Parameters per row.

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
    """Return the cost of the groups relative to the work of their rows, which are sorted longest first."""
    return size * sum(lengths[::size]) / max(sum(lengths), 1)
