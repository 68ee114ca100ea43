"""Exchange over a network: one node, whose neighbours' rows arrive as messages."""

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
from feda2l.round.exchange import MessageCounts, Received, Rows
from feda2l.round.layout import Layout
from feda2l.round.run import LiveRun, RunPlan, RunState
from feda2l.topology.row import Voice, mean_weights, row_weights
from feda2l.wire.message import Head
from feda2l.wire.payload import Template, norm

WIRE = {"fp32": torch.float32, "bf16": torch.bfloat16}
BEHIND = 2  # rounds: a node that is so far behind takes over the others' state


@final
class OverNetwork:
    """One node of a network whose other nodes are elsewhere. `courier` is set when the network is reachable."""

    messenger: Messenger
    template: Template  # what a message looks like; from `make_template` on
    clock: Clock | None = None  # real networks take real time
    layout: Layout  # from `join` on
    weights: str  # of the topology
    push: bool

    def __init__(self, id: int, *, wire: str, norm_limit: float) -> None:
        self.id, self.wire, self.norm_limit = id, wire, norm_limit
        self.voices: dict[int, Voice] = {}  # what neighbours said of themselves, absent ones included
        self.senders: tuple[int, ...] = ()  # ids of those mixed with in the last round
        self.jumped = False  # did the last round end in taking over the others' state?
        self.rows: Rows = {}  # of the current exchange
        self.heads: dict[Neighbour, Head] = {}  # of the neighbours that have a message of it
        self.loaded: dict[int, Rows] = {}  # their rows, where all are held at once
        self.chosen: dict[int, Tensor] = {}  # weights that the algorithm chose in this round, by id

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
        """Where a fault plan says so: begin the round from the mean of all current messages, the own one included."""
        state, fault_injector = run.state, self.messenger.fault_injector
        self.senders, self.jumped, self.chosen = (), False, {}
        if fault_injector is not None and state.round and fault_injector.rejoins(state.round + 1):
            heads = self.messenger.heads(state.round, run.plan.algorithm.gossip - 1)
            self._adopt(run, heads, _draft(run, state.trained))

    def publish(self, run: LiveRun, rows: Rows, step: int) -> bool:
        round = run.state.round + 1
        self.rows, self.loaded = rows, {}
        self.messenger.publish(round, step, dict(self._named(rows)), self.template)
        heads = self.messenger.heads(round, step)
        if self.is_behind(run, heads, round) and self.take_over(run, heads, own=rows):
            return False
        self.heads = self._of_exchange(heads, (round, step))
        return True

    def received(self, nodes: Sequence[int]) -> Iterator[Received]:
        """All messages at once, for an algorithm that looks at them together."""
        self._load_all()
        ids = tuple(self.loaded)
        weights = self._weights(ids)
        samples = torch.tensor([self._samples(id) for id in ids], dtype=torch.float64)

        def states(name: str) -> Tensor:
            return torch.cat([rows[name] for rows in self.loaded.values()])

        yield Received(0, ids, torch.stack(list(weights.values())), samples, states)

    def reweigh(self, weights: Mapping[int, Tensor]) -> None:
        self.chosen = dict(zip(self.loaded, weights[0], strict=True))

    def mix(self, into: Rows) -> Rows:
        """sum_j w_j x_j in ascending id, as the simulator adds."""
        if not self.chosen and not self.loaded:
            return self._mean(self.rows, self.heads, into)
        self._load_all()
        weights = self._weights(self.loaded)
        if self.chosen:
            # a round keeps the weights of its first exchange; without somebody they are made to sum to 1 again
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
        message = run.message * WIRE[self.wire].itemsize // 4  # the rest is float32 in the simulator's count too
        return [self.messenger.facts.receivers * message * run.plan.algorithm.gossip]

    def message_counts(self, round: int) -> MessageCounts | None:
        return None

    def kept(self) -> dict[str, Tensor]:
        return {}

    # --- before and beside rounds ------------------------------------------------------------------------------

    def make_template(self, run: LiveRun) -> None:
        """Learn what a message looks like from one that is never sent."""
        about = f"{run.plan.algorithm!r} {self.weights}"  # another way of averaging does not fit, whatever the model
        self.template = Template.of(self.example(run), WIRE[self.wire], about)

    def example(self, run: LiveRun) -> dict[str, Tensor]:
        """The tensors of a message that is never sent."""
        return dict(self._named(_draft(run)))

    def is_behind(self, run: LiveRun, heads: Mapping[Neighbour, Head], round: int) -> bool:
        """Is somebody who has a state to take over so far ahead of a round, or in the last one already?"""
        far = min(round + BEHIND, max(round + 1, run.plan.rounds))
        return any(head.size and head.round >= far for head in heads.values())

    def take_over(self, run: LiveRun, heads: Mapping[Neighbour, Head], own: Rows | None = None) -> bool:
        """Continue in the network's round from the weighted mean of the neighbours' current states.

        A node that lagged brings in its own state, one that was gone does not: its own is old. False, and nothing
        changed, if no neighbour had a state.
        """
        latest = self._adopt(run, heads, own)
        if not latest:
            return False
        self.jumped = True
        state, rounds = run.state, run.plan.rounds
        # A node that lagged continues in the round that the others are in: in the next one it would be ahead of them,
        # those behind it would jump ahead of it, and so on, around a ring for ever. One that returns begins the next
        # round with them, and takes part in the last one in any case, so that there is one to record. When the others
        # have finished, one that lagged has too: alone it would only forget what it has not seen itself.
        if own is None:
            state.round = min(latest, rounds - 1)
        else:
            state.round = latest - 1 if latest < rounds else latest
        state.rates.skip(state.round)
        # no payload: it tells the others that this node keeps the pace again, and is worth waiting for
        self.messenger.publish(state.round, run.plan.algorithm.gossip, {}, self.template)
        return True

    def listen(self, heads: Mapping[Neighbour, Head]) -> None:
        """Remember what neighbours say of themselves."""
        for neighbour, head in heads.items():
            self.voices[neighbour.id] = Voice(neighbour.id, head.samples, head.degree, head.receivers)

    def _adopt(self, run: LiveRun, heads: Mapping[Neighbour, Head], own: Rows | None) -> int:
        """Take the weighted mean of current states as the base; histories and the optimizer's state stay.

        The newest round of them, 0 if nobody has a state.
        """
        heads = {neighbour: head for neighbour, head in heads.items() if head.size}
        rounds = [head.round for head in heads.values()]
        ahead = [round for round in rounds if round > run.state.round + 1] or rounds or [0]
        # where several are ahead, the lower middle one's: no single one takes the others to a round of its choice
        latest = statistics.median_low(ahead)
        current = {neighbour: head for neighbour, head in heads.items() if head.round >= latest - 1}
        self.listen(current)
        rows = _draft(run) if own is None else own
        mixed = self._mean(rows, current, {}, itself=own is not None, whole=True)
        if not self.senders:
            return 0
        run.state.base.copy_(mixed["model"])
        for name, values in run.statistics().items():
            values.copy_(mixed[name])
        return latest

    def _of_exchange(self, heads: Mapping[Neighbour, Head], when: tuple[int, int]) -> dict[Neighbour, Head]:
        """Those who have a message of this exchange; one that is past it, or has none, is not waited for."""
        now = {neighbour: head for neighbour, head in heads.items() if (head.round, head.step) == when and head.size}
        for neighbour in heads.keys() - now.keys():
            neighbour.missed()
        self.listen(now)
        return now

    # --- sums ----------------------------------------------------------------------------------------------------

    def _mean(
        self, rows: Rows, heads: Mapping[Neighbour, Head], into: Rows, *, itself: bool = True, whole: bool = False
    ) -> Rows:
        """The mean with the topology's weights, one message in memory at a time, written to `into` where it is given.

        A neighbour that turns out to be gone or wrong in the middle is left out, and the sum is made again.
        """
        present, most = dict(heads), self._believed(rows)
        own = {self.id: dict(self._named(rows))} if itself else {}
        while True:
            by_id = {neighbour.id: neighbour for neighbour in present}
            weights = self._weights([*by_id, *own], whole=whole)
            total = self._zeros(rows, into)
            for number, (id, weight) in enumerate(weights.items()):
                neighbour = by_id.get(id)
                term = own[id] if neighbour is None else self._load(neighbour, present[neighbour], most)
                if term is None:
                    assert neighbour is not None
                    del present[neighbour]
                    break
                self._add(total, term, weight, first=number == 0)
            else:
                self.senders = tuple(by_id)
                return total

    def _load_all(self) -> None:
        """Hold every message of the exchange, the own one among them, in ascending id.

        Once an algorithm has chosen its weights, only messages of those that have one are loaded.
        """
        if self.loaded:
            return
        most, found = self._believed(self.rows), {self.id: self.rows}
        for neighbour, head in self.heads.items():
            if self.chosen and neighbour.id not in self.chosen:
                continue
            if (loaded := self._load(neighbour, head, most)) is not None:
                found[neighbour.id] = self._padded(self.rows, loaded)
        self.loaded = dict(sorted(found.items()))
        self.senders = tuple(id for id in self.loaded if id != self.id)

    def _weights(self, present: Iterable[int], *, whole: bool = False) -> dict[int, Tensor]:
        """The weight of everyone present, by id: this node's row of W; `whole` makes it sum to 1 whoever is absent."""
        facts = self.messenger.facts
        own = Voice(self.id, facts.samples, facts.degree, facts.receivers)
        closed = [voice for _, voice in sorted((self.voices | {self.id: own}).items())]
        ids = sorted(present)
        of = mean_weights if whole else row_weights
        weights = of(self.weights, self.id, closed, ids, push=self.push)
        return dict(zip(ids, weights, strict=True))

    def _samples(self, id: int) -> int:
        return self.messenger.facts.samples if id == self.id else self.voices[id].samples

    def _load(self, neighbour: Neighbour, head: Head, most: float) -> dict[str, Tensor] | None:
        return self.messenger.load(neighbour, head, self.template, most)

    def _believed(self, rows: Rows) -> float:
        """The largest norm of a message that is accepted."""
        return self.norm_limit * (norm(dict(self._named(rows))) + 1)

    def _named(self, rows: Rows) -> Iterator[tuple[str, Tensor]]:
        """Rows as they travel: parameters as tensors in the order of memory (no padding), the rest as it is."""
        for name, values in rows.items():
            if values.dim() == 2 and values.shape[1] == self.layout.width:
                for slot in self.layout.slots:
                    yield f"{name}.{slot.name}", slot.stored(values[0])
            else:
                yield name, values[0]

    def _padded(self, like: Rows, named: Mapping[str, Tensor]) -> Rows:
        """Rows as they are computed with, from how they travel."""
        rows = self._zeros(like, {})
        for name, values in self._named(rows):
            values.copy_(named[name])
        return rows

    def _zeros(self, rows: Rows, into: Rows) -> Rows:
        return {name: into[name] if name in into else torch.zeros_like(values) for name, values in rows.items()}

    def _add(self, total: Rows, term: Mapping[str, Tensor], weight: Tensor, *, first: bool) -> None:
        """total += w x, product and sum rounded one after the other as in `Mixing`; the first product is the start."""
        for name, sums in self._named(total):
            product = torch.mul(term[name].to(sums), weight.to(sums), out=sums if first else None)
            if not first:
                sums.add_(product)


def _draft(run: LiveRun, trained: Tensor | None = None) -> Rows:
    """A message that is not sent; of a node that did not train, T is B.

    Publishing may change what an algorithm remembers, so it remembers a copy.
    """
    view = run.view(range(1))
    copies = [{name: values.clone() for name, values in kept.items()} for kept in (view.state, view.small_state)]
    draft = replace(view, trained=view.base if trained is None else trained, state=copies[0], small_state=copies[1])
    return run.plan.algorithm.publish(draft) | run.beside()
