"""Read a graph from a text file: an edge list or a 0/1 matrix.

- two columns: one undirected edge `i j` per line (repeats are allowed). With two nodes, two columns are edges as well.
- `nodes` columns: a matrix in which row i marks the nodes that node i receives from. It need not be symmetric.
  Its diagonal is ignored, because a node always keeps a share of its own state.

Columns are separated by spaces, tabs or commas; `#` starts a comment; ids start at 0.
"""

from collections.abc import Iterator
from pathlib import Path

from feda2l.topology.errors import topology_error


def read_arcs(file: str, nodes: int) -> Iterator[tuple[int, int]]:
    """Yield every pair (i, j) in which i receives from j; an error names the line that cannot be read."""
    lines = list(_lines(file))
    if not lines or len(lines[0][1]) == 2:
        for where, fields in lines:
            i, j = _edge(where, fields, nodes)
            yield from ((i, j), (j, i))
        return
    for i, (where, fields) in enumerate(lines):
        yield from ((i, j) for j in _matrix_row(where, fields, i, nodes))
    if len(lines) != nodes:
        raise topology_error(
            f"topology.file = {file}: the matrix has {len(lines)} rows, data.nodes = {nodes} needs {nodes}"
        )


def _lines(file: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the fields of each line that has any."""
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise topology_error(f"topology.file = {file} cannot be read: {error}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        if fields := line.split("#")[0].replace(",", " ").split():
            yield f"topology.file = {file}, line {number}", fields


def _edge(where: str, fields: list[str], nodes: int) -> tuple[int, int]:
    if len(fields) != 2 or not all(field.isdecimal() for field in fields):
        raise topology_error(f'{where}: "{" ".join(fields)}" is not an edge; write two node ids, as in "0 1"')
    i, j = map(int, fields)
    if max(i, j) >= nodes:
        raise topology_error(
            f"{where}: node {max(i, j)} does not exist; with data.nodes = {nodes} the ids are 0 to {nodes - 1}"
        )
    if i == j:
        raise topology_error(
            f"{where}: node {i} is linked to itself; remove the line, because a node always receives its own model"
        )
    return i, j


def _matrix_row(where: str, fields: list[str], row: int, nodes: int) -> Iterator[int]:
    if len(fields) != nodes:
        raise topology_error(
            f"{where}: {len(fields)} columns; an edge list has 2, and a matrix for data.nodes = {nodes} has {nodes}"
        )
    if row >= nodes:
        raise topology_error(f"{where}: one row too many; a matrix for data.nodes = {nodes} has {nodes} rows")
    if wrong := [field for field in fields if field not in ("0", "1")]:
        raise topology_error(f'{where}: "{wrong[0]}" in a matrix of 0 and 1')
    return (j for j, field in enumerate(fields) if field == "1" and j != row)
