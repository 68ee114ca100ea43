"""Links work on a code host and on the site: pages are written for the first, and read here for the second.

A link to a file outside docs/ becomes a link to the page that includes it, or a copy of the file on the site.
"""

import fnmatch
import os
import re
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
PAGES |= {"ROADMAP.md": "roadmap.md", "SUPPORT.md": "support.md"}
PAGES |= {"results": "kept-results.md", "results/README.md": "kept-results.md"}
OPTIONAL = re.compile(r"^(\S+\*)\n", re.MULTILINE)  # a line of a list of pages that takes what is there
LINK = re.compile(r"\]\((\.\./[^)#\s]+)")


def settle(app: Sphinx, docname: str, source: list[str]) -> None:
    """Point links to files that are a page of the site at that page; the decisions are a list for readers only."""
    folder = (DOCS / docname).parent

    def page(match: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / match[1]))
        if not path.is_relative_to(ROOT) or path.is_relative_to(DOCS):
            return match[0]
        inside = PAGES.get(path.relative_to(ROOT).as_posix())
        return f"]({os.path.relpath(DOCS / inside, folder)}" if inside else match[0]

    source[0] = LINK.sub(page, source[0])
    if docname == "index":
        there = app.project.docnames
        source[0] = OPTIONAL.sub(lambda line: line[0] if fnmatch.filter(there, line[1]) else "", source[0])
    if docname == "adr/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n0*\n```\n"


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", settle)
    return {"parallel_read_safe": True}
