"""Tables 2 and 4: rounds to the target of every algorithm with every rate rule, one column per setting."""

from collections.abc import Sequence

from feda2l.report.paper.grid import ALGORITHMS, SEARCHED, Column, Grid, make_grid
from feda2l.report.paper.sheet import (
    AS_COUNTED,
    NOT_RUN,
    OURS,
    ROUNDS,
    Rules,
    first_counts,
    improvement_row,
    notes_of,
    rounds_words,
    rule_rows,
)
from feda2l.report.run_figures import Figures
from feda2l.report.sheets import Sheet, SheetEntry


def rounds_table(
    title: str, runs: Sequence[Figures], columns: Sequence[Column], algorithms: Sequence[str], *, numbers: bool
) -> Sheet | None:
    """The table, with the number of columns in which each rule is first; None if none of its cells was run."""
    grid = make_grid(runs, columns, (*algorithms, SEARCHED), numbers=numbers)
    if not any(algorithm in algorithms for _, algorithm, _ in grid.cells):
        return None
    rows, races, won = [], 0, (0, 0)
    for algorithm in algorithms:
        cells = [grid.rules(column, algorithm) for column in columns]
        counts = first_counts(cells, ROUNDS)
        for row in rule_rows(algorithm, cells, [ROUNDS]):
            rows.append([*row, *(SheetEntry(str(count)) for count in counts[row[1].text])])
        rows.append([*improvement_row(algorithm, cells, [ROUNDS]), SheetEntry(""), SheetEntry("")])
        races += _races(cells)
        won = won[0] + counts[OURS][0], won[1] + counts[OURS][1]
    if algorithms == ALGORITHMS:
        rows.append(_searched_row(grid, columns))
    header = ["algorithm", "method", *(_column_title(grid, column) for column in columns)]
    header += ["1st count", "1st count, alone"]
    count = f"{OURS} is first in {won[0]} of the {races} settings that were run, counting ties as the paper does; "
    count += f"alone in {won[1]}."
    return Sheet(title, header, rows, [AS_COUNTED, count, *notes_of(grid)])


def _column_title(grid: Grid, column: Column) -> str:
    target = grid.targets.get(column)
    return column.title if target is None else f"{column.title} ({100 * target:g} %)"


def _races(cells: Sequence[Rules]) -> int:
    return sum(OURS in rules and len(rules) > 1 for rules in cells)


def _searched_row(grid: Grid, columns: Sequence[Column]) -> list[SheetEntry]:
    """DFedHPO, which has a constant rate that its search finds; it is not counted among the rules."""
    found = [grid.rules(column, SEARCHED).get("Vanilla") for column in columns]
    texts = [NOT_RUN if cell is None else rounds_words(cell) for cell in found]
    return [SheetEntry(SEARCHED), SheetEntry("Vanilla"), *map(SheetEntry, texts), SheetEntry(""), SheetEntry("")]
