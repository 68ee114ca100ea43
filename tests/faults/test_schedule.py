"""Who hears whom with which weight, by hand on a few nodes."""

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


def test_those_who_are_there_share_the_weights_of_who_is_not(schedule):
    found = schedule("crash node=1 round=2")
    assert found.round(1).mixing is found.mixing  # nothing fails: the very same object
    assert found.round(2).present == (0, 2, 3, 4)
    assert weights_of(found, 0, 2) == {0: 10 / 60, 4: 50 / 60}
    assert weights_of(found, 2, 2) == {2: 30 / 70, 3: 40 / 70}
    assert weights_of(found, 3, 2) == {2: 30 / 120, 3: 40 / 120, 4: 50 / 120}
    assert weights_of(found, 1, 2) == {1: 1.0}
    assert found.round(2).received == (1, 0, 1, 2, 2)
    assert found.round(2).sent == (1, 0, 1, 2, 2)
    assert not found.round(2).alone


def test_uniform_weights_count_those_who_are_there(schedule):
    found = schedule("drop node=4 round=1 to=[0]", weights="uniform")
    assert weights_of(found, 0, 1) == {0: 1 / 2, 1: 1 / 2}
    assert weights_of(found, 3, 1) == {2: 1 / 3, 3: 1 / 3, 4: 1 / 3}


def test_metropolis_keeps_the_missing_share(schedule):
    found = schedule("crash node=1 round=1", name="star", weights="metropolis")
    # the middle has 4 neighbours: 1/5 for each of them, and the absent one's fifth is its own
    assert weights_of(found, 0, 1) == pytest.approx({0: 2 / 5, 2: 1 / 5, 3: 1 / 5, 4: 1 / 5})
    assert weights_of(found, 2, 1) == pytest.approx({0: 1 / 5, 2: 4 / 5})
    matrix = found.round(1).mixing.dense(1)
    torch.testing.assert_close(matrix, matrix.T)
    torch.testing.assert_close(matrix.sum(dim=0), torch.ones(5, dtype=torch.float64))


def test_a_node_that_hears_nobody_is_alone_and_an_isolated_one_is_not(schedule):
    found = schedule("drop node=[0,2] round=1 to=[1]")
    assert found.round(1).alone == {1}
    assert weights_of(found, 1, 1) == {1: 1.0}
    alone = schedule("crash node=0 round=1", name="isolated")
    assert alone.round(1).alone == frozenset()  # nothing that it hears is missing


def test_refused_messages_are_counted_and_were_sent(schedule):
    found = schedule("corrupt node=2 round=1", "drop node=0 round=1").round(1)
    assert found.rejected == (0, 1, 0, 1, 0)
    assert found.received == (2, 0, 2, 1, 1)
    assert found.sent == (0, 2, 2, 2, 2)
    assert found.alone == {1}


def test_a_late_message_is_left_out_by_all_and_its_sender_goes_on(schedule):
    found = schedule("delay node=2 round=1 seconds=3", head="deadline = 1").round(1)
    assert found.present == (0, 1, 2, 3, 4)
    assert found.received == (2, 1, 2, 1, 2)


def test_the_mean_of_a_comeback_by_hand(schedule):
    found = schedule("crash node=1 round=2", "restart node=1 round=4", "hang node=3 round=2")
    assert set(found.comebacks(3)) == {3}
    hung = found.comebacks(3)[3]  # itself, and both of its neighbours spoke in round 2
    assert (hung.kind, hung.ids) == ("with_own", (2, 3, 4))
    torch.testing.assert_close(hung.weights, torch.tensor([30, 40, 50], dtype=torch.float64) / 120)
    dead = found.comebacks(4)[1]
    assert (dead.kind, dead.ids) == ("without_own", (0, 2))
    torch.testing.assert_close(dead.weights, torch.tensor([1 / 4, 3 / 4], dtype=torch.float64))
    assert not found.comebacks(5)


@pytest.mark.parametrize(("weights", "push"), [("uniform", False), ("metropolis", False), ("uniform", True)])
def test_the_mean_of_a_comeback_has_weights_of_sum_one(schedule, weights, push):
    found = schedule("crash node=1 round=2", "restart node=1 round=3", name="star", weights=weights, push=push)
    assert found.comebacks(3)[1].ids == (0,)
    assert found.comebacks(3)[1].weights.tolist() == [1.0]
    middle = schedule("crash node=0 round=2", "restart node=0 round=3", name="star", weights=weights, push=push)
    torch.testing.assert_close(middle.comebacks(3)[0].weights, torch.full((4,), 1 / 4, dtype=torch.float64))


def test_messages_that_were_cut_off_are_not_taken_up(schedule):
    """A fault of round 2 holds for the messages of round 2, also for who asks for them at the start of round 3."""
    found = schedule("hang node=1 round=2", "drop node=0 round=2", "crash node=2 round=3")
    assert found.comebacks(3)[1].ids == (1, 2)  # 2 dies in round 3, but its message of round 2 is out
    nobody = schedule("hang node=1 round=2", "drop node=0 round=2", "crash node=2 round=2")
    assert not nobody.comebacks(3)  # it goes on from what it has


def test_who_never_spoke_takes_up_the_others_alone(schedule):
    found = schedule("hang node=1 round=1")
    assert found.comebacks(2)[1].ids == (0, 2)


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
