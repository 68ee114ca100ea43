"""Write the tables and figures of a Markdown page from the stored records.

Only the text between a start mark, `<!-- results: NAME ARGUMENTS -->`, and its end mark, `<!-- end -->`, is replaced.
NAME is a key of `MAKERS` or of `FIGURES`. A figure's arguments are its study, its file (relative to the page) and its
cells.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from feda2l.errors import FedA2LError
from feda2l.names import look_up
from feda2l.report.run_figures import Figures
from reproduction.causes import causes_table
from reproduction.evidence import read_evidence
from reproduction.evidence_tables import TABLES
from reproduction.headline_table import headline_table
from reproduction.page_figures import draw_bands, draw_minutes
from reproduction.robustness_tables import robustness_gains_table, robustness_table
from reproduction.series_tables import series_table
from reproduction.statistics_table import statistics_table
from reproduction.times_table import times_table

BLOCK = re.compile(r"(<!-- results: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
MAKERS = TABLES | {
    "causes": causes_table,
    "headlines": headline_table,
    "robustness": robustness_table,
    "robustness-gains": robustness_gains_table,
    "series": series_table,
    "statistics": statistics_table,
    "times": times_table,
}
FIGURES = {"curves": "rounds", "minutes": "minutes"}


def fill(text: str, results: Path) -> str:
    """Return the page with every table rewritten from the records in `results`."""
    read_evidence.cache_clear()
    return BLOCK.sub(lambda match: f"{match[1]}{_block(match[2].split(), results)}\n{match[3]}", text)


def fill_pages(pages: Sequence[Path], results: Path) -> None:
    """Rewrite the tables and figures of the pages."""
    for page in pages:
        text = _read(page)
        page.write_text(fill(text, results), encoding="utf-8")
        for match in BLOCK.finditer(text):
            name, *arguments = match[2].split()
            if name in FIGURES:
                study, file, *cells = arguments
                known, path = read_evidence(results / study).cells, _figure_path(page, file)
                shown = [known[cell] for cell in cells if cell in known]
                if name == "minutes":
                    draw_minutes(shown, path, _alone(results / f"{study}-time"))
                else:
                    draw_bands(shown, path)


def written_files(page: Path) -> list[Path]:
    """List the files that `fill_pages` writes for a page: the page itself and its figures."""
    marks = [match[2].split() for match in BLOCK.finditer(_read(page))]
    files = [arguments[1] for name, *arguments in marks if name in FIGURES]
    return [page, *(_figure_path(page, file) for file in files)]


def _figure_path(page: Path, file: str) -> Path:
    """Return the path of a figure, without the `..` of a page in a folder below the figures."""
    return Path(os.path.normpath(page.parent / file))


def _read(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except OSError as error:
        raise FedA2LError(f"{page}: cannot be read: {error.strerror}") from error


def _block(words: list[str], results: Path) -> str:
    name, *arguments = words
    if name in FIGURES:
        study, file, *cells = arguments
        forecasts = read_evidence(results / study).study.cells[0].spec(1).data.forecasts
        score = "MSE" if forecasts else "accuracy"
        return f"![{score} over {FIGURES[name]}, {study}: {', '.join(cells)}]({file})"
    make = look_up(name, MAKERS, "results")
    return make(results, *arguments)


def _alone(folder: Path) -> Mapping[str, Figures]:
    """Return one run per cell of the timing study, or nothing if there is no such study."""
    cells = read_evidence(folder).cells if (folder / "study.toml").exists() else {}
    return {name: cell.example for name, cell in cells.items()}
