"""`{catalogue}` and `{spec-keys}`: what there is, from the tables that the code itself looks names up in."""

from docutils import nodes
from rich.table import Table
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from feda2l.cli.catalogue import catalogue


class Catalogue(SphinxDirective):
    """Every table of `feda2l list` but the keys, under a heading of its own."""

    def run(self) -> list[nodes.Node]:
        tables = {str(table.title): table for table in catalogue("all")}
        text = [
            f"## {title.capitalize()}\n\n{_markdown(*_read(table))}"
            for title, table in tables.items()
            if "key" not in title
        ]
        return self.parse_text_to_nodes("\n\n".join(text), allow_section_headings=True)


class SpecKeys(SphinxDirective):
    """Every key of a spec, with a heading for each of its tables."""

    def run(self) -> list[nodes.Node]:
        columns, rows = _read(*catalogue("keys"))
        sections: dict[str, list[list[str]]] = {}
        for row in rows:
            sections.setdefault(row[0].partition(".")[0] if "." in row[0] else "", []).append(row)
        text = [
            (f"## `[{name}]`" if name else "## At the top") + "\n\n" + _markdown(columns, rows)
            for name, rows in sections.items()
        ]
        return self.parse_text_to_nodes("\n\n".join(text), allow_section_headings=True)


def _read(table: Table) -> tuple[list[str], list[list[str]]]:
    columns = [str(column.header) for column in table.columns]
    return columns, [list(map(str, row)) for row in zip(*(column.cells for column in table.columns), strict=True)]


def _markdown(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *([f"`{name}`", *rest] for name, *rest in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("catalogue", Catalogue)
    app.add_directive("spec-keys", SpecKeys)
    return {"parallel_read_safe": True}
