"""The exchange of one node over a network: the rows of its neighbours arrive as messages."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from feda2l.network import Clock
from feda2l.peer.messenger import Messenger
from feda2l.peer.neighbours import Neighbour
from feda2l.rates.base import Rates, Rule, Setting
from feda2l.round.exchange import MessageCounts, NodeTensors, Received
from feda2l.round.layout import Layout
from feda2l.round.run import LiveRun, RunPlan, RunState
from feda2l.topology.row import MixingFacts, mean_weights, row_weights
from feda2l.wire.message import Head
from feda2l.wire.payload import Template, norm

WIRE = {"fp32": torch.float32, "bf16": torch.bfloat16}
BEHIND = 2  # rounds: a node that lags so far behind takes over the state of the others


@final
class OverNetwork:
    """One node of a network whose other nodes are other processes. `messenger` is set when the network is reachable."""

    messenger: Messenger
    template: Template  # the layout of a message; set by `make_template`
    clock: Clock | None = None  # only simulated networks have a clock
    layout: Layout  # set by `join`
    weights: str  # of the topology
    push: bool

    def __init__(self, id: int, *, wire: str, norm_limit: float) -> None:
        self.id, self.wire, self.norm_limit = id, wire, norm_limit
        self.mixing_facts: dict[
            int, MixingFacts
        ] = {}  # the facts that neighbours sent about themselves, including absent ones
        self.senders: tuple[int, ...] = ()  # ids of the neighbours in the last round's mean
        self.jumped = False  # did the last round end with taking over the state of the others?
        self.rows: NodeTensors = {}  # of the current exchange
        self.heads: dict[Neighbour, Head] = {}  # of the neighbours with a message in this exchange
        self.loaded: dict[int, NodeTensors] = {}  # the rows of these neighbours, if all are in memory at once
        self.chosen: dict[int, Tensor] = {}  # the weights that the algorithm chose in this round, by id

    # --- the protocol ----------------------------------------------------------------------------------------

    def start_rates(self, rule: Rule, setting: Setting) -> Rates:
        return rule.start(setting)

    def join(self, plan: RunPlan, state: RunState) -> None:
        self.layout = state.population.layout
        self.weights, self.push = plan.mixing.weights, plan.algorithm.mixing == "push"

    def present(self, round: int) -> Sequence[int]:
        return range(1)

    def counted(self, present: Sequence[int]) -> Sequence[int]:
        return present

    def begin(self, run: LiveRun, nodes: Sequence[int]) -> None:
        """If a fault plan says so, start the round from the mean of all current messages, including this node's."""
        state, fault_injector = run.state, self.messenger.fault_injector
        self.senders, self.jumped, self.chosen = (), False, {}
        if fault_injector is not None and state.round and fault_injector.rejoins(state.round + 1):
            heads = self.messenger.heads(state.round, run.plan.algorithm.gossip - 1)
            self._adopt(run, heads, _draft(run, state.trained))

    def publish(self, run: LiveRun, rows: NodeTensors, step: int) -> bool:
        round = run.state.round + 1
        self.rows, self.loaded = rows, {}
        self.messenger.publish(round, step, dict(self._named(rows)), self.template)
        heads = self.messenger.heads(round, step)
        if self.is_behind(run, heads, round) and self.take_over(run, heads, own_rows=rows):
            return False
        self.heads = self._of_exchange(heads, (round, step))
        return True

    def received(self, nodes: Sequence[int]) -> Iterator[Received]:
        """All messages at once, for an algorithm that compares them."""
        self._load_all()
        ids = tuple(self.loaded)
        weights = self._weights(ids)
        samples = torch.tensor([self._samples(id) for id in ids], dtype=torch.float64)

        def states(name: str) -> Tensor:
            return torch.cat([rows[name] for rows in self.loaded.values()])

        yield Received(0, ids, torch.stack(list(weights.values())), samples, states)

    def reweigh(self, weights: Mapping[int, Tensor]) -> None:
        self.chosen = dict(zip(self.loaded, weights[0], strict=True))

    def mix(self, into: NodeTensors) -> NodeTensors:
        """sum_j w_j x_j in ascending id, the order of the simulator."""
        if not self.chosen and not self.loaded:
            return self._mean(self.rows, self.heads, into)
        self._load_all()
        weights = self._weights(self.loaded)
        if self.chosen:
            # a round keeps the weights of its first exchange; if a neighbour is missing they are scaled to sum to 1
            weights = {id: self.chosen[id] for id in self.loaded}
            if len(weights) < len(self.chosen):
                left = torch.stack(list(weights.values())).sum()
                weights = {id: weight / left for id, weight in weights.items()}
        total = self._zeros(self.rows, into)
        for number, (id, weight) in enumerate(weights.items()):
            self._add(total, dict(self._named(self.loaded[id])), weight, first=number == 0)
        return total

    def mixed(self, round: int, nodes: Sequence[int]) -> Sequence[int]:
        return nodes if self.senders else []

    def end(self, run: LiveRun, nodes: Sequence[int]) -> None:
        self.rows, self.heads, self.loaded = {}, {}, {}

    def bytes_sent(self, run: LiveRun) -> list[int]:
        message = run.message * WIRE[self.wire].itemsize // 4  # the simulator also counts the rest as float32
        return [self.messenger.facts.receivers * message * run.plan.algorithm.gossip]

    def message_counts(self, round: int) -> MessageCounts | None:
        return None

    def checkpoint_state(self) -> dict[str, Tensor]:
        return {}

    # --- before and between rounds -----------------------------------------------------------------------------

    def make_template(self, run: LiveRun) -> None:
        """Take the layout of a message from an example that is never sent."""
        about = f"{run.plan.algorithm!r} {self.weights}"  # nodes that average differently must not mix
        self.template = Template.of(self.example(run), WIRE[self.wire], about)

    def example(self, run: LiveRun) -> dict[str, Tensor]:
        """The tensors of an example message, which is never sent."""
        return dict(self._named(_draft(run)))

    def is_behind(self, run: LiveRun, heads: Mapping[Neighbour, Head], round: int) -> bool:
        """Is a neighbour with a state `BEHIND` rounds ahead of `round`, or already in the last round?"""
        far = min(round + BEHIND, max(round + 1, run.plan.rounds))
        return any(head.size and head.round >= far for head in heads.values())

    def take_over(self, run: LiveRun, heads: Mapping[Neighbour, Head], own_rows: NodeTensors | None = None) -> bool:
        """Continue in the round of the network from the weighted mean of the neighbours' current states.

        A node that lagged includes its own state. A node that was gone does not, because its state is old. Returns
        False and changes nothing if no neighbour has a state.
        """
        latest = self._adopt(run, heads, own_rows)
        if not latest:
            return False
        self.jumped = True
        state, rounds = run.state, run.plan.rounds
        # A node that lagged continues in the round of the others. In the next round it would be ahead of them, nodes
        # behind it would jump ahead of it, and so on around a ring forever. A node that returns starts the next round
        # with the others. It always takes part in the last round, so that there is a round to record. When the others
        # have finished, a node that lagged has finished too: training alone would only move it away from their mean.
        if own_rows is None:
            state.round = min(latest, rounds - 1)
        else:
            state.round = latest - 1 if latest < rounds else latest
        state.rates.skip(state.round)
        # a head without a payload tells the others that this node keeps up again, so that they wait for it
        self.messenger.publish(state.round, run.plan.algorithm.gossip, {}, self.template)
        return True

    def listen(self, heads: Mapping[Neighbour, Head]) -> None:
        """Store the facts that neighbours send about themselves."""
        for neighbour, head in heads.items():
            self.mixing_facts[neighbour.id] = MixingFacts(neighbour.id, head.samples, head.degree, head.receivers)

    def _adopt(self, run: LiveRun, heads: Mapping[Neighbour, Head], own_rows: NodeTensors | None) -> int:
        """Set the base to the weighted mean of current states; histories and the optimizer state stay.

        Returns the newest round of these states, 0 if no neighbour has a state.
        """
        heads = {neighbour: head for neighbour, head in heads.items() if head.size}
        rounds = [head.round for head in heads.values()]
        ahead = [round for round in rounds if round > run.state.round + 1] or rounds or [0]
        # if several are ahead, use the lower median: no single node can take the others to a round of its choice
        latest = statistics.median_low(ahead)
        current = {neighbour: head for neighbour, head in heads.items() if head.round >= latest - 1}
        self.listen(current)
        rows = _draft(run) if own_rows is None else own_rows
        mixed = self._mean(rows, current, {}, itself=own_rows is not None, normalized=True)
        if not self.senders:
            return 0
        run.state.base.copy_(mixed["model"])
        for name, values in run.statistics().items():
            values.copy_(mixed[name])
        return latest

    def _of_exchange(self, heads: Mapping[Neighbour, Head], when: tuple[int, int]) -> dict[Neighbour, Head]:
        """The neighbours with a message of this exchange; the others are not waited for."""
        now = {neighbour: head for neighbour, head in heads.items() if (head.round, head.step) == when and head.size}
        for neighbour in heads.keys() - now.keys():
            neighbour.missed()
        self.listen(now)
        return now

    # --- sums ----------------------------------------------------------------------------------------------------

    def _mean(
        self,
        rows: NodeTensors,
        heads: Mapping[Neighbour, Head],
        into: NodeTensors,
        *,
        itself: bool = True,
        normalized: bool = False,
    ) -> NodeTensors:
        """The mean with the weights of the topology, one message in memory at a time, written to `into` if given.

        If a neighbour's message is gone or rejected in between, the neighbour is left out and the sum starts again.
        """
        present, most = dict(heads), self._believed(rows)
        by_self = {self.id: dict(self._named(rows))} if itself else {}
        while True:
            by_id = {neighbour.id: neighbour for neighbour in present}
            weights = self._weights([*by_id, *by_self], normalized=normalized)
            total = self._zeros(rows, into)
            for number, (id, weight) in enumerate(weights.items()):
                neighbour = by_id.get(id)
                term = by_self[id] if neighbour is None else self._load(neighbour, present[neighbour], most)
                if term is None:
                    assert neighbour is not None
                    del present[neighbour]
                    break
                self._add(total, term, weight, first=number == 0)
            else:
                self.senders = tuple(by_id)
                return total

    def _load_all(self) -> None:
        """Load every message of the exchange, including this node's, in ascending id.

        After an algorithm has chosen its weights, only messages with a weight are loaded.
        """
        if self.loaded:
            return
        most, states = self._believed(self.rows), {self.id: self.rows}
        for neighbour, head in self.heads.items():
            if self.chosen and neighbour.id not in self.chosen:
                continue
            if (loaded := self._load(neighbour, head, most)) is not None:
                states[neighbour.id] = self._padded(self.rows, loaded)
        self.loaded = dict(sorted(states.items()))
        self.senders = tuple(id for id in self.loaded if id != self.id)

    def _weights(self, present: Iterable[int], *, normalized: bool = False) -> dict[int, Tensor]:
        """The weight of every present node by id: this node's row of W; `normalized` scales it to sum to 1."""
        facts = self.messenger.facts
        itself = MixingFacts(self.id, facts.samples, facts.degree, facts.receivers)
        closed = [known for _, known in sorted((self.mixing_facts | {self.id: itself}).items())]
        ids = sorted(present)
        of = mean_weights if normalized else row_weights
        weights = of(self.weights, self.id, closed, ids, push=self.push)
        return dict(zip(ids, weights, strict=True))

    def _samples(self, id: int) -> int:
        return self.messenger.facts.samples if id == self.id else self.mixing_facts[id].samples

    def _load(self, neighbour: Neighbour, head: Head, most: float) -> dict[str, Tensor] | None:
        return self.messenger.load(neighbour, head, self.template, most)

    def _believed(self, rows: NodeTensors) -> float:
        """The largest accepted norm of a message."""
        return self.norm_limit * (norm(dict(self._named(rows))) + 1)

    def _named(self, rows: NodeTensors) -> Iterator[tuple[str, Tensor]]:
        """Rows in the format of a message: parameters as tensors in memory order without padding, others unchanged."""
        for name, values in rows.items():
            if values.dim() == 2 and values.shape[1] == self.layout.width:
                for slot in self.layout.slots:
                    yield f"{name}.{slot.name}", slot.stored(values[0])
            else:
                yield name, values[0]

    def _padded(self, like: NodeTensors, named: Mapping[str, Tensor]) -> NodeTensors:
        """Rows in the padded format of the computation, from the format of a message."""
        rows = self._zeros(like, {})
        for name, values in self._named(rows):
            values.copy_(named[name])
        return rows

    def _zeros(self, rows: NodeTensors, into: NodeTensors) -> NodeTensors:
        return {name: into[name] if name in into else torch.zeros_like(values) for name, values in rows.items()}

    def _add(self, total: NodeTensors, term: Mapping[str, Tensor], weight: Tensor, *, first: bool) -> None:
        """total += w x; product and sum are rounded one after the other as in `Mixing`; the first product starts it."""
        for name, sums in self._named(total):
            product = torch.mul(term[name].to(sums), weight.to(sums), out=sums if first else None)
            if not first:
                sums.add_(product)


def _draft(run: LiveRun, trained: Tensor | None = None) -> NodeTensors:
    """A message that is not sent; if the node did not train, the trained state is the base.

    Publishing may change the state of the algorithm, so it works on a copy.
    """
    view = run.view(range(1))
    copies = [{name: values.clone() for name, values in tensors.items()} for tensors in (view.state, view.small_state)]
    draft = replace(view, trained=view.base if trained is None else trained, state=copies[0], small_state=copies[1])
    return run.plan.algorithm.publish(draft) | run.attached()
