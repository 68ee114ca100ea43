"""The tables and figures of the paper, laid out as printed: one short module and one entry in `ITEMS` for each."""

from collections.abc import Sequence
from pathlib import Path

from feda2l.report.paper import figure_2, figure_3, figure_4, figure_5, table_2, table_3, table_4, table_5
from feda2l.report.paper.item import PaperItem
from feda2l.report.run_figures import Figures
from feda2l.report.sheets import Sheet

ITEMS: tuple[PaperItem, ...] = (
    table_2.ITEM,
    table_3.ITEM,
    table_4.ITEM,
    table_5.ITEM,
    figure_2.ITEM,
    figure_3.ITEM,
    figure_4.ITEM,
    figure_5.ITEM,
)


def paper_sheets(runs: Sequence[Figures], *, numbers: bool = True) -> list[Sheet]:
    """Every table of the paper of which at least one cell was run; `numbers`: with the paper's numbers beside ours."""
    made = [item.sheet(runs, numbers) for item in ITEMS if item.sheet is not None]
    return [sheet for sheet in made if sheet is not None]


def draw_paper_figures(runs: Sequence[Figures], folder: Path) -> None:
    """Draw every figure of the paper of which at least one cell was run."""
    for item in ITEMS:
        if item.draw is not None:
            item.draw(runs, folder)
