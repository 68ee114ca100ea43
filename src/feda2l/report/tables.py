"""Tables for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from feda2l.report.metrics import mean_and_std, rounds_over_seeds
from feda2l.report.words import beyond_words


def rules_table(runs: Mapping[str, Sequence[dict[str, Any]]], target: float, rounds: int, seconds: float) -> Table:
    """One row per method: rounds to target, best accuracy and time, over the summaries of its seeds."""
    count = sum(map(len, runs.values()))
    seeds = max(map(len, runs.values()))
    table = Table(title=f"rounds to {target:.0%} and best accuracy over {seeds} seed{'s' * (seeds > 1)}")
    table.add_column("rate rule", no_wrap=True)
    for column in ("reached", "median", "mean ± std", "best, %", "worst", "s per\nrun"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, summaries in runs.items():
        finished = [summary for summary in summaries if summary["status"] == "finished"]
        if not finished:
            table.add_row(name, "non_finite")
            continue
        reach = rounds_over_seeds([summary["target"]["round"] for summary in finished])
        best = [100 * summary["accuracy"]["best"] for summary in finished]
        mean, std = mean_and_std(best)
        spread = "" if reach.mean is None else f"{reach.mean:.1f} ± {reach.std or 0:.1f}"
        scores = (f"{mean:.2f} ± {std:.2f}", f"{min(best):.2f}", f"{seconds / count:.2f}")
        reached = f"{reach.reached} of {len(summaries)}"
        table.add_row(name, reached, beyond_words(reach.median, rounds), spread, *scores)
    return table


def partition_table(counts: NDArray[np.int64], class_names: Sequence[str], *, series: bool = False) -> Table:
    """Samples of each class, or windows of each site, at each node; many classes are shown as a count.

    As names of sites are long, a few of them already count as many.
    """
    one, many, samples = ("site", "sites", "windows") if series else ("class", "classes", "samples")
    table = Table(title=f"{samples} of each {one} at each node")
    table.add_column("node", justify="right")
    wide = len(class_names) > 20 or sum(map(len, class_names)) > 100
    for name in (f"{many} held", f"largest {one}") if wide else class_names:
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("all", justify="right")
    for node, row in enumerate(counts):
        largest = f"{class_names[int(row.argmax())]} ({row.max()})"
        cells = [str((row > 0).sum()), largest] if wide else [str(value) if value else "." for value in row]
        table.add_row(str(node), *cells, str(row.sum()))
    return table
