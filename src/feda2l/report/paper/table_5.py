"""Table 5: rounds and time to the target of forecasts of two time series."""

from collections.abc import Sequence

from feda2l.report.paper.grid import Column, Grid, make_grid
from feda2l.report.paper.item import PaperItem
from feda2l.report.paper.sheet import (
    AS_COUNTED,
    ROUNDS,
    Measure,
    beside,
    improvement_row,
    notes_of,
    rule_rows,
    seconds_to_target,
    time_words,
)
from feda2l.report.results import Cell
from feda2l.report.run_figures import Figures
from feda2l.report.sheets import Sheet, SheetEntry
from feda2l.report.words import naive_words

COLUMNS = tuple(Column(data, None, data, None) for data in ("ExchangeRate", "BeijingAirQuality"))
ALGORITHMS = ("FedAvg", "FedAWA")
NOTE = "Seconds are rounds times seconds per round with evaluation, only of runs that had the machine to themselves."


def make(runs: Sequence[Figures], numbers: bool) -> Sheet | None:
    """The table, if one of its cells was run."""
    grid = make_grid(runs, COLUMNS, ALGORITHMS, numbers=numbers)
    if not grid.cells:
        return None
    measures = [ROUNDS, Measure(seconds_to_target, _seconds_words)]
    rows: list[list[SheetEntry]] = []
    for algorithm in ALGORITHMS:
        cells = [grid.rules(column, algorithm) for column in COLUMNS]
        rows += [*rule_rows(algorithm, cells, measures), improvement_row(algorithm, cells, measures)]
    header = ["algorithm", "method"]
    for column in COLUMNS:
        target = grid.targets.get(column)
        header += [column.title + (f" (MSE {target:.5g})" if target is not None else ""), f"{column.title}, seconds"]
    notes = [AS_COUNTED, NOTE, *_naive_notes(grid), *notes_of(grid)]
    return Sheet("Table 5 of the paper: time series", header, rows, notes)


def _naive_notes(grid: Grid) -> list[str]:
    """The errors of forecasts that need no training, which a model must beat."""
    naive = {column.title: cell.example.run.naive for (column, _, _), cell in grid.cells.items()}
    words = {
        title: ", ".join(f"the {naive_words(name)} has an MSE of {mse:.4g}" for name, mse in own.items())
        for title, own in naive.items()
    }
    return [f"{title}, forecasts without training: {text}." for title, text in words.items() if text]


def _seconds_words(cell: Cell) -> str:
    seconds, printed = seconds_to_target(cell), cell.paper.minutes if cell.paper else None
    return time_words(seconds) + beside(printed, scale=60)


ITEM = PaperItem("Table 5", ("series-exchange-rate", "series-beijing"), sheet=make)
