"""How long a run took, where it had the machine to itself; of a run in a pack only what another took alone."""

from pathlib import Path

import numpy as np
import polars

from feda2l.records.round_timings import PARTS, TRAINING
from feda2l.report.curves import Floats
from feda2l.report.evidence import read_evidence
from feda2l.report.evidence_tables import table
from feda2l.report.paper_numbers import paper_seconds
from feda2l.report.run_figures import Figures


def own_seconds(figures: Figures) -> dict[str, Floats] | None:
    """Seconds of every round by part; None for a run that shared the machine or kept no times."""
    if figures.run.summary.get("pack") != 1:
        return None
    try:
        lines = polars.read_ndjson(figures.run.folder.timings)
        if (lines["pack"] != 1).any():
            return None
        there = [part for part in PARTS if part in lines.columns]
        return {part: lines[part].fill_null(0.0).to_numpy() for part in there}
    except (OSError, polars.exceptions.PolarsError):
        return None


def own_clock(figures: Figures) -> Floats | None:
    """Seconds since the start after each round, evaluation not counted."""
    seconds = own_seconds(figures)
    if seconds is None:
        return None
    clock: Floats = np.cumsum(np.sum([seconds[part] for part in TRAINING if part in seconds], axis=0))
    return clock


def paced_clock(figures: Figures, alone: Figures | None) -> Floats | None:
    """A run's own clock; of one in a pack the rounds times the median of what the same work took `alone`."""
    clock = own_clock(figures)
    if clock is None and alone is not None and (paced := own_clock(alone)) is not None:
        return np.median(np.diff(paced, prepend=0.0)) * np.arange(1, figures.run.rounds + 1)
    return clock


def times_table(results: Path, study: str) -> str:
    """What a round takes, the median of a run's rounds, beside the paper's."""
    rows = []
    for cell in read_evidence(results / study).cells.values():
        found = [(figures, seconds) for figures in cell.seeds if (seconds := own_seconds(figures)) is not None]
        if not found:
            continue
        figures, seconds = found[0]
        whole = sum(seconds.values())
        alone = whole - seconds.get("evaluate", 0.0)
        share = np.median(seconds.get("adapt", np.zeros_like(alone)) / alone)
        theirs = paper_seconds(figures.run)
        rows.append(
            [
                f"`{cell.row}`",
                f"{np.median(alone):.2f}",
                f"{100 * share:.2f}",
                f"{np.median(whole):.2f}",
                f"{figures.run.machine}, {figures.run.keys.get('runtime.precision', '?')}",
                "" if theirs is None else f"{theirs:g}",
            ]
        )
    header = ["cell", "s a round", "of it adapting, %", "with evaluation, s", "on", "the paper, s (RTX 4090)"]
    return table(header, rows)
