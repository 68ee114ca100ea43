"""The round of one node when neighbours are absent, disappear or are ahead, compared with hand calculations."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import configs
from torch import Tensor

from feda2l.equations import Signals
from feda2l.peer.config import DeadlineConfig, LimitsConfig, NeighbourConfig
from feda2l.peer.exchange import OverNetwork
from feda2l.peer.messenger import Facts
from feda2l.peer.neighbours import Neighbour
from feda2l.peer.node import assemble_node
from feda2l.records.run_folder import RunFolder
from feda2l.round.adapt import Adapted, adapt, first_non_finite
from feda2l.round.aggregate import aggregate
from feda2l.round.run import LiveRun
from feda2l.runs.assemble import populate
from feda2l.wire.message import PROTOCOL, Head

SPEC: dict[str, Any] = {
    "name": "absent",
    "rounds": 50,
    "data": {"name": "digits", "nodes": 4},
    "topology": {"name": "full"},
    "rates": {"name": "feda2l", "warmup_rounds": 1, "window": 2, "base": 0.05},
}
OWN = 7.0  # the value of every parameter after this node's training
THEIRS = {1: 1.0, 2: 2.0, 3: 4.0}
SAMPLES = {1: 100, 2: 300, 3: 50}


class Peer:
    """The run of a node and its exchange, one round at a time without training."""

    def __init__(self, live: LiveRun, exchange: OverNetwork) -> None:
        self.live, self.exchange = live, exchange

    def mix(self) -> bool:
        """Run the exchanges of a round; False if the node took over the state of the others."""
        self.exchange.begin(self.live, [0])
        return aggregate(self.live, [0])

    def finish_round(self) -> Adapted:
        """Run a round after its training."""
        live, state = self.live, self.live.state
        sigma = live.reductions.divergence(state.base, state.trained)
        assert first_non_finite(live, [0], [1.0], sigma) is None
        jumped = not self.mix()
        zeta = live.reductions.stability(state.trained, state.base)
        return adapt(live, [0], Signals(sigma, zeta), jumped=jumped)[0]


class Mail:
    """A messenger whose neighbours send what a test wants: in each exchange all parameters of node j are `values[j]`.

    A node in `gone` has no payload in that exchange.
    """

    def __init__(self, peer: Peer, samples: int) -> None:
        self.peer, self.fault_injector = peer, None
        self.facts = Facts("run", "n0", "0" * 64, samples=samples, steps=1, degree=3, receivers=3)
        self.neighbours = {
            j: Neighbour(NeighbourConfig(name=f"n{j}", id=j, address="localhost:1"), DeadlineConfig(), LimitsConfig())
            for j in THEIRS
        }
        self.rounds: dict[int, int] = {}  # of the heads; default: the requested round
        self.silent: Mapping[int, set[int]] = {}  # by exchange: nodes without a head
        self.gone: Mapping[int, set[int]] = {}  # by exchange: nodes with a head but without a payload
        self.values: Callable[[int, int], float] = lambda j, step: THEIRS[j]
        self.published: list[tuple[int, int]] = []
        self.asked: list[int] = []

    def publish(self, round: int, step: int, tensors: Any, template: Any) -> None:
        self.published.append((round, step))

    def heads(self, round: int, step: int) -> dict[Neighbour, Head]:
        return {
            neighbour: self.head(j, self.rounds.get(j, round), step)
            for j, neighbour in self.neighbours.items()
            if j not in self.silent.get(step, ())
        }

    def head(self, j: int, round: int, step: int = 0) -> Head:
        size = self.peer.exchange.template.limit
        return Head(PROTOCOL, "run", round, step, f"n{j}", "0" * 64, "0" * 64, size, SAMPLES[j], 1, 3, 3)

    def load(self, neighbour: Neighbour, head: Head, template: Any, most: float) -> dict[str, Tensor] | None:
        self.asked.append(neighbour.id)
        if neighbour.id in self.gone.get(head.step, ()):
            return None
        value = self.values(neighbour.id, head.step)
        return {name: torch.full(place.shape, value) for name, place in template.places.items()}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., tuple[Peer, Mail]]]:
    engines = []

    def peer(**changes: Any) -> tuple[Peer, Mail]:
        config = configs(SPEC | changes, tmp_path)[0]
        assembled, exchange = assemble_node(config, None, RunFolder(config.state))
        engines.append(populate([assembled]))
        made = Peer(assembled.live, exchange)
        exchange.make_template(assembled.live)
        mail = Mail(made, len(assembled.live.plan.member.shards[0]))
        exchange.messenger = mail  # type: ignore[assignment]
        assembled.live.state.trained.fill_(OWN)
        return made, mail

    yield peer
    for engine in engines:
        engine.close()


def parameters(peer: Peer) -> Tensor:
    """All parameters of the node's base without padding."""
    return peer.live.state.base[0][peer.live.parameter_columns]


def everywhere(peer: Peer, value: float) -> None:
    torch.testing.assert_close(parameters(peer), torch.full_like(parameters(peer), value), rtol=1e-6, atol=0)


def mean(own: float, samples: dict[int, int], values: Mapping[int, float] = THEIRS, size: int = 0) -> float:
    """The sample-weighted mean of this node (if `size`) and of the others in `samples`."""
    total = size + sum(samples.values())
    return (size * own + sum(n * values[j] for j, n in samples.items())) / total


def without(*absent: int) -> dict[int, int]:
    return {j: n for j, n in SAMPLES.items() if j not in absent}


@pytest.mark.parametrize("absent", [(), (2,), (1, 3), (1, 2, 3)])
@pytest.mark.parametrize("how", ["silent", "gone"])
def test_an_absent_node_has_no_weight_and_the_others_share_it(make, absent, how):
    """No head, or a head whose payload is gone at the request: the sum is computed again without the node."""
    peer, mail = make()
    setattr(mail, how, {0: set(absent)})
    peer.mix()
    everywhere(peer, mean(OWN, without(*absent), size=mail.facts.samples))
    assert peer.exchange.senders == tuple(without(*absent))
    if absent == (1, 3) and how == "gone":
        assert mail.asked == [1, 2, 3, 2]  # 1 is gone at once, 3 after 2 was added: 2 is asked again


@pytest.mark.parametrize(("absent", "own"), [((), 1 / 4), ((2,), 2 / 4), ((1, 2, 3), 1.0)])
def test_metropolis_gives_the_missing_weight_to_the_node_itself(make, absent, own):
    """All nodes have three neighbours: 1/4 each, and the node keeps the weight of the absent ones."""
    peer, mail = make(topology={"name": "full", "weights": "metropolis"})
    peer.exchange.listen(
        {neighbour: mail.head(j, 1) for j, neighbour in mail.neighbours.items()}
    )  # it knows all of them
    mail.gone = {0: set(absent)}
    peer.mix()
    everywhere(peer, own * OWN + sum(THEIRS[j] / 4 for j in without(*absent)))


def test_uniform_weights_are_one_over_the_number_of_present_nodes(make):
    peer, mail = make(topology={"name": "full", "weights": "uniform"})
    mail.silent = {0: {1}}
    peer.mix()
    everywhere(peer, (OWN + THEIRS[2] + THEIRS[3]) / 3)


def test_gossip_continues_without_a_neighbour_that_misses_one_exchange(make):
    """Three exchanges; node 2 is missing in the second, and its message of the third is used again."""
    peer, mail = make(algorithm={"name": "dfedsam", "gossip_steps": 3})
    mail.values = lambda j, step: THEIRS[j] + 10 * step
    mail.gone = {1: {2}}
    peer.mix()
    value, size = OWN, mail.facts.samples
    for step, absent in enumerate([(), (2,), ()]):
        value = mean(value, without(*absent), {j: mail.values(j, step) for j in THEIRS}, size)
    everywhere(peer, value)
    assert mail.published == [(1, 0), (1, 1), (1, 2)]


def test_a_message_of_another_exchange_is_not_mixed(make):
    """A neighbour one round ahead continued without us: it is not waited for, and its state is of another round."""
    peer, mail = make()
    mail.rounds = {2: 2}
    peer.mix()
    everywhere(peer, mean(OWN, without(2), size=mail.facts.samples))
    assert not mail.neighbours[2].present
    assert mail.neighbours[1].present


# --- rates ------------------------------------------------------------------------------------------------------------


def history(peer: Peer) -> int:
    return len(peer.live.state.rates.state_dict()["divergence_history"])


def test_without_mixing_there_is_no_observation_and_the_rates_stay(make):
    peer, mail = make()
    for _ in range(3):
        peer.finish_round()
    rates, multiplier, observed = (
        peer.live.state.rates.rates.clone(),
        peer.live.state.rates.multiplier.clone(),
        history(peer),
    )
    before = {key: value.clone() for key, value in peer.live.state.rates.state_dict().items()}
    mail.silent = {0: {1, 2, 3}}
    layers = peer.finish_round()
    assert peer.live.state.round == 4
    assert peer.exchange.senders == ()
    everywhere(peer, OWN)  # only its own trained values
    assert torch.equal(peer.live.state.rates.rates, rates)
    assert torch.equal(peer.live.state.rates.multiplier, multiplier)
    assert history(peer) == observed
    for key, value in peer.live.state.rates.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert layers.stability == [None] * len(peer.live.plan.layers)
    mail.silent = {}
    peer.finish_round()
    assert peer.live.state.round == 5
    assert not torch.equal(
        peer.live.state.rates.rates, rates
    )  # it observes again, with the round of the network in the decay


@pytest.mark.parametrize("rule", ["exponential", "cosine", "step"])
def test_a_schedule_follows_the_round_whichever_nodes_are_present(make, rule):
    peer, mail = make(rates={"name": rule, "base": 0.05})
    with_all = []
    for _ in range(4):
        peer.finish_round()
        with_all.append(peer.live.state.rates.rates.clone())
    alone, mail = make(rates={"name": rule, "base": 0.05})
    mail.silent = {0: {1, 2, 3}}
    for expected in with_all:
        alone.finish_round()
        assert torch.equal(alone.live.state.rates.rates, expected)


# --- coming back ------------------------------------------------------------------------------------------------------


def test_a_node_that_lags_takes_over_the_mean_with_its_own_state(make):
    peer, mail = make()
    for _ in range(3):
        peer.finish_round()
    observed, rates = history(peer), peer.live.state.rates.rates.clone()
    mail.rounds = {1: 9, 2: 8, 3: 4}  # 3 is as late as this node: its state is old
    layers = peer.finish_round()
    everywhere(peer, mean(OWN, without(3), size=mail.facts.samples))
    assert peer.live.state.round == 7  # it continues in the lower round of the two nodes ahead
    assert peer.exchange.jumped
    assert peer.exchange.senders == (1, 2)
    assert history(peer) == observed
    assert torch.equal(peer.live.state.rates.rates, rates)
    assert layers.stability == [None] * len(peer.live.plan.layers)
    mail.rounds = {}
    peer.finish_round()
    assert (peer.live.state.round, peer.exchange.jumped) == (8, False)


def test_a_node_that_was_gone_takes_over_the_mean_without_its_own_state(make):
    peer, mail = make()
    heads = {neighbour: mail.head(j, {1: 9, 2: 8, 3: 4}[j]) for j, neighbour in mail.neighbours.items()}
    assert peer.exchange.is_behind(peer.live, heads, peer.live.state.round)
    assert peer.exchange.take_over(peer.live, heads)
    everywhere(peer, mean(OWN, without(3)))
    assert peer.live.state.round == 8  # the lower median of 9, 8 and 4: no single node decides the round


def test_a_node_that_was_gone_uses_metropolis_weights_that_sum_to_one(make):
    peer, mail = make(topology={"name": "full", "weights": "metropolis"})
    assert peer.exchange.take_over(peer.live, {neighbour: mail.head(j, 9) for j, neighbour in mail.neighbours.items()})
    everywhere(peer, sum(THEIRS.values()) / 3)


def test_a_node_that_returns_at_the_end_takes_part_in_the_last_round(make):
    """Otherwise the node would record and evaluate nothing of a finished run."""
    peer, mail = make()
    assert peer.exchange.take_over(peer.live, {neighbour: mail.head(j, 50) for j, neighbour in mail.neighbours.items()})
    assert peer.live.state.round == 49
    assert peer.live.active


def test_a_payload_that_disappears_during_the_take_over_is_left_out(make):
    peer, mail = make()
    mail.gone = {0: {2}}
    assert peer.exchange.take_over(peer.live, {neighbour: mail.head(j, 9) for j, neighbour in mail.neighbours.items()})
    everywhere(peer, mean(OWN, without(2)))


def test_a_failed_take_over_loses_no_training(make):
    """All nodes ahead disappear before the request: the round ends as a round without neighbours."""
    peer, mail = make()
    mail.rounds, mail.gone = {1: 9, 2: 9, 3: 9}, {0: {1, 2, 3}}
    peer.finish_round()
    everywhere(peer, OWN)
    assert peer.live.state.round == 1
    assert not peer.exchange.jumped


def test_a_node_behind_a_finished_network_is_finished_too(make):
    """Training alone would only move it away from the mean of the others."""
    peer, mail = make()
    mail.rounds = {1: 50, 2: 50, 3: 49}
    peer.finish_round()
    everywhere(peer, mean(OWN, SAMPLES, size=mail.facts.samples))
    assert peer.live.state.round == 50
    assert not peer.live.active


def test_one_round_before_the_end_counts_as_behind(make):
    """The others need no further message of this node, and their messages of its round are gone."""
    peer, mail = make()
    peer.live.state.round = 48
    mail.rounds = {1: 50, 2: 50, 3: 50}
    assert peer.exchange.is_behind(peer.live, mail.heads(49, 0), 49)
    assert not peer.exchange.is_behind(peer.live, mail.heads(50, 0), 50)
    mail.rounds = {1: 49, 2: 49, 3: 49}
    assert not peer.exchange.is_behind(peer.live, mail.heads(48, 0), 48)
