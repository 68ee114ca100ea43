"""Draw the figures of the evidence pages: curves of chosen cells over rounds or minutes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from feda2l.errors import FedA2LError
from feda2l.report.curves import Floats
from feda2l.report.draw_scores import decorate_score_axes, draw_score_band, draw_score_over_minutes
from feda2l.report.machine_time import own_clock
from feda2l.report.plots import new_figure, save_figure
from feda2l.report.results import Cell, Contest
from feda2l.report.run_figures import Figures


def draw_bands(cells: Sequence[Cell], path: Path) -> None:
    """Draw the curves of some cells in one figure. The suffix of the path sets the format."""
    figure, (axes,) = new_figure(1, 7, 4.5)
    for cell in cells:
        draw_score_band(axes, cell, cell.example.run.metric, cell.row)
    decorate_score_axes(axes, Contest("all", "all", list(cells)), cells[0].example.run.metric, "round")
    save_figure(figure, path)


def draw_minutes(cells: Sequence[Cell], path: Path, alone: Mapping[str, Figures]) -> None:
    """Draw the score of the first seed of some cells over minutes, in one figure.

    A run that shared the machine takes its seconds per round from the run of the same cell in `alone`. Without such a
    run, the cell is left out.
    """
    clocks = [(cell, paced_clock(cell.example, alone.get(cell.row))) for cell in cells]
    lines = [(cell, clock) for cell, clock in clocks if clock is not None]
    if not lines:
        names = ", ".join(cell.row for cell in cells) or "no cell"
        raise FedA2LError(f"{path.name}: no minutes to draw: {names}: shared the machine, or without timings.jsonl")
    figure, (axes,) = new_figure(1, 7, 4.5)
    draw_score_over_minutes(axes, lines, cells[0].example.run.metric)
    save_figure(figure, path)


def paced_clock(figures: Figures, alone: Figures | None) -> Floats | None:
    """Return the time after each round. In a pack, each round takes the median seconds of a round of `alone`."""
    clock = own_clock(figures)
    if clock is None and alone is not None and (paced := own_clock(alone)) is not None:
        return np.median(np.diff(paced, prepend=0.0)) * np.arange(1, figures.run.rounds + 1)
    return clock
