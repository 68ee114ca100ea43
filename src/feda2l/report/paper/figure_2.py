"""Figure 2: accuracy over minutes of ResNet-18 on CIFAR-100, one panel per algorithm."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from feda2l.report.draw_scores import NOT_RUN, draw_score_over_minutes, draw_target, save_formats, write_inside
from feda2l.report.machine_time import own_clock
from feda2l.report.paper.grid import ALGORITHMS, Grid, make_grid
from feda2l.report.paper.item import PaperItem
from feda2l.report.paper.table_3 import COLUMN
from feda2l.report.plots import new_figure
from feda2l.report.run_figures import Figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(runs: Sequence[Figures], folder: Path) -> None:
    """Draw the figure if one of its runs had the machine to itself."""
    timed = [figures for figures in runs if own_clock(figures) is not None]
    grid = make_grid(timed, [COLUMN], ALGORITHMS)
    if grid.cells:
        save_formats(panels(grid), folder / "figure-2")


def panels(grid: Grid) -> "Figure":
    """Six panels titled by algorithm, each with the target line."""
    figure, axes_list = new_figure(3, 14, 8, rows=2)
    for axes, algorithm in zip(axes_list, ALGORITHMS, strict=True):
        cells = grid.rules(COLUMN, algorithm).values()
        lines = [(cell, clock) for cell in cells if (clock := own_clock(cell.example)) is not None]
        axes.set_title(algorithm)
        if lines:
            draw_score_over_minutes(axes, lines, "accuracy")
        else:
            write_inside(axes, NOT_RUN)
        draw_target(axes, grid.targets[COLUMN], "accuracy")
    return figure


ITEM = PaperItem("Figure 2", ("time-to-target",), draw=draw)
