"""Table of the effect of BatchNorm statistics on the score: local, averaged for evaluation, or averaged every round."""

from pathlib import Path
from statistics import fmean

import polars

from feda2l.report.run_figures import Figures
from feda2l.report.words import score_words
from reproduction.evidence import of_common_seeds, read_evidence
from reproduction.evidence_tables import table

LAST = 10  # rounds
HEADER = ("rule", "local statistics", "worst node of these", "mean for evaluation only", "averaged every round")


def statistics_table(results: Path, study: str) -> str:
    """Tabulate the rules whose nodes keep local statistics.

    If the rule has a cell `-average`, only the seeds of both cells count. On a full graph all nodes hold equal
    parameters. The mean model has these parameters and the mean of the statistics, with which no node trains.
    """
    cells = read_evidence(results / study).cells
    rows = []
    for name, cell in cells.items():
        keys = cell.example.run.keys
        if keys["algorithm.buffers"] != "local" or keys["model.name"].endswith("_gn"):  # GroupNorm has no statistics
            continue
        with_average = list[float]()
        if f"{name}-average" in cells:
            cell, averaged = of_common_seeds(cell, cells[f"{name}-average"])
            with_average = averaged.over_seeds("last_10")
        read = [_worst_and_mean(figures) for figures in cell.seeds]
        columns = (cell.over_seeds("last_10"), [worst for worst, _ in read], [mean for _, mean in read], with_average)
        rows.append([f"`{name}`", *(score_words(values, "accuracy") for values in columns)])
    return table(HEADER, rows)


def _worst_and_mean(figures: Figures) -> tuple[float, float]:
    """Return the mean accuracy of each round's worst node and of the mean model, over the last ten rounds."""
    rows = figures.run.records.rounds().select("round", "accuracy", "mean_model_accuracy").collect()
    last = rows.filter(polars.col("round") > figures.run.rounds - LAST)
    lowest = last.group_by("round").agg(polars.col("accuracy").min())
    return fmean(lowest["accuracy"]), fmean(last["mean_model_accuracy"])
