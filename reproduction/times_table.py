"""Table of the seconds per round of the runs that had the machine alone, beside the paper's."""

from pathlib import Path

import numpy as np

from feda2l.report.machine_time import own_seconds
from feda2l.report.paper_numbers import paper_seconds
from reproduction.evidence import read_evidence
from reproduction.evidence_tables import table


def times_table(results: Path, study: str) -> str:
    """Tabulate the median seconds per round of each cell, beside the paper's seconds."""
    rows = []
    for cell in read_evidence(results / study).cells.values():
        timed = [(figures, seconds) for figures in cell.seeds if (seconds := own_seconds(figures)) is not None]
        if not timed:
            continue
        figures, seconds = timed[0]
        total = sum(seconds.values())
        without_evaluation = total - seconds.get("evaluate", 0.0)
        share = np.median(seconds.get("adapt", np.zeros_like(without_evaluation)) / without_evaluation)
        paper = paper_seconds(figures.run)
        rows.append(
            [
                f"`{cell.row}`",
                f"{np.median(without_evaluation):.2f}",
                f"{100 * share:.2f}",
                f"{np.median(total):.2f}",
                f"{figures.run.machine}, {figures.run.keys.get('runtime.precision', '?')}",
                "" if paper is None else f"{paper:g}",
            ]
        )
    header = ["cell", "seconds per round", "adapting, %", "with evaluation, s", "on", "the paper, s (RTX 4090)"]
    return table(header, rows)
