"""Graphs by name: neighbours, connectivity, seeds and errors about invalid settings."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feda2l.errors import FedA2LError
from feda2l.topology import NAMES, TOPOLOGIES, Topology, build

RULES = [name for name in NAMES if name not in ("file", "isolated")]


def received(topology: Topology, round: int = 1) -> list[tuple[int, ...]]:
    return [topology.neighbours(i, round) for i in range(topology.nodes)]


@pytest.mark.parametrize(
    ("name", "nodes", "expected"),
    [
        ("full", 3, [(1, 2), (0, 2), (0, 1)]),
        ("ring", 4, [(1, 3), (0, 2), (1, 3), (0, 2)]),
        ("star", 4, [(1, 2, 3), (0,), (0,), (0,)]),
        ("tree", 6, [(1, 2), (0, 3, 4), (0, 5), (1,), (1,), (2,)]),
        ("hypercube", 4, [(1, 2), (0, 3), (0, 3), (1, 2)]),
        ("grid", 6, [(1, 3), (0, 2, 4), (1, 5), (0, 4), (1, 3, 5), (2, 4)]),
        ("grid", 3, [(1,), (0, 2), (1,)]),
        ("torus", 6, [(1, 2, 3), (0, 2, 4), (0, 1, 5), (0, 4, 5), (1, 3, 5), (2, 3, 4)]),
        ("torus", 9, [(1, 2, 3, 6), (0, 2, 4, 7), (0, 1, 5, 8), (0, 4, 5, 6), (1, 3, 5, 7), (2, 3, 4, 8),
                      (0, 3, 7, 8), (1, 4, 6, 8), (2, 5, 6, 7)]),
        ("exponential", 5, [(1, 3, 4), (0, 2, 4), (0, 1, 3), (1, 2, 4), (0, 2, 3)]),
        ("directed_ring", 3, [(2,), (0,), (1,)]),
        ("isolated", 3, [(), (), ()]),
    ],
)  # fmt: skip
def test_neighbours_by_hand(name: str, nodes: int, expected: list[tuple[int, ...]]) -> None:
    assert received(build(name, nodes)) == expected


@pytest.mark.parametrize("name", [name for name in NAMES if name != "file"])
def test_one_node_has_no_neighbours(name: str) -> None:
    topology = build(name, 1)
    assert received(topology) == [()]
    assert topology.edges() == 0
    assert topology.connected()


@pytest.mark.parametrize("name", RULES)
def test_two_nodes_are_joined_by_one_edge(name: str) -> None:
    topology = build(name, 2, k=1, p=1.0)
    assert received(topology) == [(1,), (0,)]
    assert not topology.directed  # one undirected edge for every name
    assert topology.edges() == 1


@given(name=st.sampled_from(RULES), size=st.integers(1, 5), k=st.integers(3, 4), seed=st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_every_graph_is_connected_and_sorted(name: str, size: int, k: int, seed: int) -> None:
    topology = build(name, 1 << size, k=min(k, (1 << size) - 1), p=0.9, seed=seed)
    for phase in topology.period:
        for node, neighbours in enumerate(phase):
            assert list(neighbours) == sorted(set(neighbours) - {node})
            assert all(0 <= j < topology.nodes for j in neighbours)
            assert topology.directed or all(node in phase[j] for j in neighbours)
    assert topology.connected()


def test_one_peer_exponential_cycles_through_its_hops() -> None:
    topology = build("one_peer_exponential", 6)  # hops 1, 2, 4
    assert len(topology.period) == 3
    assert [topology.neighbours(0, round) for round in (1, 2, 3, 4)] == [(5,), (4,), (2,), (5,)]
    assert topology.directed
    assert topology.edges(round=2) == 6


@pytest.mark.parametrize(
    ("nodes", "k"), [(10, 7), (10, 9), (9, 2), (100, 97), (100, 50), (101, 50), (1000, 3), (5, 2), (2, 1)]
)
def test_k_regular_has_degree_k_up_to_the_full_graph(nodes: int, k: int) -> None:
    topology = build("k_regular", nodes, k=k)
    assert {len(neighbours) for neighbours in received(topology)} == {k}
    assert topology.edges() == nodes * k // 2
    assert not topology.directed


def test_every_node_of_random_out_sends_to_k_nodes() -> None:
    topology = build("random_out", 20, k=3, seed=5)
    sends = [sum(i in neighbours for neighbours in received(topology)) for i in range(20)]
    assert sends == [3] * 20
    assert topology.directed
    assert topology.edges() == 60


@pytest.mark.parametrize("name", ["k_regular", "erdos_renyi", "random_out"])
def test_random_graphs_depend_on_the_seed(name: str) -> None:
    first, again, other = (build(name, 30, k=4, p=0.3, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", ["k_regular", "one_peer_exponential"])
def test_ten_thousand_nodes_need_no_dense_matrix(name: str) -> None:
    tracemalloc.start()
    assert build(name, 10_000).nodes == 10_000
    assert tracemalloc.get_traced_memory()[1] < 10_000**2 / 2  # half a byte per pair of nodes
    tracemalloc.stop()


def test_every_name_has_a_description() -> None:
    assert all(description and "\n" not in description for _, description in TOPOLOGIES.values())


@pytest.mark.parametrize(
    ("name", "nodes", "options", "message"),
    [
        ("rnig", 4, {}, r"topology\.name = 'rnig'.*did you mean 'ring'"),
        ("", 4, {}, r"topology\.name.*known: full, ring"),
        ("ring", 0, {}, r"data\.nodes = 0.*at least 1"),
        ("isolated", -2, {}, r"data\.nodes = -2"),
        ("k_regular", 9, {"k": 7}, r"topology\.k = 7 with data\.nodes = 9.*k = 6 or 8"),
        ("k_regular", 7, {"k": 7}, r"topology\.k = 7.*from 1 to 6"),
        ("k_regular", 8, {"k": 0}, r"topology\.k = 0"),
        ("k_regular", 8, {"k": 1}, r"topology\.k = 1 .*k = 2"),
        ("k_regular", 7, {"k": 1}, r"topology\.k = 1 .*use k = 2,"),
        ("random_out", 5, {"k": 5}, r"topology\.k = 5.*from 1 to 4"),
        ("random_out", 5, {"k": -1}, r"topology\.k = -1"),
        ("random_out", 300, {"k": 1}, r"333 draws with topology\.k = 1: .* from k = 9"),
        ("erdos_renyi", 200, {"p": 0.001}, r"500 draws with topology\.p = 0\.001: .* from p = 0\.042"),
        ("erdos_renyi", 5, {"p": 0.0}, r"topology\.p = 0\.0"),
        ("erdos_renyi", 5, {"p": 1.5}, r"topology\.p = 1\.5"),
        ("erdos_renyi", 5, {"p": float("nan")}, r"topology\.p = nan"),
        ("hypercube", 10, {}, r"data\.nodes = 10 .*8 or 16"),
        ("grid", 7, {}, r'data\.nodes = 7 is prime.*"grid".*6 or 8'),
        ("torus", 13, {}, r'data\.nodes = 13 is prime.*"torus"'),
        ("file", 4, {}, r"topology\.file is missing"),
        ("file", 4, {"file": "/nowhere/edges.txt"}, r"topology\.file = /nowhere/edges\.txt cannot be read"),
    ],
)
def test_errors_name_the_key_and_valid_values(name: str, nodes: int, options: dict[str, object], message: str) -> None:
    with pytest.raises(FedA2LError, match=message):
        build(name, nodes, **options)  # type: ignore[arg-type]
