"""One row of W as a peer computes it: the simulator's bits when all are there, a true average when some are not."""

import pytest
import torch

from feda2l.topology import build, build_mixing
from feda2l.topology.row import MixingFacts, row_weights

GRAPHS = ("full", "ring", "star", "k_regular", "grid", "directed_ring", "random_out", "erdos_renyi")


def _mixing_facts(graph, samples):
    near = graph.period[0]
    receivers = [sum(node in row for row in near) for node in range(graph.nodes)]
    return [MixingFacts(node, samples[node], len(near[node]), receivers[node]) for node in range(graph.nodes)]


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("weights", ["samples", "uniform", "metropolis"])
@pytest.mark.parametrize("push", [False, True])
def test_with_all_present_it_is_the_row_of_the_mixing(name, weights, push):
    graph = build(name, 12, k=4, p=0.4, seed=3)
    if graph.directed and weights == "metropolis":
        pytest.skip("metropolis needs an undirected graph")
    samples = [40 + 37 * node % 101 for node in range(12)]
    mixing = build_mixing(graph, weights, samples, push=push)
    mixing_facts = _mixing_facts(graph, samples)
    for node in range(12):
        ids, _ = mixing.row(node)
        found = row_weights(weights, node, [mixing_facts[j] for j in ids], ids, push=push)
        assert torch.equal(found, mixing.given(node, 1))


@pytest.mark.parametrize("weights", ["samples", "uniform", "metropolis"])
def test_without_some_the_rest_still_sums_to_one(weights):
    graph, samples = build("star", 6), [10, 20, 30, 40, 50, 60]
    mixing_facts = _mixing_facts(graph, samples)
    found = row_weights(weights, 0, mixing_facts, {0, 2, 5})
    by_hand = {
        "samples": [0.1, 0.3, 0.6],
        "uniform": [1 / 3] * 3,
        "metropolis": [4 / 6, 1 / 6, 1 / 6],  # 1 / (1 + max(5, 1)) for each that is there, the rest its own
    }
    torch.testing.assert_close(found, torch.tensor(by_hand[weights], dtype=torch.float64), rtol=0, atol=1e-15)


def test_a_node_alone_keeps_its_model():
    mixing_facts = _mixing_facts(build("ring", 4), [5, 6, 7, 8])
    for weights in ("samples", "uniform", "metropolis"):
        assert row_weights(weights, 1, [mixing_facts[0], mixing_facts[1], mixing_facts[2]], {1}).tolist() == [1.0]


def test_push_keeps_what_an_absent_node_would_have_got():
    mixing_facts = _mixing_facts(build("directed_ring", 4), [1, 1, 1, 1])
    assert row_weights("uniform", 1, [mixing_facts[0], mixing_facts[1]], {1}, push=True).tolist() == [1.0]
    mixing_facts = _mixing_facts(build("star", 4), [1, 1, 1, 1])
    assert row_weights("uniform", 0, mixing_facts, {0, 1, 3}, push=True).tolist() == [0.5, 0.5, 0.5]
    assert row_weights("uniform", 1, mixing_facts[:2], {0, 1}, push=True).tolist() == [0.25, 0.5]


def test_push_loses_no_mass_where_absence_is_mutual():
    graph = build("erdos_renyi", 12, p=0.4, seed=3)
    mixing_facts, there = _mixing_facts(graph, [1] * 12), set(range(2, 12))
    given = torch.zeros(12, dtype=torch.float64)
    for node in there:
        closed = sorted([node, *graph.neighbours(node)])
        ids = [j for j in closed if j in there]
        given[ids] += row_weights("uniform", node, [mixing_facts[j] for j in closed], there, push=True)
    torch.testing.assert_close(given[2:], torch.ones(10, dtype=torch.float64))
