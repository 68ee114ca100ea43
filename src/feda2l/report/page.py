"""One self-contained HTML page: it opens from a disk, without a network."""

from collections.abc import Sequence
from importlib.resources import files

from feda2l.errors import FedA2LError
from feda2l.report.page_data import page_data, to_json
from feda2l.report.results import ResultTable
from feda2l.report.sheets import Sheet


def page(
    tables: Sequence[ResultTable],
    related: Sheet,
    notes: Sequence[str],
    *,
    printed: Sequence[Sheet] = (),
    primary: Sequence[Sheet] = (),
) -> str:
    """The page's HTML with plotly and the data inside.

    Args:
        tables: The tables of every study.
        related: The table of related work.
        notes: What could not be shown.
        printed: The tables of the paper.
        primary: The primary tests.
    """
    return fill(
        part("page.html"),
        style=part("page.css"),
        panels=part("panels.html"),
        drawing=part("draw.js"),
        script=part("page.js"),
        data=to_json(page_data(tables, related, notes, printed=printed, primary=primary)),
        plotly=plotly("index.html", "plots"),  # last, as it is the only text that could contain a mark by chance
    )


def part(name: str) -> str:
    """A part of a page, from the package."""
    return (files("feda2l.report") / "page_parts" / name).read_text(encoding="utf-8")


def fill(html: str, **texts: str) -> str:
    """The page with every `@@name@@` replaced, in the order given."""
    for name, text in texts.items():
        html = html.replace(f"@@{name}@@", text)
    return html


def plotly(what: str, extra: str) -> str:
    """The source of plotly.js, which draws the figures."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise FedA2LError(f"{what} needs plotly: pip install 'feda2l[{extra}]'", see="missing-extra") from error
    return str(get_plotlyjs())
