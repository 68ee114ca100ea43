"""Rounds with faults: which nodes change, what each mixes, the start of a returning node, and its history."""

from itertools import islice

import pytest
import torch
from torch import nn

from feda2l.round.exchange import mix_rows
from feda2l.simulate.checkpoint import tensors

SPEC = {
    "rounds": 12,
    "data": {"nodes": 5},
    "topology": {"name": "ring"},
    "rates": {"warmup_rounds": 1, "window": 3},
    "runtime": {"workers": 0},
}


@pytest.fixture
def faulty(start, plan):
    """`faulty(*faults, **sections)` returns a simulator with a fault plan, and its only simulation."""

    def make(*faults, head="", **sections):
        simulator = start({**SPEC, "faults": plan(*faults, head=head), **sections})
        return simulator, simulator.runs[0]

    return make


def play(simulator, rounds):
    """Train some rounds and return the last record."""
    return [completed[0].record for completed in islice(simulator.rounds(), rounds)][-1]


def rejoin(simulation):
    """Execute the start of the next round."""
    simulation.exchange.begin(simulation, simulation.exchange.present(simulation.state.round + 1))


def everything(simulation, node):
    """Return the whole state of a node, by name in a checkpoint."""
    state = {key: value[node] for key, value in tensors(simulation).items() if not key.startswith(("rates.", "round"))}
    own = {key: value for key, value in tensors(simulation).items() if key.startswith(f"rates.{node}.")}
    return {key: value.clone() for key, value in (state | own).items()}


def mean(simulation, node, rows, ids):
    """Return the mean of rows, weighted by the nodes' numbers of samples."""
    samples = simulation.plan.samples[list(ids)]
    return ((samples / samples.sum()).unsqueeze(1) * rows[list(ids)].double()).sum(dim=0)


def close(found, wanted):
    torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedyogi", "fedawa", "choco", "push_sum", "gradient_tracking"])
@pytest.mark.parametrize("fault", ["crash node=1 round=3", "hang node=1 round=3 rounds=3"])
def test_an_absent_node_does_not_change(algorithm, fault, faulty):
    training = {"momentum_state": "average"} | ({"momentum": 0.0} if algorithm == "gradient_tracking" else {})
    simulator, simulation = faulty(fault, algorithm={"name": algorithm}, training=training)
    play(simulator, 2)
    before, other = everything(simulation, 1), everything(simulation, 0)
    record = play(simulator, 3)
    after = everything(simulation, 1)
    assert before.keys() == after.keys()
    for key, value in before.items():
        torch.testing.assert_close(value, after[key], rtol=0, atol=0, equal_nan=True, msg=key)
    assert not torch.equal(other["model.fc1.weight"], everything(simulation, 0)["model.fc1.weight"])
    assert all(values[1] in (None, 0) for values in record["nodes"].values())
    assert record["nodes"]["accuracy"][1] is None
    assert record["layers"]["rate"][1] == record["layers"]["stability"][1] == [None] * len(simulation.plan.layers)


def test_means_include_present_nodes_only(faulty):
    simulator, simulation = faulty("crash node=1 round=2")
    record = play(simulator, 2)
    there = [0, 2, 3, 4]
    base = simulation.state.population.base[there].double()
    average = base.mean(dim=0)
    close(simulation.state.population.mean[0], average)
    assert record["disagreement"] == pytest.approx(float((base - average).square().sum(dim=1).mean()), rel=1e-5)
    for name in ("accuracy", "train_loss"):
        assert record[name] == pytest.approx(sum(record["nodes"][name][node] for node in there) / 4)
    assert record["accuracy_worst"] == min(record["nodes"]["accuracy"][node] for node in there)
    assert record["multiplier_min"] <= record["multiplier_max"]


def test_each_node_mixes_the_messages_it_received(faulty):
    simulator, simulation = faulty(
        "crash node=1 round=2", "drop node=4 round=2 to=[3]", "corrupt node=3 round=2 to=[4]"
    )
    record = play(simulator, 2)
    trained, base = simulation.state.population.trained, simulation.state.population.base
    for node, near in ((0, (0, 4)), (2, (2, 3)), (3, (2, 3)), (4, (0, 4))):
        close(base[node], mean(simulation, node, trained, near))
    assert record["nodes"]["received"] == [1, None, 1, 1, 1]
    assert record["nodes"]["rejected"] == [0, None, 0, 0, 1]
    assert record["nodes"]["bytes_sent"] == [simulation.message * count for count in (1, 0, 1, 2, 1)]


def test_a_split_separates_the_network_and_ends(faulty):
    simulator, simulation = faulty("split round=2 rounds=2 sides=[[0,1],[2,3,4]]", topology={"name": "full"})
    assert play(simulator, 1)["disagreement"] == 0
    play(simulator, 2)
    assert simulation.compared.same == [0, 0, 2, 2, 2]
    assert play(simulator, 1)["disagreement"] == 0


def test_a_late_message_is_ignored_and_its_sender_continues(faulty):
    simulator, simulation = faulty("delay node=2 round=1 seconds=3", head="deadline = 1")
    play(simulator, 1)
    trained, base = simulation.state.population.trained, simulation.state.population.base
    close(base[2], mean(simulation, 2, trained, (1, 2, 3)))
    close(base[1], mean(simulation, 1, trained, (0, 1)))


def test_a_restart_adopts_the_neighbours_mean_and_keeps_other_state(faulty):
    simulator, simulation = faulty("crash node=1 round=3", "restart node=1 round=5")
    play(simulator, 2)
    before = everything(simulation, 1)
    play(simulator, 2)
    rejoin(simulation)  # the round also does this, with the same result
    close(simulation.state.population.base[1], mean(simulation, 1, simulation.state.population.trained, (0, 2)))
    after = everything(simulation, 1)
    for key in before:
        kept = not key.startswith("model.")
        assert torch.equal(before[key], after[key]) == kept, key
    assert play(simulator, 1)["nodes"]["received"] == [2, 2, 2, 2, 2]
    assert len(simulation.state.rates.rates_of[1].history.divergence) == 3  # rounds 1, 2 and 5


def test_a_node_after_a_hang_includes_its_own_message(faulty):
    simulator, simulation = faulty("hang node=1 round=3 rounds=2")
    play(simulator, 2)
    own = simulation.state.population.trained[1].clone()
    play(simulator, 2)
    rejoin(simulation)
    rows = simulation.state.population.trained.clone()
    rows[1] = own
    close(simulation.state.population.base[1], mean(simulation, 1, rows, (0, 1, 2)))


def test_a_rejoin_without_faults_repeats_the_average(faulty):
    """With plain averaging the mean of the messages equals the result of mixing."""
    simulator, simulation = faulty("rejoin node=3 round=3")
    play(simulator, 2)
    before = simulation.state.population.base.clone()
    rejoin(simulation)
    close(simulation.state.population.base, before)


def test_a_return_after_gossip_uses_the_last_exchange(faulty):
    simulator, simulation = faulty(
        "crash node=1 round=2", "restart node=1 round=3", algorithm={"name": "dfedsam", "gossip_steps": 3}
    )
    play(simulator, 2)
    network, trained = simulation.exchange.schedule.round(2).mixing, simulation.state.population.trained
    once = mix_rows(network, 2, {"model": trained}, {})
    sent = mix_rows(network, 2, once, {})["model"]
    rejoin(simulation)
    assert simulation.plan.mixing.weights == "samples"
    close(simulation.state.population.base[1], mean(simulation, 1, sent, (0, 2)))


class Normed(nn.Sequential):
    """A digits model with BatchNorm, whose statistics are exchanged."""

    def __init__(self, classes: int, input: tuple[int, ...]) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes))


@pytest.mark.parametrize("buffers", ["average", "local", "recalibrate"])
def test_exchanged_statistics_return_with_the_model(buffers, faulty):
    simulator, simulation = faulty(
        "crash node=1 round=3",
        "restart node=1 round=5",
        "hang node=3 round=4",
        model={"name": f"{__name__}:Normed"},
        algorithm={"buffers": buffers},
    )
    play(simulator, 2)
    frozen = everything(simulation, 1)
    play(simulator, 2)
    assert torch.equal(everything(simulation, 1)["buffers.2.running_var"], frozen["buffers.2.running_var"])
    sent = dict(simulation.exchange.messages)
    rejoin(simulation)
    found = simulation.state.population.buffers["2.running_var"][1]
    if buffers == "average":
        close(found, mean(simulation, 1, sent["buffers.2.running_var"], (0, 2)))
    else:
        assert torch.equal(found, frozen["buffers.2.running_var"])
    play(simulator, 1)
    assert simulation.non_finite is None


def test_a_node_without_messages_keeps_its_rate_and_history(faulty):
    """Without mixing, FedA2L adds no history entry and keeps the last learning rate."""
    simulator, simulation = faulty("drop node=[0,2] round=4 rounds=2 to=[1]")
    play(simulator, 3)
    own = simulation.state.rates.rates_of[1]
    rates, history = own.rates.clone(), own.history.divergence.clone()
    record = play(simulator, 2)
    assert record["nodes"]["received"][1] == 0
    assert record["layers"]["rate"][1] == rates[0].tolist()
    assert record["layers"]["stability"][1] == [None] * len(simulation.plan.layers)
    assert None not in record["layers"]["divergence"][1]
    assert torch.equal(own.rates, rates)
    assert torch.equal(own.history.divergence, history)
    # the node still trains: its aggregated state is its trained state
    assert torch.equal(simulation.state.population.base[1], simulation.state.population.trained[1])
    assert not torch.equal(simulation.state.rates.rates_of[0].history.divergence, history)
    play(simulator, 1)
    assert torch.equal(own.history.divergence[:-1], history[1:])
    assert not torch.equal(own.rates, rates)


def test_a_schedule_without_messages_follows_the_round(faulty):
    simulator, simulation = faulty(
        "drop node=[0,2] round=2 to=[1]",
        "crash node=3 round=2",
        "restart node=3 round=4",
        rates={"name": "exponential", "gamma": 0.5},
    )
    assert play(simulator, 3)["layers"]["rate"][1] == [0.01 / 4] * len(simulation.plan.layers)
    assert play(simulator, 1)["layers"]["rate"][3] == [0.01 / 8] * len(simulation.plan.layers)


def test_scheduled_momentum_uses_present_nodes(faulty):
    simulator, simulation = faulty("crash node=0 round=2", rates={"name": "one_cycle", "horizon": 12})
    play(simulator, 4)
    calm = faulty("crash node=0 round=12", rates={"name": "one_cycle", "horizon": 12})
    play(calm[0], 4)
    assert simulation.momentum(simulation.exchange.present(5)) == calm[1].momentum(range(5))


def test_isolated_nodes_adapt_as_without_faults(faulty):
    simulator, simulation = faulty("crash node=0 round=3", topology={"name": "isolated"})
    play(simulator, 4)
    assert len(simulation.state.rates.rates_of[1].history.divergence) == 3
    assert len(simulation.state.rates.rates_of[0].history.divergence) == 2
