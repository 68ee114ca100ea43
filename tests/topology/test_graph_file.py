"""Graphs from a file: edge lists, matrices and errors about invalid lines."""

from pathlib import Path

import pytest

from feda2l.errors import FedA2LError
from feda2l.topology import Topology, build


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    def text_to_topology(text: str | bytes, nodes: int) -> Topology:
        path = tmp_path / "graph.txt"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return build("file", nodes, file=str(path))

    return text_to_topology


RING = ((1, 3), (0, 2), (1, 3), (0, 2))


@pytest.mark.parametrize(
    "text",
    [
        "0 1\n1 2\n2 3\n3 0\n",
        "# a ring\n\n0,1\n1,0\n1, 2\t# a repeated edge counts once\n2\t3\r\n3 0",
        "\ufeff0 1\n1 2\n2 3\n3 0\n",
        "0 1 0 1\n1 0 1 0\n0 1 0 1\n1 0 1 0\n",
        "1,1,0,1\n1,1,1,0\n0,1,1,1\n1,0,1,1\n",  # the diagonal does not matter
    ],
)
def test_edges_and_matrix_give_the_ring(write, text: str) -> None:  # type: ignore[no-untyped-def]
    topology = write(text, 4)
    assert topology.period == (RING,)
    assert not topology.directed


def test_a_matrix_row_marks_the_nodes_a_node_receives_from(write) -> None:  # type: ignore[no-untyped-def]
    topology = write("0 0 1\n1 0 0\n0 1 0\n", 3)
    assert topology.period == build("directed_ring", 3).period
    assert topology.directed


def test_one_and_two_nodes(write) -> None:  # type: ignore[no-untyped-def]
    assert write("", 1).period == (((),),)
    assert write("0", 1).period == (((),),)
    assert write("0 1\n1 0\n", 2).period == (((1,), (0,)),)  # the same as an edge list and as a matrix


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1\n1 two\n", r'graph\.txt, line 2: "1 two" is not an edge'),
        ("0 1\n1\n", r'line 2: "1" is not an edge'),
        ("0 1\n\n1 2 0.5\n", r'line 3: "1 2 0\.5" is not an edge'),
        ("0 1\n-1 2\n", r"line 2.*not an edge"),
        ("0 1\n1 4\n", r"line 2: node 4 does not exist; with data\.nodes = 4 the ids are 0 to 3"),
        ("0 1\n2 2\n", r"line 2: node 2 is linked to itself"),
        ("0 1 2\n", r"line 1: 3 columns; an edge list has 2, and a matrix for data\.nodes = 4 has 4"),
        ("0 1 0 1\n1 0 1\n", r"line 2: 3 columns"),
        ("0 1 0 1\n1 0 2 0\n", r'line 2: "2" in a matrix of 0 and 1'),
        ("0 1 0 1\n" * 3, r"matrix has 3 rows, data\.nodes = 4 needs 4"),
        ("0 1 0 1\n" * 5, r"line 5: one row too many"),
        ("0 1\n2 3\n", r'topology\.name = "file".*never hear'),
        ("", r"never hear"),
        ("0 1 0 0\n0 0 1 0\n0 0 0 1\n0 0 0 0\n", r"never hear"),  # a directed line: node 3 receives from no node
        (b"\xff\xfe\x00", r"topology\.file = .*cannot be read"),
    ],
)
def test_invalid_lines_are_reported(write, text: str | bytes, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(FedA2LError, match=message):
        write(text, 4)
