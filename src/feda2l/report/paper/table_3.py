"""Table 3: seconds per round and minutes to the target of every algorithm with every rate rule."""

from collections.abc import Sequence

from feda2l.report.paper.grid import ALGORITHMS, Column, make_grid
from feda2l.report.paper.item import PaperItem
from feda2l.report.paper.sheet import Measure, beside, cell_seconds, notes_of, rule_rows, seconds_to_target, time_words
from feda2l.report.paper_numbers import paper_seconds
from feda2l.report.results import Cell
from feda2l.report.run_figures import Figures
from feda2l.report.sheets import Sheet
from feda2l.report.words import few_digits

COLUMN = Column("ResNet-18 / CIFAR-100", "ResNet-18", "CIFAR-100")
NOTE = (
    "Only of runs that had the machine to themselves (feda2l study --timing). Minutes are rounds of the mean curve "
    "times seconds per round with evaluation, as in the paper (on an RTX 4090). **Fastest**, <u>second</u>."
)


def make(runs: Sequence[Figures], numbers: bool) -> Sheet | None:
    """The table, if one of its cells was run alone on its machine."""
    alone = [figures for figures in runs if figures.run.summary.get("pack") == 1]
    grid = make_grid(alone, [COLUMN], ALGORITHMS, numbers=numbers)
    if not any(cell_seconds(cell) is not None for cell in grid.cells.values()):
        return None
    measures = [Measure(cell_seconds, _seconds_words, is_ranked=False), Measure(seconds_to_target, _minutes_words)]
    cells = [grid.rules(COLUMN, algorithm) for algorithm in ALGORITHMS]
    rows = [row[1:] for row in rule_rows("", cells, measures)]
    header = ["method", *(f"{name}, {what}" for name in ALGORITHMS for what in ("s per round", "minutes"))]
    return Sheet(f"Table 3 of the paper: time to the target, {COLUMN.title}", header, rows, [NOTE, *notes_of(grid)])


def _seconds_words(cell: Cell) -> str:
    seconds, printed = cell_seconds(cell), paper_seconds(cell.example.run) if cell.paper else None
    return ("" if seconds is None else few_digits(seconds)) + beside(printed)


def _minutes_words(cell: Cell) -> str:
    seconds, printed = seconds_to_target(cell), cell.paper.minutes if cell.paper else None
    return time_words(seconds, 60) + beside(printed)


ITEM = PaperItem("Table 3", ("time-to-target",), sheet=make)
