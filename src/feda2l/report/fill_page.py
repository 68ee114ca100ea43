"""Pages whose tables and figures come from records: what stands between two marks is written anew, the rest is left.

A mark is `<!-- results: NAME ARGUMENTS -->`, its end `<!-- end -->`; the names are those of `TABLES`, and `curves`.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from feda2l.errors import FedA2LError
from feda2l.names import look_up
from feda2l.report.evidence import read_evidence
from feda2l.report.evidence_tables import TABLES
from feda2l.report.figures import draw_bands

BLOCK = re.compile(r"(<!-- results: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str, results: Path) -> str:
    """The page with every table as the records have it."""
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
            if name == "curves":
                study, file, *cells = arguments
                own = read_evidence(results / study)
                draw_bands([own.cells[cell] for cell in cells if cell in own.cells], page.parent / file)


def _block(words: list[str], results: Path) -> str:
    name, *arguments = words
    if name == "curves":
        study, file, *cells = arguments
        return f"![accuracy over rounds, {study}: {', '.join(cells)}]({file})"
    make = look_up(name, TABLES, "results")
    return make(results, *arguments)
