"""How the documentation is built: `make docs`. Offline, and a warning fails it."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_site"))

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import feda2l

project = "FedA2L"
author = copyright = "The FedA2L developers"
release = version = feda2l.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "command_pages",
    "module_pages",
    "plain_docstrings",
    "catalogue_tables",
    "outside_files",
]
exclude_patterns = ["_build", "_site"]
if not find_spec("feda2l.integrations"):
    exclude_patterns.append("reference/integrations.md")
nitpicky = True
# what docstrings and signatures name of other libraries: their pages are not at hand offline
nitpick_ignore_regex = [
    ("py:.*", r"(?!feda2l).*"),
    ("py:class", r"feda2l\.(spec\.spec\.\w+Spec|studies\.study_folder\.Job)"),
]

myst_heading_anchors = 4
nb_execution_mode = "off"  # notebooks show the outputs they were committed with

smartquotes = False
default_role = "code"  # docstrings write `names` as Markdown does
# optional libraries, which their docstrings do without
autodoc_mock_imports = ["accelerate", "flwr", "lightning", "mlflow", "transformers", "wandb"]
autodoc_inherit_docstrings = False
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "FedA2L"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # it would be fetched, which a browser does not do from a disk


def setup(app: Sphinx) -> None:
    app.add_lexer("csv", TextLexer)  # shown as it is
