"""Figure 4: rates and signals of the three layers of ResNet-18 with the highest divergence."""

from collections.abc import Sequence
from pathlib import Path

from feda2l.report.draw_rates import rate_figure
from feda2l.report.draw_scores import save_formats, slug
from feda2l.report.paper.grid import ALGORITHMS, make_grid
from feda2l.report.paper.item import PaperItem
from feda2l.report.paper.sheet import OURS
from feda2l.report.paper.table_3 import COLUMN
from feda2l.report.run_figures import Figures


def draw(runs: Sequence[Figures], folder: Path) -> None:
    """Draw one figure per cell of FedA2L on ResNet-18, that is, per algorithm."""
    grid = make_grid(runs, [COLUMN], ALGORITHMS)
    for algorithm in ALGORITHMS:
        cell = grid.cells.get((COLUMN, algorithm, OURS))
        if cell is None:
            continue
        figure = rate_figure(cell, f"{algorithm} with {OURS}, {COLUMN.title}")
        if not isinstance(figure, str):
            save_formats(figure, folder / slug("figure-4", algorithm))


ITEM = PaperItem("Figure 4", ("rate-dynamics",), draw=draw)
