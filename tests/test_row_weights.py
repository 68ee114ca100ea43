"""One row of W as a peer computes it.

With all neighbours present it equals the simulator's row bit by bit. With some absent the weights still sum to one.
"""

import pytest
import torch

from feda2l.topology import build, build_mixing
from feda2l.topology.row import MixingFacts, row_weights

GRAPHS = ("full", "ring", "star", "k_regular", "grid", "directed_ring", "random_out", "erdos_renyi")


def _mixing_facts(graph, samples):
    neighbours = graph.period[0]
    receivers = [sum(node in row for row in neighbours) for node in range(graph.nodes)]
    return [MixingFacts(node, samples[node], len(neighbours[node]), receivers[node]) for node in range(graph.nodes)]


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("weights", ["samples", "uniform", "metropolis"])
@pytest.mark.parametrize("push", [False, True])
def test_with_all_nodes_present_the_row_equals_the_simulators_row(name, weights, push):
    graph = build(name, 12, k=4, p=0.4, seed=3)
    if graph.directed and weights == "metropolis":
        pytest.skip("metropolis needs an undirected graph")
    samples = [40 + 37 * node % 101 for node in range(12)]
    mixing = build_mixing(graph, weights, samples, push=push)
    mixing_facts = _mixing_facts(graph, samples)
    for node in range(12):
        ids, _ = mixing.row(node)
        actual = row_weights(weights, node, [mixing_facts[j] for j in ids], ids, push=push)
        assert torch.equal(actual, mixing.given(node, 1))


@pytest.mark.parametrize("weights", ["samples", "uniform", "metropolis"])
def test_with_absent_nodes_the_weights_still_sum_to_one(weights):
    graph, samples = build("star", 6), [10, 20, 30, 40, 50, 60]
    mixing_facts = _mixing_facts(graph, samples)
    actual = row_weights(weights, 0, mixing_facts, {0, 2, 5})
    by_hand = {
        "samples": [0.1, 0.3, 0.6],
        "uniform": [1 / 3] * 3,
        "metropolis": [4 / 6, 1 / 6, 1 / 6],  # 1 / (1 + max(5, 1)) per present neighbour; the node keeps the rest
    }
    torch.testing.assert_close(actual, torch.tensor(by_hand[weights], dtype=torch.float64), rtol=0, atol=1e-15)


def test_an_isolated_node_keeps_its_model():
    mixing_facts = _mixing_facts(build("ring", 4), [5, 6, 7, 8])
    for weights in ("samples", "uniform", "metropolis"):
        assert row_weights(weights, 1, [mixing_facts[0], mixing_facts[1], mixing_facts[2]], {1}).tolist() == [1.0]


def test_push_keeps_the_share_of_an_absent_node():
    mixing_facts = _mixing_facts(build("directed_ring", 4), [1, 1, 1, 1])
    assert row_weights("uniform", 1, [mixing_facts[0], mixing_facts[1]], {1}, push=True).tolist() == [1.0]
    mixing_facts = _mixing_facts(build("star", 4), [1, 1, 1, 1])
    assert row_weights("uniform", 0, mixing_facts, {0, 1, 3}, push=True).tolist() == [0.5, 0.5, 0.5]
    assert row_weights("uniform", 1, mixing_facts[:2], {0, 1}, push=True).tolist() == [0.25, 0.5]


def test_push_loses_no_mass_if_absence_is_mutual():
    graph = build("erdos_renyi", 12, p=0.4, seed=3)
    mixing_facts, present = _mixing_facts(graph, [1] * 12), set(range(2, 12))
    given = torch.zeros(12, dtype=torch.float64)
    for node in present:
        closed = sorted([node, *graph.neighbours(node)])
        ids = [j for j in closed if j in present]
        given[ids] += row_weights("uniform", node, [mixing_facts[j] for j in closed], present, push=True)
    torch.testing.assert_close(given[2:], torch.ones(10, dtype=torch.float64))
