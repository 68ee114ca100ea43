"""The directive `{commands}`: every command with its options, generated from the command line."""

import sys
from unittest.mock import patch

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from feda2l.cli.main import app
from feda2l.cli.options import FIRST


class Commands(SphinxDirective):
    """The commands by group, then one heading per command."""

    def run(self) -> list[nodes.Node]:
        with patch.object(sys, "argv", ["feda2l"]):  # otherwise the usage would name Sphinx
            described = app.generate_docs(output_format="markdown", usage_name="feda2l")
        # skip the table of contents, because the page has its own
        _, first, commands = described.partition(f"**{FIRST.name}**:\n")
        return self.parse_text_to_nodes(f"## Commands\n\n{first}{commands}", allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
