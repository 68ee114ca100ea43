"""The notebooks run, and their committed outputs are the outputs of a new run."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import execute_notebooks as notebooks

NAMES = ["compare-rules", "inside-the-rates", "quickstart"]
TOOL = Path(notebooks.__file__)


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell: Any) -> list[Any]:
    return [sorted(output.get("data", [output.get("name")])) for output in cell.outputs]


def test_these_are_all() -> None:
    assert notebooks.names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_committed_notebook_was_executed_and_is_clean(name: str) -> None:
    notebook = notebooks.read(name)
    assert notebooks.faults(notebook) == []
    assert dict(notebook.metadata) == notebooks.METADATA
    shown = [kind for cell in code(notebook) for kind in kinds(cell)]
    assert ["stdout"] in shown
    assert ["image/png", "text/plain"] in shown
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    assert notebooks.FOLDER.joinpath(f"{name}.ipynb").stat().st_size < 600_000


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name != "quickstart" else ()) for name in NAMES]
)
def test_a_new_run_prints_the_committed_output(name: str) -> None:
    committed, fresh = notebooks.read(name), notebooks.read(name)
    for cell in code(fresh):
        cell.outputs, cell.execution_count = [], None
    notebooks.execute(fresh)
    assert notebooks.faults(fresh) == []
    for old, new in zip(code(committed), code(fresh), strict=True):
        assert kinds(new) == kinds(old), new.source
        if "same-everywhere" in new.metadata.get("tags", ()):
            assert notebooks.text(new) == notebooks.text(old)
    assert any("same-everywhere" in cell.metadata.get("tags", ()) for cell in code(fresh))


@pytest.mark.parametrize("name", NAMES)
def test_without_the_extra_the_first_cell_names_the_install_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("matplotlib", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, module, None)  # as if the module were not installed
    with pytest.raises(ImportError, match=r"matplotlib.* is missing: pip install 'feda2l\[notebooks\]'"):
        exec(code(notebooks.read(name))[0].source, {})


def test_without_the_extra_the_tool_names_the_install_command() -> None:
    script = f"import sys, runpy; sys.modules['nbclient'] = None; runpy.run_path({str(TOOL)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "nbclient is missing: pip install 'feda2l[notebooks]'\n"


def test_a_notebook_that_does_not_exist_is_named() -> None:
    with pytest.raises(
        SystemExit, match=r"quick: no such notebook in .*; choose one of compare-rules, inside-the-rates, quickstart"
    ):
        notebooks.read("quick")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("runs lie in /tmp/abc/first", True),
        ("/home/me/feda2l/x.py:3: UserWarning", True),
        (r"C:\Users\me", True),
        ("runs/first and docs/notebooks", False),
        ("0.05 / 2 and 3/4", False),
        ("https://example.org/a/b", False),
    ],
)
def test_paths_of_a_machine_are_found(text: str, told: bool) -> None:
    assert bool(notebooks.PATH.search(text)) is told
