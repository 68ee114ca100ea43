"""Mixing: bit-exact results, weights by hand, message counts and errors."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from feda2l.errors import FedA2LError
from feda2l.topology import Mixing, build, build_mixing


def counts(nodes: int, seed: int = 0) -> list[int]:
    return [int(n) for n in np.random.default_rng(seed).integers(1, 1000, nodes)]


def mixing(name: str, nodes: int, weights: str = "samples", **options: float) -> Mixing:
    return build_mixing(build(name, nodes, **options), weights, counts(nodes))  # type: ignore[arg-type]


def literal(mixing: Mixing, trained: NDArray[np.float32], round: int) -> NDArray[np.float32]:
    """The definition, with one float32 operation at a time."""
    rows = []
    for i in range(len(trained)):
        ids, weights = mixing.row(i, round)
        assert ids == tuple(sorted((i, *mixing.topology.neighbours(i, round))))
        total = None
        for j, weight in zip(ids, weights.numpy(), strict=True):
            product = trained[j] * weight
            total = product if total is None else total + product
        rows.append(total)
    return np.stack(rows)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


SHAPES = [
    *itertools.product(["ring", "star", "full", "one_peer_exponential"], [1, 2, 10], [1, 7, 8, 65, 1003]),
    *itertools.product(["tree", "random_out", "isolated"], [12], [0, 1, 31, 64, 4097]),
    ("ring", 10, 300_001),  # a row larger than a tile
    ("star", 5, 300_001),
    ("tree", 301, 1001),  # many tiles, rows of unequal length
    ("ring", 300, 2048),
    ("k_regular", 2000, 17),
    ("full", 40, 20_001),
]


@pytest.mark.parametrize(("name", "nodes", "columns"), SHAPES)
def test_mixing_equals_the_definition_bit_by_bit(name: str, nodes: int, columns: int, threads: int) -> None:
    mix = mixing(name, nodes)
    trained = np.random.default_rng(columns).standard_normal((nodes, columns)).astype(np.float32)
    trained[:, ::5] *= 0  # +0 and -0: the sign of zero must match too
    for round in range(1, len(mix.topology.period) + 2):
        out = torch.full((nodes, columns), math.nan)
        mix.apply(torch.from_numpy(trained), round, out)
        assert same_bits(out, torch.from_numpy(literal(mix, trained, round)))


@given(nodes=st.integers(2, 30), columns=st.integers(1, 70), p=st.floats(0.4, 1.0), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("weights", ["samples", "uniform", "metropolis"])
def test_mixing_on_random_graphs_equals_the_definition(
    weights: str, nodes: int, columns: int, p: float, seed: int
) -> None:
    mix = build_mixing(build("erdos_renyi", nodes, p=p, seed=seed), weights, counts(nodes, seed))
    trained = np.random.default_rng(seed).standard_normal((nodes, columns)).astype(np.float32)
    out = torch.empty(nodes, columns)
    mix.apply(torch.from_numpy(trained), 1, out)
    assert same_bits(out, torch.from_numpy(literal(mix, trained, 1)))
    W = mix.dense()
    assert torch.allclose(W.sum(1), torch.ones(nodes, dtype=torch.float64), rtol=0, atol=1e-14)
    if weights == "metropolis":
        assert torch.allclose(W, W.T, rtol=0, atol=1e-15)
        assert torch.allclose(out.mean(0), torch.from_numpy(trained).mean(0), atol=1e-5)  # the mean is preserved


def test_other_dtypes_and_strides() -> None:
    mix = mixing("tree", 9)
    trained = torch.randn(9, 40, generator=torch.Generator().manual_seed(1))
    out = torch.empty(9, 40, dtype=torch.float64)
    mix.apply(trained.double(), 1, out)
    assert torch.allclose(out, mix.dense() @ trained.double(), rtol=0, atol=1e-14)
    half = torch.empty(9, 40, dtype=torch.bfloat16)
    mix.apply(trained.bfloat16(), 1, half)
    assert torch.allclose(half.double(), out, atol=0.1)
    for name in ("tree", "ring"):
        expected = torch.empty(9, 33)
        mixing(name, 9).apply(trained[:, 3:36].contiguous(), 1, expected)
        wide = torch.zeros(9, 50)
        mixing(name, 9).apply(trained[:, 3:36].requires_grad_(), 1, wide[:, 10:43])
        assert same_bits(wide[:, 10:43].contiguous(), expected)
        assert wide[:, :10].count_nonzero() + wide[:, 43:].count_nonzero() == 0


def test_nan_of_a_node_reaches_only_its_neighbours() -> None:
    trained, out = torch.ones(8, 5), torch.empty(8, 5)
    trained[2] = math.nan
    mixing("ring", 8).apply(trained, 1, out)
    assert out.isnan().any(1).nonzero().ravel().tolist() == [1, 2, 3]


def test_equal_rows_are_computed_once() -> None:
    for weights in ("samples", "uniform", "metropolis"):
        full = mixing("full", 49, weights)  # 49 x (1 / 49) is not 1 in floating point
        assert full.groups().tolist() == [0] * 49
    assert mixing("ring", 3).groups().tolist() == [0, 0, 0]
    assert mixing("ring", 5).groups().tolist() == [0, 1, 2, 3, 4]
    identical_runs = build_mixing(build("star", 3), "uniform", [1, 1, 1])
    assert identical_runs.groups().tolist() == [0, 1, 2]


def test_invalid_matrices_are_rejected() -> None:
    mix, good = mixing("ring", 4), torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"\[4, columns\], got torch.float32 \[5, 3\]"):
        mix.apply(torch.zeros(5, 3), 1, good)
    with pytest.raises(ValueError, match="needs floats"):
        mix.apply(good.long(), 1, good)
    with pytest.raises(ValueError, match="shape, dtype and device"):
        mix.apply(good, 1, torch.zeros(4, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="separate memory"):
        mix.apply(good, 1, good)
    both = torch.zeros(7, 3)
    with pytest.raises(ValueError, match="separate memory"):
        mix.apply(both[:4], 1, both[3:])
    states = torch.ones(8, 3)  # disjoint parts of one buffer are allowed
    mix.apply(states[:4], 1, states[4:])


def test_weights_by_hand() -> None:
    star = build("star", 3)
    third, half = 1 / 3, 1 / 2
    by_hand = {
        "samples": [[1 / 6, 2 / 6, 3 / 6], [1 / 3, 2 / 3, 0], [1 / 4, 0, 3 / 4]],
        "uniform": [[third, third, third], [half, half, 0], [half, 0, half]],
        "metropolis": [[third, third, third], [third, 2 * third, 0], [third, 0, 2 * third]],
    }
    for weights, expected in by_hand.items():
        mix = build_mixing(star, weights, [1, 2, 3])
        assert torch.allclose(mix.dense(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15)
    ids, weights32 = build_mixing(star, "samples", [1, 2, 3]).row(2)
    assert ids == (0, 2)
    assert torch.equal(weights32, torch.tensor([0.25, 0.75]))


def test_messages_counts_receivers_per_node() -> None:
    assert mixing("star", 4).messages().tolist() == [3, 1, 1, 1]
    assert mixing("isolated", 3).messages().tolist() == [0, 0, 0]
    assert mixing("random_out", 12, k=5).messages().tolist() == [5] * 12
    assert mixing("one_peer_exponential", 8).messages(2).tolist() == [1] * 8


def test_invalid_weights_are_reported() -> None:
    with pytest.raises(FedA2LError, match=r"topology\.weights = 'sample'.*did you mean 'samples'"):
        mixing("ring", 4, "sample")
    with pytest.raises(FedA2LError, match=r'topology\.weights = "metropolis".*"exponential" is directed'):
        mixing("exponential", 6, "metropolis")
    with pytest.raises(FedA2LError, match=r"3 entries for data\.nodes = 4"):
        build_mixing(build("ring", 4), "uniform", [1, 1, 1])
    with pytest.raises(FedA2LError, match="node 2 has 0 training samples"):
        build_mixing(build("ring", 4), "samples", [1, 1, 0, 1])
    build_mixing(build("ring", 4), "uniform", [1, 1, 0, 1])  # sample counts do not matter here
