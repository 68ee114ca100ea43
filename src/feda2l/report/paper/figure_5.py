"""Figure 5: accuracy for six values of beta, one panel per model."""

from collections.abc import Sequence
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING

from feda2l.report.draw_parameters import BALANCE, beta_panels
from feda2l.report.draw_scores import save_formats
from feda2l.report.paper.grid import Column, make_grid
from feda2l.report.paper.item import PaperItem
from feda2l.report.paper.sheet import OURS
from feda2l.report.paper_settings import PARAMETER, default_parameters, names_of
from feda2l.report.results import Cell
from feda2l.report.run_figures import Figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BETAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
COLUMNS = tuple(Column(f"{model} / CIFAR-100", model, "CIFAR-100") for model in ("CNN", "ResNet-18", "ResNet-34"))


def draw(runs: Sequence[Figures], folder: Path) -> None:
    """Draw the figure if at least two values of beta were run on one of its models."""
    found = cells_by_column([figures for figures in runs if _varies_beta_alone(figures)])
    if any(len(cells) > 1 for cells in found.values()):
        save_formats(panels(found), folder / "figure-5")


def cells_by_column(runs: Sequence[Figures]) -> dict[Column, list[Cell]]:
    """The cells of each model, by beta."""
    found: dict[Column, list[Cell]] = {column: [] for column in COLUMNS}
    for beta in BETAS:
        own = [figures for figures in runs if isclose(figures.run.keys[BALANCE], beta)]
        grid = make_grid(own, COLUMNS, ["FedAvg"], numbers=False)
        for (column, _, _), cell in grid.cells.items():
            found[column].append(cell)
    return found


def panels(found: dict[Column, list[Cell]]) -> "Figure":
    """Three panels, one per model, with one curve for each beta."""
    return beta_panels({column.title: cells for column, cells in found.items()}, "accuracy")


def _varies_beta_alone(figures: Figures) -> bool:
    names = names_of(figures.run)
    if names["method"] != OURS or BALANCE not in figures.run.keys:
        return False
    default = default_parameters(names)
    return all(
        isclose(figures.run.keys.get(key, default[own]), default[own])
        for key, own in PARAMETER.items()
        if own != "beta"
    )


ITEM = PaperItem("Figure 5", ("beta-curves",), draw=draw)
