"""Messages and weights under faults, compared with hand calculations for a few nodes."""

import pytest
import torch

from feda2l.faults import FaultPlan
from feda2l.faults.schedule import PresenceSchedule
from feda2l.topology import build, build_mixing

SAMPLES = [10, 20, 30, 40, 50]


@pytest.fixture
def schedule(plan):
    def make(*faults, name="ring", weights="samples", nodes=5, push=False, head=""):
        mixing = build_mixing(build(name, nodes), weights, SAMPLES[:nodes], push=push)
        return PresenceSchedule(FaultPlan.load(plan(*faults, head=head), nodes), mixing, SAMPLES[:nodes])

    return make


def weights_of(schedule, node, round):
    mixing = schedule.round(round).mixing
    return dict(zip(mixing.row(node, round)[0], mixing.given(node, round).tolist(), strict=True))


def test_present_nodes_share_the_weights_of_absent_nodes(schedule):
    found = schedule("crash node=1 round=2")
    assert found.round(1).mixing is found.mixing  # without faults it is the same object
    assert found.round(2).present == (0, 2, 3, 4)
    assert weights_of(found, 0, 2) == {0: 10 / 60, 4: 50 / 60}
    assert weights_of(found, 2, 2) == {2: 30 / 70, 3: 40 / 70}
    assert weights_of(found, 3, 2) == {2: 30 / 120, 3: 40 / 120, 4: 50 / 120}
    assert weights_of(found, 1, 2) == {1: 1.0}
    assert found.round(2).received == (1, 0, 1, 2, 2)
    assert found.round(2).sent == (1, 0, 1, 2, 2)
    assert not found.round(2).alone


def test_uniform_weights_count_present_nodes(schedule):
    found = schedule("drop node=4 round=1 to=[0]", weights="uniform")
    assert weights_of(found, 0, 1) == {0: 1 / 2, 1: 1 / 2}
    assert weights_of(found, 3, 1) == {2: 1 / 3, 3: 1 / 3, 4: 1 / 3}


def test_metropolis_adds_missing_weights_to_the_node_itself(schedule):
    found = schedule("crash node=1 round=1", name="star", weights="metropolis")
    # the centre has 4 neighbours with weight 1/5 each; the absent one's fifth is added to its own weight
    assert weights_of(found, 0, 1) == pytest.approx({0: 2 / 5, 2: 1 / 5, 3: 1 / 5, 4: 1 / 5})
    assert weights_of(found, 2, 1) == pytest.approx({0: 1 / 5, 2: 4 / 5})
    matrix = found.round(1).mixing.dense(1)
    torch.testing.assert_close(matrix, matrix.T)
    torch.testing.assert_close(matrix.sum(dim=0), torch.ones(5, dtype=torch.float64))


def test_a_node_without_messages_is_alone_but_an_isolated_node_is_not(schedule):
    found = schedule("drop node=[0,2] round=1 to=[1]")
    assert found.round(1).alone == {1}
    assert weights_of(found, 1, 1) == {1: 1.0}
    alone = schedule("crash node=0 round=1", name="isolated")
    assert alone.round(1).alone == frozenset()  # no message is missing


def test_rejected_messages_count_as_sent(schedule):
    found = schedule("corrupt node=2 round=1", "drop node=0 round=1").round(1)
    assert found.rejected == (0, 1, 0, 1, 0)
    assert found.received == (2, 0, 2, 1, 1)
    assert found.sent == (0, 2, 2, 2, 2)
    assert found.alone == {1}


def test_a_late_message_is_ignored_by_all_receivers(schedule):
    found = schedule("delay node=2 round=1 seconds=3", head="deadline = 1").round(1)
    assert found.present == (0, 1, 2, 3, 4)
    assert found.received == (2, 1, 2, 1, 2)


def test_the_mean_of_a_return_matches_a_hand_calculation(schedule):
    found = schedule("crash node=1 round=2", "restart node=1 round=4", "hang node=3 round=2")
    assert set(found.rejoining_nodes(3)) == {3}
    hung = found.rejoining_nodes(3)[3]  # its own message and those of both neighbours of round 2
    assert (hung.kind, hung.ids) == ("with_own", (2, 3, 4))
    torch.testing.assert_close(hung.weights, torch.tensor([30, 40, 50], dtype=torch.float64) / 120)
    dead = found.rejoining_nodes(4)[1]
    assert (dead.kind, dead.ids) == ("without_own", (0, 2))
    torch.testing.assert_close(dead.weights, torch.tensor([1 / 4, 3 / 4], dtype=torch.float64))
    assert not found.rejoining_nodes(5)


@pytest.mark.parametrize(("weights", "push"), [("uniform", False), ("metropolis", False), ("uniform", True)])
def test_the_weights_of_a_return_sum_to_one(schedule, weights, push):
    found = schedule("crash node=1 round=2", "restart node=1 round=3", name="star", weights=weights, push=push)
    assert found.rejoining_nodes(3)[1].ids == (0,)
    assert found.rejoining_nodes(3)[1].weights.tolist() == [1.0]
    middle = schedule("crash node=0 round=2", "restart node=0 round=3", name="star", weights=weights, push=push)
    torch.testing.assert_close(middle.rejoining_nodes(3)[0].weights, torch.full((4,), 1 / 4, dtype=torch.float64))


def test_blocked_messages_are_not_used_on_return(schedule):
    """A fault of round 2 also blocks the messages of round 2 that a node requests at the start of round 3."""
    found = schedule("hang node=1 round=2", "drop node=0 round=2", "crash node=2 round=3")
    assert found.rejoining_nodes(3)[1].ids == (1, 2)  # 2 dies in round 3, but has published its message of round 2
    nobody = schedule("hang node=1 round=2", "drop node=0 round=2", "crash node=2 round=2")
    assert not nobody.rejoining_nodes(3)  # the node continues from its own state


def test_a_node_that_never_published_uses_only_other_messages(schedule):
    found = schedule("hang node=1 round=1")
    assert found.rejoining_nodes(2)[1].ids == (0, 2)


def test_a_large_network_stays_sparse(plan):
    nodes = 20_000
    mixing = build_mixing(build("ring", nodes), "metropolis", [1] * nodes)
    found = PresenceSchedule(FaultPlan.load(plan("crash node=7 round=1"), nodes), mixing, [1] * nodes).round(1)
    assert found.received[6] == 1
    values = torch.randn(nodes, 2)
    out = torch.empty_like(values)
    found.mixing.apply(values, 1, out)
    torch.testing.assert_close(out[6], (values[5] + 2 * values[6]) / 3)
    torch.testing.assert_close(out[7], values[7])
