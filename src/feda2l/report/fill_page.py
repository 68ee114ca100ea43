"""Pages whose tables and figures come from records: what stands between two marks is written anew, the rest is left.

A mark is `<!-- results: NAME ARGUMENTS -->`, its end `<!-- end -->`; the names are those of `MADE`, and of `FIGURES`,
whose arguments are the study, the file and the cells.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from feda2l.errors import FedA2LError
from feda2l.names import look_up
from feda2l.report.causes import causes_table
from feda2l.report.evidence import read_evidence
from feda2l.report.evidence_tables import TABLES
from feda2l.report.figures import draw_bands, draw_minutes
from feda2l.report.own_time import times_table
from feda2l.report.robustness_tables import robustness_gains_table, robustness_table
from feda2l.report.run_figures import Figures
from feda2l.report.series_tables import series_table
from feda2l.report.statistics_table import statistics_table

BLOCK = re.compile(r"(<!-- results: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
MADE = TABLES | {
    "causes": causes_table,
    "robustness": robustness_table,
    "robustness-gains": robustness_gains_table,
    "series": series_table,
    "statistics": statistics_table,
    "times": times_table,
}
FIGURES = {"curves": "rounds", "minutes": "minutes"}


def fill(text: str, results: Path) -> str:
    """The page with every table as the records have it."""
    read_evidence.cache_clear()
    return BLOCK.sub(lambda found: f"{found[1]}{_block(found[2].split(), results)}\n{found[3]}", text)


def fill_pages(pages: Sequence[Path], results: Path) -> None:
    """Write the pages' tables and figures anew."""
    for page in pages:
        try:
            text = page.read_text(encoding="utf-8")
        except OSError as error:
            raise FedA2LError(f"--page {page}: cannot be read: {error.strerror}") from error
        page.write_text(fill(text, results), encoding="utf-8")
        for found in BLOCK.finditer(text):
            name, *arguments = found[2].split()
            if name in FIGURES:
                study, file, *cells = arguments
                own, path = read_evidence(results / study), page.parent / file
                there = [own.cells[cell] for cell in cells if cell in own.cells]
                if name == "minutes":
                    draw_minutes(there, path, _alone(results / f"{study}-time"))
                else:
                    draw_bands(there, path)


def _block(words: list[str], results: Path) -> str:
    name, *arguments = words
    if name in FIGURES:
        study, file, *cells = arguments
        falls = read_evidence(results / study).study.cells[0].spec(1).data.forecasts
        score = "MSE" if falls else "accuracy"
        return f"![{score} over {FIGURES[name]}, {study}: {', '.join(cells)}]({file})"
    make = look_up(name, MADE, "results")
    return make(results, *arguments)


def _alone(folder: Path) -> Mapping[str, Figures]:
    """A run of each cell of the study that timed some of another's by themselves, if there is one."""
    cells = read_evidence(folder).cells if (folder / "study.toml").exists() else {}
    return {name: cell.example for name, cell in cells.items()}
