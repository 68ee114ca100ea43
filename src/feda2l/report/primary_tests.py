"""The primary tests of a study, corrected for their number. All other p values of a report are exploratory."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from feda2l.errors import FedA2LError
from feda2l.report.compare import MeasureComparison, compare_pairs, pair_by_seed
from feda2l.report.find_runs import Notes
from feda2l.report.layout import studies_of, texts_in
from feda2l.report.run_figures import Figures
from feda2l.report.sheets import Sheet, SheetEntry
from feda2l.report.significance import LEVEL, holm
from feda2l.studies.primary_tests import PrimaryTest, parse_primary_test

Cells = Mapping[str, Sequence[Figures]]  # the runs of every cell of a study, by the name of its folder
HEADER = ["test", "seeds", "B", "A", "difference, B - A", "p", "p after Holm", "significant"]


def primary_sheets(
    figures: Sequence[Figures], folders: Sequence[Path], more: Sequence[str], notes: Notes
) -> list[Sheet]:
    """One table per study that registers primary tests in its `[report]`, or has the cells of those in `more`."""
    by_path = {one.run.path: one for one in figures}
    asked = [parse_primary_test(text) for text in more]
    sheets, unknown = [], set(asked)
    for study in studies_of([one.run for one in figures], folders):
        cells: dict[str, list[Figures]] = defaultdict(list)
        for run in study.runs:
            cells[run.path.parent.name].append(by_path[run.path])
        fitting = [test for test in asked if {test.first, test.second} <= cells.keys()]
        unknown -= set(fitting)
        registered = map(parse_primary_test, texts_in(study.wishes, "primary"))
        if tests := list(dict.fromkeys([*registered, *fitting])):
            sheets.append(_sheet(study.name, tests, cells, notes))
    if unknown:
        known = sorted({one.run.path.parent.name for one in figures})
        raise FedA2LError(
            f"--holm '{min(unknown)}': no study has runs of both cells; the cells are {', '.join(known)}", see="compare"
        )
    return sheets


def as_lines(sheet: Sheet) -> list[str]:
    """The same in sentences, for a terminal."""
    lines = []
    for row in sheet.rows:
        test, seeds, _, _, difference, p, corrected, significant = (entry.text for entry in row)
        result = f"{difference}, p = {p}, after Holm {corrected}; significant: {significant} ({seeds} seeds)"
        lines.append(f"Primary test {test}: {result if p else difference}")
    return [*lines, *sheet.notes]


def _sheet(study: str, tests: Sequence[PrimaryTest], cells: Cells, notes: Notes) -> Sheet:
    found = [_compared(test, cells, notes) for test in tests]
    # a test without runs still counts: with p = 1 the correction of the others cannot get weaker when it is run
    corrected = holm([1.0 if one is None or one.test is None else one.test.p for one in found])
    rows = [_row(test, one, p) for test, one, p in zip(tests, found, corrected, strict=True)]
    title = f"Primary tests{f' of {study}' if study else ''}"
    about = (
        f"B against A, paired by seed. Holm's correction counts {len(tests)} registered test{'s' * (len(tests) > 1)}, "
        "those without runs included. All other p values of this report are exploratory."
    )
    return Sheet(title, HEADER, [[SheetEntry(text) for text in row] for row in rows], [about])


def _compared(test: PrimaryTest, cells: Cells, notes: Notes) -> MeasureComparison | None:
    """The registered measure of both cells; None where they share no seed or have no such measure."""
    first, second = (cells.get(name, ()) for name in (test.first, test.second))
    if not {one.run.seed for one in first} & {one.run.seed for one in second}:
        return None
    pairs = pair_by_seed(first, second, notes)
    return next((measure for measure in compare_pairs(pairs) if measure.key == test.measure), None)


def _row(test: PrimaryTest, found: MeasureComparison | None, corrected: float) -> list[str]:
    if found is None or found.test is None:
        return [str(test), "0", "", "", "not run yet", "", "", ""]
    numbers = [str(found.test.seeds), found.second, found.first, found.difference]
    significant = f"yes, {found.better} better" if corrected <= LEVEL else "no"
    return [str(test), *numbers, f"{found.test.p:.2g}", f"{corrected:.2g}", significant]
