"""A table in the paper's layout: one block per algorithm with one row per rate rule, and the settings side by side."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from feda2l.report.machine_time import seconds_per_round
from feda2l.report.paper.grid import RULES, Grid
from feda2l.report.results import NEVER, Cell, place_of
from feda2l.report.sheets import SheetEntry, difference_notes, search_notes
from feda2l.report.words import few_digits

NOT_RUN = "not run"
OURS = "FedA2L"
AS_COUNTED = (
    "Rounds as the paper counts them: the first round at which the smoothed mean curve of all seeds reaches the "
    "target, ± the population standard deviation of the seeds' own rounds. **First**, <u>second</u>; (paper: ...) is "
    "the printed number."
)

Rules = dict[str, Cell]
Block = tuple[str, Sequence[Rules]]  # an algorithm, and its cells in each column


class Measure(NamedTuple):
    """One figure of a cell: what it is ranked by (None: not measured; `NEVER`: not reached) and how it is written."""

    value: Callable[[Cell], float | None]
    words: Callable[[Cell], str]
    is_ranked: bool = True


def rounds_words(cell: Cell) -> str:
    """Rounds of the mean curve, with the paper's number where it belongs."""
    value, std = cell.curve_averaged, cell.reach.population_std
    if cell.non_finite:
        text = f"non-finite ({cell.non_finite}/{len(cell.seeds)})"
    elif value is None:
        text = f"> {cell.rounds}"
    else:
        text = f"{value}" + (f" ± {std:.2f}" if std is not None and len(cell.seeds) > 1 else "")
    text += " [search]" * bool(cell.over_seeds("search"))
    return text + beside(cell.paper.text if cell.paper else None)


def beside(paper: float | str | None, scale: int = 1) -> str:
    """The paper's number in an entry, a time multiplied by `scale`."""
    if paper is None:
        return ""
    return f" (paper: {paper})" if isinstance(paper, str) else f" (paper: {float(f'{scale * paper:.6g}'):g})"


def seconds_to_target(cell: Cell) -> float | None:
    """Rounds of the mean curve times the mean seconds per round, as the paper computes its times."""
    each = cell_seconds(cell)
    return None if each is None else _rounds(cell) * each


def time_words(seconds: float | None, unit: int = 1) -> str:
    """A time to the target, in units of so many seconds."""
    if seconds is None:
        return "not timed"
    return "not reached" if seconds == NEVER else few_digits(seconds / unit)


def cell_seconds(cell: Cell) -> float | None:
    """Seconds per round with evaluation, mean over the seeds that had the machine to themselves."""
    known = [seconds for figures in cell.seeds if (seconds := seconds_per_round(figures)) is not None]
    return sum(known) / len(known) if known else None


def _rounds(cell: Cell) -> float:
    return NEVER if cell.curve_averaged is None else cell.curve_averaged


ROUNDS = Measure(_rounds, rounds_words)


def rule_rows(block: str, columns: Sequence[Rules], measures: Sequence[Measure]) -> list[list[SheetEntry]]:
    """One row per rate rule: the algorithm, the rule, and every measure of every column."""
    rows = []
    for rule in RULES:
        row = [SheetEntry(block), SheetEntry(rule)]
        for rules in columns:
            row += [_entry(rules, rule, measure) for measure in measures]
        rows.append(row)
    return rows


def improvement_row(block: str, columns: Sequence[Rules], measures: Sequence[Measure]) -> list[SheetEntry]:
    """How much FedA2L saves on the best other rule, in percent, for every measure of every column."""
    entries = [SheetEntry(_improvement(rules, measure)) for rules in columns for measure in measures]
    return [SheetEntry(block), SheetEntry("Improv. (%)"), *entries]


def first_counts(columns: Sequence[Rules], measure: Measure) -> dict[str, tuple[int, int]]:
    """In how many columns each rule is first: with ties, as the paper counts, and alone.

    A column counts if at least two rules were run and one of them reached the target.
    """
    counts = dict.fromkeys(RULES, (0, 0))
    for rules in columns:
        values = _values(rules, measure)
        best = min(values.values(), default=NEVER)
        first = [rule for rule, value in values.items() if value == best < NEVER and len(values) > 1]
        for rule in first:
            tied, alone = counts[rule]
            counts[rule] = tied + 1, alone + (len(first) == 1)
    return counts


def notes_of(grid: Grid) -> list[str]:
    """What a reader must know about the cells of a grid."""
    cells = [
        (", ".join((column.title, algorithm, rule)), cell) for (column, algorithm, rule), cell in grid.cells.items()
    ]
    searches = dict.fromkeys(
        note
        for (column, algorithm, _), cell in grid.cells.items()
        for note in search_notes(f"{column.title}, {algorithm}", cell)
    )
    return [*searches, *difference_notes((name, cell.differs) for name, cell in cells), *grid.notes]


def _entry(rules: Rules, rule: str, measure: Measure) -> SheetEntry:
    if rule not in rules:
        return SheetEntry(NOT_RUN)
    values = _values(rules, measure)
    place = place_of(values[rule], values.values()) if measure.is_ranked and rule in values else None
    return SheetEntry(measure.words(rules[rule]), place)


def _improvement(rules: Rules, measure: Measure) -> str:
    values = _values(rules, measure)
    ours = values.pop(OURS, None)
    if ours is None or not values:
        return ""
    best = min(values.values())
    if ours == NEVER:
        return "not reached"
    return "100 (no other rule reached it)" if best == NEVER else f"{100 * (best - ours) / best:.2f}"


def _values(rules: Rules, measure: Measure) -> dict[str, float]:
    """The measure of every rule that has it."""
    return {rule: value for rule, cell in rules.items() if (value := measure.value(cell)) is not None}
