"""What `feda2l report` and `feda2l compare` print."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from feda2l.report.compare import compare
from feda2l.report.primary_tests import as_lines
from feda2l.report.report import report
from feda2l.report.sheets import Sheet, SheetEntry, scores_sheet, sheets_of, unequal_notes
from feda2l.report.words import setting_of


def print_report(folders: list[Path], out: Path, *, tensorboard: bool, paper: bool, holm: Sequence[str] = ()) -> None:
    """Make the report and show its first tables; what was left out comes last, so that it is noticed."""
    tables, primary, left_out = report(folders, out, tensorboard=tensorboard, paper=paper, holm=holm)
    for table in tables:
        _say(f"{table.title}: {setting_of(table)}")
        first = sheets_of(table)[0]
        Console().print(shown_table(first))
        if first.title == "Rounds to target":
            Console().print(shown_table(scores_sheet(table)))
        _say(*unequal_notes(table), *(note for note in first.notes if "p = " in note))
    for sheet in primary:
        _say(*as_lines(sheet))
    _say(*left_out, f"page: {out / 'index.html'}")


def print_comparison(
    first: Path, second: Path, *, equivalent_within: float | None = None, holm: Sequence[str] = ()
) -> None:
    """Print the measures of both sides and a verdict."""
    found = compare(first, second, equivalent_within=equivalent_within, holm=holm)
    _say(f"A: {found.first}", f"B: {found.second}", f"seeds: {', '.join(map(str, found.seeds))}")
    for measure in found.measures:
        both = f"A {measure.first}, B {measure.second}; " if measure.first else ""
        _say(f"{measure.name}: {both}{measure.words}")
    _say(*found.notes, *filter(None, [found.about_intervals]), found.about_p, found.verdict)


def _say(*lines: str) -> None:
    Console().print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)


def shown_table(sheet: Sheet) -> Table:
    """A sheet as a table for a terminal; the best entry is bold, the second underlined."""
    shown = Table(title=sheet.title, title_justify="left")
    for number, column in enumerate(sheet.header):
        shown.add_column(column, justify="right" if number else "left")
    for row in sheet.rows:
        shown.add_row(*(_marked(entry) for entry in row))
    return shown


def _marked(entry: SheetEntry) -> str:
    text = _plain(entry.text)
    return {1: f"[bold]{text}[/]", 2: f"[u]{text}[/]"}.get(entry.place or 0, text)


def _plain(text: str) -> str:
    return text.replace("[", "\\[")
