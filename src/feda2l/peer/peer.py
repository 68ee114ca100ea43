"""A node's round over a network: the simulator's, with one row, whose neighbours' rows arrive as messages."""

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from feda2l.algorithms import Neighbourhood
from feda2l.peer.courier import Courier
from feda2l.peer.neighbours import Neighbour
from feda2l.simulate.simulation import Simulation
from feda2l.topology.row import Voice, mean_weights, row_weights
from feda2l.wire.message import Head
from feda2l.wire.payload import Template, norm

WIRE = {"fp32": torch.float32, "bf16": torch.bfloat16}
BEHIND = 2  # rounds: whoever is so far behind takes over the others' state

Rows = dict[str, Tensor]  # what is exchanged, by name: [1, ...]


@dataclass
class Peer(Simulation):
    """One node of a network whose other nodes are elsewhere. `courier` is given when the network is there."""

    wire: str = "fp32"
    weights: str = "samples"  # of the topology
    push: bool = False
    norm_limit: float = 10.0
    courier: Courier = field(init=False)
    template: Template = field(init=False)
    voices: dict[int, Voice] = field(default_factory=dict)  # what neighbours told of themselves, also those away
    heard: tuple[int, ...] = ()  # ids of those mixed with in the last round
    jumped: bool = False  # did the last round end in taking over the others' state?

    @classmethod
    def of(cls, simulation: Simulation, **more: Any) -> "Peer":
        """A simulation of one node as a peer."""
        own = {f.name: getattr(simulation, f.name) for f in fields(simulation) if f.init}
        return cls(**own, **more)

    @property
    def id(self) -> int:
        return self.ids[0]

    @property
    def steps(self) -> int:
        """Local steps of a round."""
        return self.member.training.steps(len(self.member.shards[0]))

    def make_template(self) -> None:
        """Learn what a message looks like from one that is never sent."""
        about = f"{self.algorithm!r} {self.weights}"  # who averages in another way does not fit, whatever its model
        self.template = Template.of(dict(self._named(self._draft())), WIRE[self.wire], about)

    def rejoin(self) -> None:
        """Where a fault plan says so: begin the round from the mean of all current messages, the own among them."""
        meddler = self.courier.meddler
        if meddler is not None and self.round and meddler.rejoins(self.round + 1):
            heads = self.courier.heads(self.round, self.algorithm.gossip - 1)
            self._adopt(heads, self._draft(self.population.trained[self.rows]))

    def mix(self) -> None:
        """T -> A: publish, hear, and add up in ascending id as the simulator does."""
        own, algorithm = self._own(), self.algorithm
        sent = algorithm.publish(own)
        rows: Rows = sent | self._beside()
        # the plain average may be made where it belongs: one state less in memory
        there = {"model": own.base} if algorithm.averages_plainly else {}
        chosen: dict[int, Tensor] = {}
        self.heard, self.jumped = (), False
        for step in range(algorithm.gossip):
            self.courier.publish(self.round + 1, step, dict(self._named(rows)), self.template)
            heads = self.courier.heads(self.round + 1, step)
            if self.is_behind(heads, self.round + 1) and self.take_over(heads, own=rows):
                return
            now = self._said(heads, (self.round + 1, step))
            if algorithm.overrides("weigh"):
                rows = self._chosen_mean(rows, now, chosen, there)
            else:
                rows = self._mean(rows, now, there)
        accepted = algorithm.accept(own, sent, {name: rows[name] for name in sent})
        if accepted is not own.base:
            own.base.copy_(accepted)
        self._keep(rows)
        if self.momentum_state == "reset":
            for memory in self.population.memory.values():
                memory[self.rows].zero_()
            self.population.steps[self.rows] = 0

    def is_behind(self, heads: Mapping[Neighbour, Head], round: int) -> bool:
        """Is somebody who has a state to take over so far ahead of a round, or in the last one already?"""
        far = min(round + BEHIND, max(round + 1, self.rounds))
        return any(head.size and head.round >= far for head in heads.values())

    def take_over(self, heads: Mapping[Neighbour, Head], own: Rows | None = None) -> bool:
        """Go on with the network's round from the weighted mean of the neighbours' current states.

        A node that lagged brings in its own state, one that was gone does not: its own is old. False, and nothing
        changed, if there was nobody's to take.
        """
        latest = self._adopt(heads, own)
        if not latest:
            return False
        self.jumped = True
        # Who lagged goes on with the round that the others are in: with the next one it would be ahead of them, those
        # behind it would jump ahead of it, and so on, around a ring for ever. Who comes back begins the next one with
        # them, and takes part in the last one in any case, so that there is one to write down. When the others are done
        # who lagged is too: alone it would only unlearn what it has not seen itself.
        if own is None:
            self.round = min(latest, self.rounds - 1)
        else:
            self.round = latest - 1 if latest < self.rounds else latest
        self.rates.skip(self.round)
        # no payload: it tells the others that we keep the pace again, and are worth waiting for
        self.courier.publish(self.round, self.algorithm.gossip, {}, self.template)
        return True

    def _adopt(self, heads: Mapping[Neighbour, Head], own: Rows | None) -> int:
        """Take the weighted mean of current states as the base; histories and the optimiser's memory stay.

        The newest round of them, 0 if nobody has a state.
        """
        heads = {neighbour: head for neighbour, head in heads.items() if head.size}
        rounds = [head.round for head in heads.values()]
        ahead = [round for round in rounds if round > self.round + 1] or rounds or [0]
        # where several are ahead, the lower middle one's: no single one takes the others to a round of its choice
        latest = statistics.median_low(ahead)
        current = {neighbour: head for neighbour, head in heads.items() if head.round >= latest - 1}
        self.listen(current)
        rows = self._draft() if own is None else own
        mixed = self._mean(rows, current, {}, itself=own is not None, whole=True)
        if not self.heard:
            return 0
        self.population.base[self.rows].copy_(mixed["model"])
        for name, values in self._statistics().items():
            values.copy_(mixed[name])
        return latest

    def adapt(self, sigma: Tensor) -> dict[str, Any]:
        """As in the simulator where something was mixed; else there is nothing to observe."""
        if self.heard and not self.jumped:
            return super().adapt(sigma)
        rates, multiplier = self.rates.rates, self.rates.multiplier.clone()
        if not self.jumped:
            self.round += 1
            self.rates.skip(self.round)
        self.note_multipliers(multiplier)
        layers = {"rate": rates, "multiplier": multiplier, "sigma": sigma}
        return {name: values.tolist() for name, values in layers.items()} | {"zeta": [[None] * len(self.layers)]}

    def bytes_sent(self) -> list[int]:
        message = self.message * WIRE[self.wire].itemsize // 4  # the rest is float32 in the simulator's count too
        return [self.courier.facts.heard_by * message * self.algorithm.gossip]

    def _said(self, heads: Mapping[Neighbour, Head], when: tuple[int, int]) -> dict[Neighbour, Head]:
        """Those who have a message of this exchange; who is past it, or says that it has none, is not waited for."""
        now = {neighbour: head for neighbour, head in heads.items() if (head.round, head.step) == when and head.size}
        for neighbour in heads.keys() - now.keys():
            neighbour.missed()
        self.listen(now)
        return now

    def listen(self, heads: Mapping[Neighbour, Head]) -> None:
        """Remember what neighbours tell of themselves."""
        for neighbour, head in heads.items():
            self.voices[neighbour.id] = Voice(neighbour.id, head.samples, head.degree, head.heard_by)

    def _weights(self, present: Iterable[int], *, whole: bool = False) -> dict[int, Tensor]:
        """The weight of everyone present, by id: this node's row of W; `whole` makes it sum to 1 whoever is absent."""
        facts = self.courier.facts
        own = Voice(self.id, facts.samples, facts.degree, facts.heard_by)
        closed = [voice for _, voice in sorted((self.voices | {self.id: own}).items())]
        ids = sorted(present)
        of = mean_weights if whole else row_weights
        weights = of(self.weights, self.id, closed, ids, push=self.push)
        return dict(zip(ids, weights, strict=True))

    def _mean(
        self, rows: Rows, heads: Mapping[Neighbour, Head], there: Rows, *, itself: bool = True, whole: bool = False
    ) -> Rows:
        """sum_j w_j x_j with the topology's weights, one message in memory at a time, written to `there` where given.

        Whoever turns out to be gone or wrong in the middle is left out, and the sum is made again.
        """
        present, most = dict(heads), self._believed(rows)
        own = {self.id: dict(self._named(rows))} if itself else {}
        while True:
            by_id = {neighbour.id: neighbour for neighbour in present}
            weights = self._weights([*by_id, *own], whole=whole)
            total = self._zeros(rows, there)
            for number, (id, weight) in enumerate(weights.items()):
                neighbour = by_id.get(id)
                term = own[id] if neighbour is None else self._load(neighbour, present[neighbour], most)
                if term is None:
                    assert neighbour is not None
                    del present[neighbour]
                    break
                self._add(total, term, weight, first=number == 0)
            else:
                self.heard = tuple(by_id)
                return total

    def _chosen_mean(self, rows: Rows, heads: Mapping[Neighbour, Head], chosen: dict[int, Tensor], there: Rows) -> Rows:
        """The same with the weights that the algorithm chooses when it has seen all messages of a first exchange.

        Later exchanges of the round keep these weights; if somebody is missing then, they are made to sum to 1 again.
        """
        most = self._believed(rows)
        known = {n: head for n, head in heads.items() if not chosen or n.id in chosen}
        heard = {self.id: rows}
        for neighbour, head in known.items():
            if (loaded := self._load(neighbour, head, most)) is not None:
                heard[neighbour.id] = self._padded(rows, loaded)
        heard = dict(sorted(heard.items()))
        if not chosen:
            chosen |= self._choose(heard)
        weights = {id: chosen[id] for id in heard}
        if len(weights) < len(chosen):
            left = torch.stack(list(weights.values())).sum()
            weights = {id: weight / left for id, weight in weights.items()}
        total = self._zeros(rows, there)
        for number, (id, weight) in enumerate(weights.items()):
            self._add(total, dict(self._named(heard[id])), weight, first=number == 0)
        self.heard = tuple(id for id in heard if id != self.id)
        return total

    def _choose(self, heard: Mapping[int, Rows]) -> dict[int, Tensor]:
        weights = self._weights(heard)
        near = Neighbourhood(
            self.id,
            tuple(heard),
            torch.stack(list(weights.values())),
            torch.tensor([self._samples(id) for id in heard], dtype=torch.float64),
            self.population.base[self.start],
            {name: values[0] for name, values in self.notes.items()},
            lambda name: torch.cat([rows[name] for rows in heard.values()]),
            self.all_columns.movement,
        )
        return dict(zip(heard, self.algorithm.weigh(near), strict=True))

    def _samples(self, id: int) -> int:
        return self.courier.facts.samples if id == self.id else self.voices[id].samples

    def _load(self, neighbour: Neighbour, head: Head, most: float) -> dict[str, Tensor] | None:
        return self.courier.load(neighbour, head, self.template, most)

    def _believed(self, rows: Rows) -> float:
        """The largest norm of a message that is taken."""
        return self.norm_limit * (norm(dict(self._named(rows))) + 1)

    def _draft(self, trained: Tensor | None = None) -> Rows:
        """A message that is not sent; of a node that did not train, T is B.

        Publishing may change what an algorithm remembers, so it remembers a copy.
        """
        own = self._own()
        copies = [{name: values.clone() for name, values in kept.items()} for kept in (own.memory, own.notes)]
        draft = replace(own, trained=own.base if trained is None else trained, memory=copies[0], notes=copies[1])
        return self.algorithm.publish(draft) | self._beside()

    def _beside(self) -> Rows:
        """What travels beside the published rows: averaged statistics, averaged optimiser memory."""
        population, beside = self.population, Rows()
        if self.momentum_state == "average":
            beside |= {f"optimizer.{kind}": values[self.rows] for kind, values in population.memory.items()}
        return beside | self._statistics()

    def _statistics(self) -> Rows:
        if self.buffers != "average":
            return {}
        return {f"buffers.{name}": self.population.buffers[name][self.rows] for name in self.averaged}

    def _keep(self, mixed: Rows) -> None:
        """Take what travelled beside from the mean."""
        for name, values in self._beside().items():
            values.copy_(mixed[name])

    def _named(self, rows: Rows) -> Iterator[tuple[str, Tensor]]:
        """Rows as they travel: parameters as tensors in the order of memory (no padding), the rest as it is."""
        layout = self.population.layout
        for name, values in rows.items():
            if values.dim() == 2 and values.shape[1] == layout.width:
                for slot in layout.slots:
                    yield f"{name}.{slot.name}", slot.stored(values[0])
            else:
                yield name, values[0]

    def _padded(self, like: Rows, named: Mapping[str, Tensor]) -> Rows:
        """Rows as they are computed with, from how they travel."""
        rows = self._zeros(like, {})
        for name, values in self._named(rows):
            values.copy_(named[name])
        return rows

    def _zeros(self, rows: Rows, there: Rows) -> Rows:
        return {name: there[name] if name in there else torch.zeros_like(values) for name, values in rows.items()}

    def _add(self, total: Rows, term: Mapping[str, Tensor], weight: Tensor, *, first: bool) -> None:
        """total += w x, product and sum rounded one after the other as in `Mixing`; the first product is the start."""
        for name, sums in self._named(total):
            product = torch.mul(term[name].to(sums), weight.to(sums), out=sums if first else None)
            if not first:
                sums.add_(product)
