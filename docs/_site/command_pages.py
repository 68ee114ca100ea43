"""`{commands}`: every command with its options, from the command line's own description of itself."""

import sys
from unittest.mock import patch

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from feda2l.cli.main import app


class Commands(SphinxDirective):
    """A list of the commands, then a heading a command."""

    def run(self) -> list[nodes.Node]:
        with patch.object(sys, "argv", ["feda2l"]):  # else the program that runs is Sphinx, and stands in the usage
            described = app.generate_docs(output_format="markdown", usage_name="feda2l")
        _, _, commands = described.partition("**Commands**:\n")  # behind a table of contents, which the page has
        return self.parse_text_to_nodes(f"## Commands\n{commands}", allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
