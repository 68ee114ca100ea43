"""The spectral gap, phi and stationary weights, against closed forms and dense eigenvalues."""

import math

import numpy as np
import pytest
import torch

from feda2l.topology import Report, build, build_mixing


def report(name: str, nodes: int, weights: str, samples: list[int] | None = None, **options: float) -> Report:
    topology = build(name, nodes, **options)  # type: ignore[arg-type]
    return build_mixing(topology, weights, samples or [1] * nodes).report()


def counts(nodes: int) -> list[int]:
    return [int(n) for n in np.random.default_rng(3).integers(40, 100, nodes)]


@pytest.mark.parametrize("nodes", [3, 4, 5, 10, 200, 201, 500])
@pytest.mark.parametrize("weights", ["uniform", "metropolis"])
def test_ring_closed_form(nodes: int, weights: str) -> None:
    result = report("ring", nodes, weights)
    # eigenvalues (1 + 2 cos(2 pi j / n)) / 3
    second = max(abs(1 + 2 * math.cos(2 * math.pi * j / nodes)) / 3 for j in range(1, nodes))
    assert result["spectral_gap"] == pytest.approx(1 - second, abs=1e-9)
    # A3: ||W - J|| <= 1 - phi
    assert result["phi"] == pytest.approx(1 - second, abs=1e-9)
    assert result["mixing_norm"] == pytest.approx(second, abs=1e-9)
    assert result["symmetric"]
    assert result["doubly_stochastic"]
    assert result["stationary"] == pytest.approx([1 / nodes] * nodes)
    assert result["edges"] == nodes


@pytest.mark.parametrize("nodes", [8, 512])
def test_other_closed_forms(nodes: int) -> None:
    bits = nodes.bit_length() - 1
    assert report("full", nodes, "samples", counts(nodes))["spectral_gap"] == pytest.approx(1)
    assert report("hypercube", nodes, "uniform")["spectral_gap"] == pytest.approx(2 / (bits + 1))
    # metropolis on a star: leaves keep 1 - 1/n, so n - 2 eigenvalues are 1 - 1/n and one is 0
    assert report("star", nodes, "metropolis")["spectral_gap"] == pytest.approx(1 / nodes)
    # one period of pairwise averaging with hops 1, 2, 4, ... gives the exact average of 2^m nodes
    exact = report("one_peer_exponential", nodes, "uniform")
    assert exact["spectral_gap"] == pytest.approx(1)
    assert exact["doubly_stochastic"]
    assert not exact["symmetric"]
    assert exact["phi"] is None
    assert exact["mixing_norm"] is None
    assert exact["edges"] == nodes


def test_phi_follows_the_definition_of_the_paper() -> None:
    full = report("full", 10, "metropolis")
    assert full["phi"] == pytest.approx(1)
    assert full["mixing_norm"] == pytest.approx(0, abs=1e-12)
    ring = report("ring", 10, "metropolis")
    assert ring["phi"] == pytest.approx(0.127, abs=5e-4)
    W = build_mixing(build("ring", 10), "metropolis", [1] * 10).dense()
    assert ring["mixing_norm"] == pytest.approx(torch.linalg.matrix_norm(W - 0.1, 2).item())


def test_directed_ring_closed_form() -> None:
    # eigenvalues (1 + exp(2 pi i j / n)) / 2: |.| = cos(pi / n) for j = 1
    assert report("directed_ring", 7, "uniform")["spectral_gap"] == pytest.approx(1 - math.cos(math.pi / 7))


def test_one_node_and_isolated_nodes() -> None:
    one = report("ring", 1, "samples")
    assert one["spectral_gap"] == 1
    assert one["phi"] == 1
    assert one["stationary"] == [1.0]
    isolated = report("isolated", 5, "samples")
    assert isolated["spectral_gap"] == 0
    assert isolated["phi"] == 0
    assert isolated["mixing_norm"] == 1
    assert isolated["stationary"] is None
    assert isolated["edges"] == 0
    pushed = build_mixing(build("isolated", 5), "uniform", [1] * 5, push=True).report()
    assert pushed["spectral_gap"] == 0
    assert pushed["stationary"] is None


def test_stationary_by_hand() -> None:
    # pi_i is proportional to n_i x (sum of n over the closed neighbourhood): 1 x 6, 2 x 3, 3 x 4
    assert report("star", 3, "samples", [1, 2, 3])["stationary"] == pytest.approx([6 / 24, 6 / 24, 12 / 24])
    assert report("star", 3, "uniform")["stationary"] == pytest.approx([3 / 7, 2 / 7, 2 / 7])
    assert report("full", 3, "samples", [1, 2, 3])["stationary"] == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert report("star", 3, "samples", [1, 2, 3])["phi"] is None


@pytest.mark.parametrize("nodes", [16, 260])
@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("tree", "samples"),
        ("grid", "uniform"),
        ("random_out", "samples"),
        ("exponential", "samples"),
        ("one_peer_exponential", "samples"),
        ("erdos_renyi", "metropolis"),
        ("k_regular", "samples"),
    ],
)
def test_agrees_with_the_dense_spectrum_of_the_product(name: str, weights: str, nodes: int) -> None:
    mixing = build_mixing(build(name, nodes, k=10), weights, counts(nodes))
    product = torch.eye(nodes, dtype=torch.float64)
    for round in range(1, len(mixing.topology.period) + 1):
        product = mixing.dense(round) @ product
    magnitudes = torch.linalg.eigvals(product).abs().sort(descending=True).values
    result = mixing.report()
    assert result["spectral_gap"] == pytest.approx(1 - magnitudes[1].item(), abs=1e-7)
    assert result["spectral_gap"] is not None
    assert result["spectral_gap"] > 0
    assert result["stationary"] is not None
    pi = torch.tensor(result["stationary"], dtype=torch.float64)
    assert pi.sum().item() == pytest.approx(1)
    assert (pi > 0).all()
    assert torch.allclose(pi @ product, pi, rtol=0, atol=1e-12)


def test_a_slowly_mixing_directed_graph_has_stationary_weights() -> None:
    samples = counts(1500)
    result = report("directed_ring", 1500, "samples", samples)
    # the flow pi_i W_{i, i-1} = pi_i n_{i-1} / (n_{i-1} + n_i) is the same around the ring
    n = np.array(samples)
    expected = (n + np.roll(n, 1)) / np.roll(n, 1)
    assert result["stationary"] == pytest.approx((expected / expected.sum()).tolist(), rel=1e-6)
    assert result["spectral_gap"] is None or 0 < result["spectral_gap"] < 1e-4


def test_a_gap_that_arpack_cannot_resolve_is_none_not_wrong() -> None:
    gap = report("ring", 10_000, "uniform")["spectral_gap"]
    assert gap is None or gap == pytest.approx(2 / 3 * (1 - math.cos(2 * math.pi / 10_000)), rel=1e-2)
