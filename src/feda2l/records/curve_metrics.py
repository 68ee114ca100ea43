"""Metrics of one run's curve: rounds to target and best value. Accuracies rise; errors (`falls`) fall."""

from collections.abc import Sequence
from math import fsum, isnan


def trailing_mean(values: Sequence[float], window: int) -> list[float | None]:
    """Return the mean of each value and the `window - 1` values before it; None for the first `window - 1`.

    >>> trailing_mean([1.0, 2.0, 3.0], 2)
    [None, 1.5, 2.5]
    """
    ends = range(1, len(values) + 1)
    return [None if end < window else fsum(values[end - window : end]) / window for end in ends]


def rounds_to_target(curve: Sequence[float | None], target: float, window: int, *, falls: bool = False) -> int | None:
    """Return the first round (from 1) whose trailing mean reaches the target; None if none does (censored).

    `curve` has one entry per round, None where the round was not evaluated. The window counts evaluations, so it spans
    more rounds if not every round is evaluated. The result is never smaller than the window.

    >>> rounds_to_target([0.1, 0.3, 0.5, 0.7], target=0.4, window=2)
    3
    >>> rounds_to_target([0.9, 0.5, 0.4], target=0.5, window=2, falls=True)
    3
    """
    measured = [(round, value) for round, value in enumerate(curve, start=1) if value is not None]
    smoothed = trailing_mean([value for _, value in measured], window)
    for (round, _), value in zip(measured, smoothed, strict=True):
        if value is not None and (value <= target if falls else value >= target):
            return round
    return None


def interpolated_rounds(smoothed: Sequence[float | None], target: float, *, falls: bool = False) -> float | None:
    """Return the fraction of a round at which the trailing mean s crosses the target; None if it never does (censored).

    If s_r is the first value at the target and s_q the value before it, the line between them crosses the target at

        r_interp = q + (r - q) (target - s_q) / (s_r - s_q),

    where q = r - 1 if every round is evaluated. If s_r is the first value of all, r_interp = r. So q < r_interp <= r.

    Whole rounds hide differences below one round; interpolated rounds show them.

    Args:
        smoothed: One entry per round; None or NaN where the trailing mean does not exist.
        target: The score to reach.
        falls: Whether a lower score is better.

    >>> interpolated_rounds([None, 0.2, 0.4, 0.8], target=0.5)
    3.25
    """
    before: tuple[int, float] | None = None
    for round, value in enumerate(smoothed, start=1):
        if value is None or isnan(value):
            continue
        if value <= target if falls else value >= target:
            if before is None:
                return float(round)
            start, score = before
            return start + (round - start) * (target - score) / (value - score)
        before = (round, value)
    return None


def best_value(curve: Sequence[float | None], window: int, *, falls: bool = False) -> dict[str, float | int | None]:
    """Return the best value of the raw curve (the paper's), of the smoothed curve, and the mean of the last ten."""
    measured = [(value, round) for round, value in enumerate(curve, start=1) if value is not None]
    if not measured:
        return {"best": None, "best_round": None, "best_smoothed": None, "last_10": None}
    values = [value for value, _ in measured]
    better = min if falls else max
    best = better(values)
    smoothed = [value for value in trailing_mean(values, window) if value is not None]
    return {
        "best": best,
        "best_round": next(round for value, round in measured if value == best),
        "best_smoothed": better(smoothed, default=None),
        "last_10": fsum(values[-10:]) / len(values[-10:]),
    }


def rounds_to_grid(accuracy: Sequence[float | None], window: int, step: float = 0.05) -> dict[str, int]:
    """Return the rounds to each target of a grid that was reached, so that no single target decides."""
    count = round(1 / step)
    grid = {f"{i / count:.2f}": rounds_to_target(accuracy, i / count, window) for i in range(1, count)}
    return {target: reached for target, reached in grid.items() if reached is not None}
