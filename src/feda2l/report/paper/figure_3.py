"""Figure 3: best accuracy of every algorithm with every rate rule, three panels of model and data."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from feda2l.report.draw_scores import NOT_RUN, draw_best_bars, save_formats, write_inside
from feda2l.report.paper.grid import ALGORITHMS, RULES, Column, Grid, make_grid
from feda2l.report.paper.item import PaperItem
from feda2l.report.plots import new_figure
from feda2l.report.run_figures import Figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = tuple(
    Column(f"{model} / {data}", model, data)
    for model, data in (("ResNet-18", "CIFAR-100"), ("ResNet-34", "CIFAR-100"), ("ResNet-34", "TinyImageNet"))
)


def draw(runs: Sequence[Figures], folder: Path) -> None:
    """Draw the figure if one of its cells was run."""
    grid = make_grid(runs, COLUMNS, ALGORITHMS)
    if grid.cells:
        save_formats(panels(grid), folder / "figure-3")


def panels(grid: Grid) -> "Figure":
    """Three panels, one group of bars per algorithm, one bar per rate rule."""
    figure, axes_list = new_figure(3, 18, 5)
    for axes, column in zip(axes_list, COLUMNS, strict=True):
        groups = [(algorithm, list(grid.rules(column, algorithm).values())) for algorithm in ALGORITHMS]
        axes.set_title(column.title)
        if any(cells for _, cells in groups):
            draw_best_bars(axes, groups, RULES, "accuracy")
        else:
            write_inside(axes, NOT_RUN)
    handles = {
        label: handle for axes in axes_list for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=len(RULES), fontsize=8)
    return figure


ITEM = PaperItem("Figure 3", ("resnet18-cifar100", "resnet34-cifar100", "resnet34-tinyimagenet"), draw=draw)
