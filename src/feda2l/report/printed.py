"""What `feda2l report` and `feda2l compare` print."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from feda2l.report.compare import compare
from feda2l.report.report import report
from feda2l.report.sheets import scores_sheet, sheets_of
from feda2l.report.words import setting_of


def print_report(folders: list[Path], out: Path, *, tensorboard: bool, paper: bool) -> None:
    """Make the report and show its first tables; what was left out comes last, where it is seen."""
    made = report(folders, out, tensorboard=tensorboard, paper=paper)
    console = Console()
    for table in made.tables:
        console.print(f"{table.title}: {setting_of(table)}", highlight=False, soft_wrap=True, markup=False)
        sheets = sheets_of(table)
        for sheet in [sheets[0], *([scores_sheet(table)] if sheets[0].title == "Rounds to target" else [])]:
            shown = Table(title=sheet.title, title_justify="left")
            for number, column in enumerate(sheet.header):
                shown.add_column(column, justify="right" if number else "left")
            for row in sheet.rows:
                shown.add_row(
                    *({1: f"[bold]{e.text}[/]", 2: f"[u]{e.text}[/]"}.get(e.place or 0, _plain(e.text)) for e in row)
                )
            console.print(shown)
        tests = [note for note in sheets[0].notes if "p = " in note]
        console.print("\n".join(tests), highlight=False, soft_wrap=True, markup=False)
    for line in made.left_out:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    console.print(f"page: {out / 'index.html'}", highlight=False, soft_wrap=True, markup=False)


def print_comparison(first: Path, second: Path) -> None:
    """A table of both sides, and a sentence."""
    found = compare(first, second)
    console = Console()
    seeds = ", ".join(map(str, found.seeds))
    console.print(f"A: {found.first}\nB: {found.second}\nseeds: {seeds}", highlight=False, soft_wrap=True, markup=False)
    for measure in found.measures:
        both = f"A {measure.first}, B {measure.second}; " if measure.first else ""
        console.print(f"{measure.name}: {both}{measure.words}", highlight=False, soft_wrap=True, markup=False)
    for line in found.notes:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    console.print(found.verdict, highlight=False, soft_wrap=True, markup=False)


def _plain(text: str) -> str:
    return text.replace("[", "\\[")
