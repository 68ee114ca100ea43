"""Partitions: the sizes of the released code, the properties of each kind, and infeasible requests."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feda2l import data
from feda2l.data import partition
from feda2l.errors import FedA2LError

CLASSES = {
    "cifar10": np.repeat(np.arange(10), 5000),
    "cifar100": np.repeat(np.arange(100), 500),
    "tinyimagenet": np.repeat(np.arange(200), 500),
}
GOLDEN = [  # spec B.4, from the released code
    ("cifar10", 10, 0.1, "6630 3448 6186 3102 1060 6377 8199 2853 5184 6961"),
    ("cifar100", 10, 0.1, "4713 5019 4736 5075 5114 5219 5114 4862 5135 5013"),
    ("cifar100", 10, 0.01, "4645 5295 4524 4254 5261 5117 5074 5218 5422 5190"),
    ("cifar100", 10, 0.5, "5002 5084 5141 4883 5016 5035 5147 4923 4627 5142"),
    ("tinyimagenet", 10, 0.1, "9876 10103 10000 9353 10078 10029 10010 10021 10261 10269"),
    (
        "cifar100",
        20,
        0.1,
        "2671 1839 2439 2632 2503 2644 2870 2381 2809 2597 2337 2202 2771 2507 2504 2600 2153 2521 2501 2519",
    ),
    (
        "cifar100",
        30,
        0.1,
        "1240 1977 2012 1673 1740 1342 1914 1779 2013 1706 1711 1306 753 1699 1668 1722 1451 1902 1684 1759 "
        "1953 1670 1219 1556 1691 2046 1737 1673 1720 1684",
    ),
]
DIGITS = np.arange(1440) % 10
KINDS: dict[str, Callable[..., list[partition.Indices]]] = {
    "iid": partition.iid,
    "dirichlet": lambda labels, **keys: partition.dirichlet(labels, alpha=0.3, **{"min_size": 1, **keys}),
    "pathological": lambda labels, **keys: partition.pathological(labels, classes_per_node=3, **keys),
    "shards": partition.shards,
}


def sizes(parts: list[partition.Indices]) -> list[int]:
    return [len(part) for part in parts]


@pytest.mark.parametrize(("name", "nodes", "alpha", "expected"), GOLDEN)
def test_dirichlet_gives_the_sizes_of_the_released_code(name: str, nodes: int, alpha: float, expected: str) -> None:
    labels = np.random.default_rng(0).permutation(CLASSES[name])  # sizes depend on the counts, not on the order
    parts = partition.dirichlet(labels, nodes=nodes, alpha=alpha)
    assert sizes(parts) == [int(size) for size in expected.split()]


def test_dirichlet_gives_the_released_sizes_on_the_official_labels(official: Path) -> None:
    for name, nodes, alpha, expected in GOLDEN:
        if name != "tinyimagenet":
            labels = data.load(name, official).train_y
            parts = partition.dirichlet(labels, nodes=nodes, alpha=alpha)
            assert sizes(parts) == [int(size) for size in expected.split()]
            if (name, nodes) == ("cifar100", 10) and alpha < 0.5:  # spec B.4: labels per node
                held = (partition.table(labels, parts, 100) > 0).sum(1)
                assert (held.min(), held.max()) == ((37, 73) if alpha == 0.1 else (13, 36))


def test_dirichlet_equals_the_released_procedure_index_by_index() -> None:
    """Compare with a plain implementation of the procedure, on a request that needs several draws."""
    random, nodes, alpha, least, draws = np.random.RandomState(3), 10, 0.05, 60, 0
    expected: list[list[int]] = [[]]
    while min(map(len, expected)) < least:
        draws += 1
        expected = [[] for _ in range(nodes)]
        for label in range(10):
            members = np.where(label == DIGITS)[0]
            random.shuffle(members)
            share = random.dirichlet(np.repeat(alpha, nodes))
            share = np.array([p * (len(held) < 1440 / nodes) for p, held in zip(share, expected, strict=True)])
            cuts = (np.cumsum(share / share.sum()) * len(members)).astype(int)[:-1]
            for held, piece in zip(expected, np.split(members, cuts), strict=True):
                held += piece.tolist()
    assert draws > 1
    actual = partition.dirichlet(DIGITS, nodes=nodes, alpha=alpha, seed=3, min_size=least)
    assert [part.tolist() for part in actual] == expected


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**32 - 1), nodes=st.integers(4, 12))
@settings(max_examples=15, deadline=None)
def test_every_sample_goes_to_one_node_and_the_seed_decides(kind: str, seed: int, nodes: int) -> None:
    parts = KINDS[kind](DIGITS, nodes=nodes, seed=seed)
    assert len(parts) == nodes
    assert all(part.dtype == np.int64 for part in parts)
    assert sorted(np.concatenate(parts)) == list(range(1440))
    again = KINDS[kind](torch.from_numpy(DIGITS), nodes=nodes, seed=seed)
    assert all(np.array_equal(one, two) for one, two in zip(parts, again, strict=True))
    other = KINDS[kind](DIGITS, nodes=nodes, seed=seed ^ 1)
    assert not all(np.array_equal(one, two) for one, two in zip(parts, other, strict=True))


def test_iid_nodes_differ_by_one_sample_at_most() -> None:
    assert sorted(set(sizes(partition.iid(DIGITS, nodes=7)))) == [205, 206]


@pytest.mark.parametrize(("nodes", "held"), [(5, 2), (10, 2), (13, 3), (4, 10), (7, 9)])
def test_pathological_nodes_hold_the_requested_number_of_classes(nodes: int, held: int) -> None:
    counts = partition.table(DIGITS, partition.pathological(DIGITS, nodes=nodes, classes_per_node=held), 10)
    assert ((counts > 0).sum(1) == held).all()
    holders = (counts > 0).sum(0)
    assert holders.max() - holders.min() <= 1


def test_shards_are_contiguous_runs_of_the_sorted_samples() -> None:
    parts = partition.shards(DIGITS, nodes=10, shards_per_node=2)
    assert set(sizes(parts)) == {144}
    assert ((partition.table(DIGITS, parts, 10) > 0).sum(1) <= 2).all()  # 20 shards, two a class


def test_natural_makes_one_node_per_value() -> None:
    parts = partition.natural(torch.tensor([7, 3, 7, 9]))
    assert [part.tolist() for part in parts] == [[1], [0, 2], [3]]
    with pytest.raises(FedA2LError, match=r"3 nodes, got data\.nodes = 4"):
        partition.natural([7, 3, 7, 9], nodes=4)
    with pytest.raises(FedA2LError, match="node 0 has 1 samples, fewer than min_size = 2"):
        partition.natural([7, 3, 7, 9], min_size=2)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"nodes": 0, "alpha": 0.1}, "nodes must be a whole number of at least 1, got 0"),
        ({"nodes": 2.5, "alpha": 0.1}, "nodes must be a whole number of at least 1, got 2.5"),
        ({"nodes": 10, "alpha": -1}, "alpha must be a positive number, got -1"),
        ({"nodes": 10, "alpha": 0}, "alpha must be a positive number, got 0"),
        ({"nodes": 10, "alpha": float("nan")}, "alpha must be a positive number, got nan"),
        ({"nodes": 10, "alpha": float("inf")}, "alpha must be a positive number, got inf"),
        ({"nodes": 10, "alpha": "1"}, "alpha must be a positive number, got '1'"),
        ({"nodes": 10, "alpha": 0.1, "seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"nodes": 10, "alpha": 0.1, "min_size": -1}, "min_size must be a whole number of at least 0, got -1"),
        ({"nodes": 2000, "alpha": 0.1}, "need 80000 samples, there are 1440 (min_size = 40); feasible: nodes = "),
    ],
)
def test_invalid_requests_are_reported(request_: dict[str, object], message: str) -> None:
    with pytest.raises(FedA2LError) as error:
        partition.dirichlet(DIGITS, **request_)  # type: ignore[arg-type]
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("labels", "request_"),
    [
        (DIGITS, {"nodes": 30, "alpha": 0.01}),
        (CLASSES["cifar100"], {"nodes": 1000, "alpha": 0.1}),  # one draw takes long
        (DIGITS, {"nodes": 10, "alpha": 1e-300}),  # every gamma variate underflows, the draw is NaN
        (DIGITS, {"nodes": 10, "alpha": 1e308}),  # their sum overflows
    ],
)
def test_an_infeasible_request_fails_with_hints_that_are_feasible(
    labels: np.ndarray, request_: dict[str, float]
) -> None:
    with pytest.raises(FedA2LError, match="feasible: ") as error:
        partition.dirichlet(labels, **request_)  # type: ignore[arg-type]
    *hints, last = str(error.value).split("feasible: ")[1].split(", or ")
    assert last == 'partition = "iid"'
    partition.iid(labels, nodes=int(request_["nodes"]), min_size=40)
    for hint in hints:
        name, _, value = hint.split()
        changed = {**request_, name: float(value) if name == "alpha" else int(value)}
        partition.dirichlet(labels, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labels", "request_"),
    [
        (np.repeat([0, 1], 48), {"nodes": 4, "alpha": 0.1, "min_size": 40}),  # equal shares of 24 would fit
        (DIGITS, {"nodes": 100, "alpha": 0.1, "min_size": 40}),
    ],
)
def test_the_hints_for_too_few_samples_are_feasible_for_this_partition(
    labels: np.ndarray, request_: dict[str, float]
) -> None:
    with pytest.raises(FedA2LError, match="there are") as error:
        partition.dirichlet(labels, **request_)  # type: ignore[arg-type]
    hints = str(error.value).split("feasible: ")[1].split(", or ")
    assert [hint.split()[0] for hint in hints] == ["min_size", "nodes"]
    for hint in hints:
        name, _, value = hint.split()
        partition.dirichlet(labels, **{**request_, name: int(value)})  # type: ignore[arg-type]


def test_a_draw_that_underflows_is_repeated() -> None:
    assert np.isnan(np.random.RandomState(1).dirichlet(np.full(10, 1e-3), size=50)).any()
    assert sum(sizes(partition.dirichlet(DIGITS, nodes=10, alpha=1e-3))) == 1440


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: partition.pathological(DIGITS, nodes=4), "feasible: classes_per_node >= 3, or nodes >= 5"),
        (lambda: partition.pathological(DIGITS, nodes=4, classes_per_node=11), "only 10 classes"),
        (lambda: partition.pathological(DIGITS, nodes=721), "feasible: nodes <= 720"),
        (lambda: partition.shards(DIGITS, nodes=10, shards_per_node=145), "nodes <= 9, or shards_per_node <= 144"),
        (lambda: partition.shards(DIGITS, nodes=10, shards_per_node=0), "shards_per_node must be a whole number"),
        (lambda: partition.shards(DIGITS[:1435], nodes=10, min_size=143, shards_per_node=100), "fewer than min_size"),
        (lambda: partition.iid([], nodes=1), "labels must be a list of whole numbers"),
        (lambda: partition.iid([0.5, 1.0], nodes=1), "labels must be a list of whole numbers"),
        (lambda: partition.natural([]), "one node id per sample"),
        (lambda: partition.table([0, 5], [np.array([0])], classes=5), r"labels must lie in 0\.\.4, found 0\.\.5"),
        (lambda: partition.split([1, 2], train_fraction=0, seed=1, node=0), "train_fraction must be above 0"),
    ],
)
def test_the_other_partitions_report_invalid_requests(make: Callable[[], object], message: str) -> None:
    with pytest.raises(FedA2LError, match=message):
        make()


def test_split_rounds_down_and_depends_on_the_node() -> None:
    train, rest = partition.split(np.arange(100, 203), train_fraction=0.75, seed=1, node=4)
    assert (len(train), len(rest)) == (77, 26)
    assert sorted([*train, *rest]) == list(range(100, 203))
    again, _ = partition.split(np.arange(100, 203), train_fraction=0.75, seed=1, node=4)
    other, _ = partition.split(np.arange(100, 203), train_fraction=0.75, seed=1, node=5)
    assert np.array_equal(train, again)
    assert not np.array_equal(train, other)
    assert len(partition.split(np.arange(100), train_fraction=0.29, seed=1, node=0)[0]) == 29
    assert len(partition.split(np.arange(100), train_fraction=1, seed=1, node=0)[1]) == 0
