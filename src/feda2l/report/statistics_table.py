"""What BatchNorm's statistics do to a score: each node its own, their mean to answer with, or averaged always."""

import math
from collections.abc import Sequence
from pathlib import Path

import polars

from feda2l.report.evidence import read_evidence
from feda2l.report.evidence_tables import table
from feda2l.report.run_figures import Figures

LAST = 10  # rounds


def statistics_table(results: Path, study: str) -> str:
    """A line a rule whose nodes keep their own statistics; over the seeds that its averaged namesake has, if any.

    The mean model has the nodes' parameters, equal on a full graph, and the mean of their statistics, which no node
    trains with.
    """
    cells = read_evidence(results / study).cells
    rows = []
    for name, cell in cells.items():
        keys = cell.example.run.keys
        if keys["algorithm.buffers"] != "local" or keys["model.name"].endswith("_gn"):  # GroupNorm has none
            continue
        averaged = {f.run.seed: f for f in cells[f"{name}-average"].seeds} if f"{name}-average" in cells else {}
        own = [f for f in cell.seeds if not averaged or f.run.seed in averaged]
        beside = [_last(averaged[f.run.seed], "accuracy") for f in own] if averaged else []
        found = [[_last(f, "accuracy") for f in own], [_worst(f) for f in own]]
        found += [[_last(f, "mean_model_accuracy") for f in own], beside]
        rows.append([f"`{name}`", *(f"{100 * _mean(values):.2f}" if values else "" for values in found)])
    header = [
        "rule",
        "each node its own",
        "of these the worst node",
        "their mean, to answer with",
        "averaged every round",
    ]
    return table(header, rows)


def _last(figures: Figures, column: str) -> float:
    """The mean over nodes and the last ten rounds."""
    return _mean(_rounds(figures)[column].to_list())


def _worst(figures: Figures) -> float:
    """The lowest of a round, the mean over the last ten."""
    return _mean(_rounds(figures).group_by("round").agg(polars.col("accuracy").min())["accuracy"].to_list())


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)  # exact: rounds come in any order


def _rounds(figures: Figures) -> polars.DataFrame:
    rows = polars.read_parquet(figures.run.folder.rounds_table)
    return rows.filter(polars.col("round") > figures.run.rounds - LAST)
