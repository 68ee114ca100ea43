"""The figure of the convergence bounds: estimated quantities and the terms of Theorem 1, over rounds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from feda2l.records.theory import Terms, theorem_terms
from feda2l.report.draw_scores import FORMATS
from feda2l.report.find_runs import FoundRun
from feda2l.report.plots import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_RUNS = 6  # rows of a figure
QUANTITIES = {
    "squared_gradient": "||grad f||² at the mean model",
    "heterogeneity": "B² (A4)",
    "gradient_variance": "variance of mini-batch gradients (A2)",
    "start_disagreement": "D^r",
}
TERMS = {
    "gradient": "mean of ||grad f||²",
    "start": "f(theta^1) / (eta0 R), times C1",
    "noise": "eta0 s² / N, times C2",
    "disagreement": "mean of D^r, times C3",
}


class Estimated(NamedTuple):
    """A run with estimates: its name, the records that hold them, and the terms after each."""

    name: str
    due: Sequence[Mapping[str, Any]]
    terms: Sequence[Terms]


def draw_theory(runs: Sequence[FoundRun], path: Path) -> None:
    """Write the figure of these runs in every format; nothing where no run has estimates."""
    figure = theory_figure(runs)
    if figure is not None:
        for kind in FORMATS:
            save_figure(figure, path.with_name(f"{path.name}.{kind}"))


def theory_figure(found: Sequence[FoundRun]) -> "Figure | None":
    """Draw one row per run that has estimates, at most `MOST_RUNS`; None where no run has any."""
    runs = [run for run in map(_read, found) if run is not None][:MOST_RUNS]
    if not runs:
        return None
    figure, panels = new_figure(2, 12, 3.6 * len(runs), rows=len(runs))
    for place, run in enumerate(runs):
        rounds = [record["round"] for record in run.due]
        _lines(panels[2 * place], rounds, run.due, QUANTITIES)
        panels[2 * place].set(xlabel="round r", title=f"{run.name}: estimates at the start of round r")
        _lines(panels[2 * place + 1], [terms.rounds for terms in run.terms], [t._asdict() for t in run.terms], TERMS)
        panels[2 * place + 1].set(xlabel="rounds R", title="terms of Theorem 1, without their constants")
    return figure


def _read(run: FoundRun) -> Estimated | None:
    theory = run.summary.get("theory")
    if theory is None:
        return None
    rows = run.records.rounds().unique("round", keep="first").sort("round").collect().to_dicts()
    # a column is null in the rounds without an estimate
    records = [{key: value for key, value in row.items() if value is not None} for row in rows]
    due = [record for record in records if "objective" in record]
    return Estimated(run.name, due, theorem_terms(records, theory["eta0"], theory["nodes"]))


def _lines(
    axes: "Axes",
    across: Sequence[int],
    rows: Sequence[Mapping[str, float]],
    wanted: Mapping[str, str],
) -> None:
    """Draw a line per quantity; values that are 0 or unknown have no place on a logarithmic axis."""
    for key, label in wanted.items():
        values = np.array([dict(row).get(key) for row in rows], dtype=np.float64)
        axes.plot(across, np.where(values > 0, values, np.nan), ".-", label=label, linewidth=1.2)
    axes.set_yscale("log")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.25)
