"""`{modules} package ...`: the API of every module of these packages, from their docstrings."""

import pkgutil
from importlib import import_module

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Modules(SphinxDirective):
    """A heading a module; a package that is not there is left out."""

    required_arguments = 1
    optional_arguments = 9

    def run(self) -> list[nodes.Node]:
        text = []
        for package in self.arguments:
            try:
                found = pkgutil.iter_modules(import_module(package).__path__, f"{package}.")
                names = [package, *(module.name for module in found)]
            except ModuleNotFoundError:
                continue
            for name in names:
                text.append(f"## `{name}`\n\n```{{eval-rst}}\n.. automodule:: {name}\n   :members:\n```")
        return self.parse_text_to_nodes("\n\n".join(text), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("modules", Modules)
    return {"parallel_read_safe": True}
