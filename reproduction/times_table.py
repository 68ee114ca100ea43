"""Table of the seconds per round of the runs that had the machine to themselves, beside the paper's."""

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
    header = ["cell", "seconds per round", "adapting, %", "with evaluation, s", "on", "the paper, s (RTX 4090)"]
    return table(header, rows)
