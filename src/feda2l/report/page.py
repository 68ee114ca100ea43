"""One page that holds everything it needs: it opens from a disk, without a network."""

from collections.abc import Sequence
from importlib.resources import files

from feda2l.errors import FedA2LError
from feda2l.report.page_data import page_data, to_json
from feda2l.report.results import ResultTable
from feda2l.report.sheets import Sheet


def page(tables: Sequence[ResultTable], related: Sheet, notes: Sequence[str]) -> str:
    """The page's HTML, plotly and data inside."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise FedA2LError("index.html needs plotly: pip install 'feda2l[plots]'") from error
    parts = files("feda2l.report") / "page_parts"
    html = (parts / "page.html").read_text(encoding="utf-8")
    for name, text in (
        ("style", (parts / "page.css").read_text(encoding="utf-8")),
        ("script", (parts / "page.js").read_text(encoding="utf-8")),
        ("data", to_json(page_data(tables, related, notes))),
        ("plotly", get_plotlyjs()),  # last: it is the one text in which a mark could occur by chance
    ):
        html = html.replace(f"@@{name}@@", text)
    return html
