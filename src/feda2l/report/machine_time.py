"""How long a run took if it had the machine to itself."""

import numpy as np
import polars

from feda2l.records.round_timings import PARTS, TRAINING
from feda2l.report.curves import Floats
from feda2l.report.find_runs import FoundRun
from feda2l.report.run_figures import Figures


def own_seconds(figures: Figures) -> dict[str, Floats] | None:
    """Seconds of each round by part; None for a run that shared the machine or kept no times."""
    if figures.run.summary.get("pack") != 1:
        return None
    try:
        lines = polars.read_ndjson(figures.run.records.text("timings").encode())
        if (lines["pack"] != 1).any():
            return None
        there = [part for part in PARTS if part in lines.columns]
        return {part: lines[part].fill_null(0.0).to_numpy() for part in there}
    except (OSError, polars.exceptions.PolarsError):
        return None


def own_clock(figures: Figures) -> Floats | None:
    """Seconds since the start at the end of each round, without evaluation; None as for `own_seconds`."""
    seconds = own_seconds(figures)
    if seconds is None:
        return None
    clock: Floats = np.cumsum(np.sum([seconds[part] for part in TRAINING if part in seconds], axis=0))
    return clock


def _has_timings(run: FoundRun) -> bool:
    try:
        return bool(run.records.text("timings"))
    except OSError:
        return False


def seconds_per_round(figures: Figures) -> float | None:
    """Mean seconds per round with evaluation; from the summary if the records are without timings.jsonl."""
    seconds = own_seconds(figures)
    if seconds is not None:
        return float(np.sum(list(seconds.values()), axis=0).mean())
    run = figures.run
    total = run.summary.get("seconds")
    if run.summary.get("pack") != 1 or _has_timings(run) or not isinstance(total, dict):
        return None
    return sum(float(value) for value in total.values()) / len(figures.curve.score)
