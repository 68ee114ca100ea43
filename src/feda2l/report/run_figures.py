"""Results of one run: rounds and time to its target, rounds to a grid of targets, and three kinds of best score."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars

from feda2l.records.curve_metrics import interpolated_rounds
from feda2l.records.round_timings import TRAINING
from feda2l.report.curves import DECIMALS, Curve, Floats
from feda2l.report.find_runs import FoundRun

ERROR_GRID = (0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5)  # times the target


@dataclass(frozen=True)
class Figures:
    """One run in numbers. A target that was not reached is None: it needs more than `run.rounds`."""

    run: FoundRun
    curve: Curve
    reached: int | None
    best: float | None  # on the raw curve
    best_smoothed: float | None
    last_10: float | None
    interpolated: float | None = None  # the fraction of a round at which the smoothed curve crossed the target
    seconds: float | None = None  # to the target, without evaluation; only if the run had the machine to itself
    seconds_with_evaluation: float | None = None
    grid: dict[float, int | None] = field(default_factory=dict)

    @property
    def evaluations(self) -> int:
        """In how many rounds it was evaluated."""
        return int(np.count_nonzero(~np.isnan(self.curve.score)))

    @property
    def search(self) -> float | None:
        """The cost of a search before round 1, in rounds; it is not part of the rounds to the target."""
        cost = self.run.summary.get("search", {}).get("rounds")
        return None if cost is None else float(cost)

    @property
    def simulated(self) -> float | None:
        """Simulated seconds to the target; None if it was not reached or no time is simulated."""
        if self.curve.seconds is None or self.reached is None:
            return None
        return float(self.curve.seconds[self.reached - 1])

    @property
    def simulated_in_all(self) -> float | None:
        """Simulated seconds of all rounds."""
        return None if self.curve.seconds is None else float(self.curve.seconds[-1])

    @property
    def simulated_a_round(self) -> float | None:
        return None if self.simulated_in_all is None else self.simulated_in_all / len(self.curve.score)

    @property
    def sent(self) -> float | None:
        total = float(np.nansum(self.curve.bytes_sent))
        return total or None


def figures_of(run: FoundRun, curve: Curve) -> Figures:
    """Compute the numbers of a run; rounds are counted from 1."""
    targets = [] if run.target is None else [run.target]
    grid = _grid(run)
    smoothed = smooth(curve.score, run.window)
    crossings = first_rounds(smoothed, [*targets, *grid], falls=run.falls)
    reached = crossings[0] if targets else None
    better = np.nanmin if run.falls else np.nanmax
    measured = curve.score[~np.isnan(curve.score)]
    wide = smooth(curve.score, int(run.keys.get("evaluation.smoothing", 10)))
    alone = _seconds(run, reached) if reached else (None, None)
    # the scores of a non-finite run are not comparable
    return Figures(
        run=run,
        curve=curve,
        reached=reached,
        best=None if run.non_finite else float(better(measured)),
        best_smoothed=None if run.non_finite or np.isnan(wide).all() else float(better(wide)),
        last_10=None if run.non_finite else float(measured[-10:].mean()),
        interpolated=interpolated_rounds(smoothed.tolist(), targets[0], falls=run.falls) if targets else None,
        seconds=alone[0],
        seconds_with_evaluation=alone[1],
        grid=dict(zip(grid, crossings[len(targets) :], strict=True)),
    )


def smooth(curve: Floats, window: int) -> Floats:
    """The trailing mean over `window` evaluations; NaN before there are so many.

    >>> smooth(np.array([1.0, np.nan, 2.0, 3.0]), 2)
    array([nan, nan, 1.5, 2.5])
    """
    smoothed = np.full(len(curve), np.nan)
    at = np.flatnonzero(~np.isnan(curve))
    if len(at) >= window:
        means = np.lib.stride_tricks.sliding_window_view(curve[at], window).mean(axis=1)
        smoothed[at[window - 1 :]] = means.round(DECIMALS)
    return smoothed


def first_rounds(smoothed: Floats, targets: Sequence[float], *, falls: bool = False) -> list[int | None]:
    """The first round at which the curve reaches each target; None if it never does.

    >>> first_rounds(np.array([np.nan, 0.2, 0.4]), [0.2, 0.5])
    [2, None]
    """
    found: list[int | None] = []
    for target in targets:
        there = smoothed <= target if falls else smoothed >= target  # False for NaN
        found.append(int(there.argmax()) + 1 if there.any() else None)
    return found


def _grid(run: FoundRun) -> list[float]:
    """Targets around the one that was set, so that no single target decides."""
    if run.falls:
        return [] if run.target is None else [float(f"{run.target * factor:.6g}") for factor in ERROR_GRID]
    return [number / 20 for number in range(1, 20)]


def _seconds(run: FoundRun, reached: int) -> tuple[float | None, float | None]:
    """Time to the target without and with evaluation; None if the run shared the machine with others."""
    if run.summary.get("pack") != 1:
        return None, None
    target = run.summary.get("target", {})
    try:
        lines = polars.read_ndjson(run.records.text("timings").encode())
        if len(lines) < reached or (lines["pack"] != 1).any():
            return None, None
        until = lines.head(reached)
        parts = [float(until[part].sum()) for part in TRAINING if part in until.columns]
        return sum(parts), sum(parts) + (float(until["evaluate"].sum()) if "evaluate" in until.columns else 0.0)
    except (OSError, polars.exceptions.PolarsError):
        # published records have no timings.jsonl; the seconds in the summary are to its own target round
        if target.get("round") == reached:
            return target.get("seconds"), target.get("seconds_with_evaluation")
        return None, None
