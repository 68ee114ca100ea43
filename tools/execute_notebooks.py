"""Execute the notebooks of docs/notebooks again, in place: `python tools/execute_notebooks.py [NAME ...]`.

Every notebook runs in an empty folder. Metadata that differ between executions (times, paths, versions) are removed.
"""

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

try:
    import ipykernel  # noqa: F401  the kernel that nbclient starts
    import nbformat
    from nbclient import NotebookClient
except ModuleNotFoundError as missing:
    sys.exit(f"{missing.name} is missing: pip install 'feda2l[notebooks]'")

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
PATH = re.compile(r"(?<![\w.:/<])/(?:\w[\w.-]*/)+|[A-Z]:\\")  # absolute paths of a machine


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def read(name: str) -> Any:
    path = FOLDER / f"{name}.ipynb"
    if not path.exists():
        sys.exit(f"{name}: no such notebook in {FOLDER}; choose one of {', '.join(names())}")
    return nbformat.read(path, as_version=4)


def execute(notebook: Any) -> Any:
    """Run the notebook in a new kernel; a cell that fails raises."""
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=None,  # a slow machine must not fail
            startup_timeout=600,
            resources={"metadata": {"path": folder}},
            record_timing=False,
            coalesce_streams=True,
        )
        client.execute()
    return tidy(notebook)


def tidy(notebook: Any) -> Any:
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({key: value for key, value in cell.metadata.items() if key == "tags"})
        for output in cell.get("outputs", ()):
            output.pop("metadata", None)
            if output.output_type in ("display_data", "execute_result"):
                output.metadata = nbformat.from_dict({})
    nbformat.validate(notebook)
    return notebook


def text(cell: Any) -> str:
    """The printed output of a cell, and the plain text of its displays."""
    parts = []
    for output in cell.get("outputs", ()):
        parts.append(output.get("text") or output.get("data", {}).get("text/plain", ""))
    return "".join(parts)


def faults(notebook: Any) -> list[str]:
    """The problems of a notebook that must not be committed."""
    found = []
    for number, cell in enumerate(cell for cell in notebook.cells if cell.cell_type == "code"):
        if cell.execution_count != number + 1:
            found.append(f"{cell.id}: not executed in order")
        if PATH.search(text(cell)):
            found.append(f"{cell.id}: its output contains a path of this machine")
        for output in cell.outputs:
            if output.output_type == "error" or output.get("name") == "stderr":
                found.append(f"{cell.id}: {output.get('ename') or output.get('text')}")
            if any("widget" in kind for kind in output.get("data", {})):
                found.append(f"{cell.id}: a widget")
    return found


def main() -> None:
    for name in sys.argv[1:] or names():
        notebook = execute(read(name))
        if found := faults(notebook):
            sys.exit("\n".join(found))
        nbformat.write(notebook, FOLDER / f"{name}.ipynb")
        print(f"{name}: {sum(cell.cell_type == 'code' for cell in notebook.cells)} cells")


if __name__ == "__main__":
    main()
