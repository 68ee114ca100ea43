"""Absences on a network: who is there in a round, whom each hears, and with which weights."""

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

from torch import Tensor

from feda2l.faults.plan import Return
from feda2l.topology import Mixing
from feda2l.topology.row import Voice, mean_weights, row_weights

Ids = tuple[int, ...]


class Attendance(Protocol):
    """Who is there in a round and what comes through: a fault plan says so, or a draw of those who take part."""

    @property
    def returns(self) -> bool:
        """Does a node ever take up the network's model again?"""
        ...

    def alike(self, round: int) -> Hashable:
        """Rounds with equal values are alike in all that is said here."""
        ...

    def away(self, node: int, round: int) -> bool: ...
    def receives(self, node: int, sender: int, round: int) -> bool: ...
    def reaches(self, sender: int, listener: int, round: int) -> bool: ...
    def rejects(self, node: int, sender: int, round: int) -> bool: ...
    def rejoins(self, node: int, round: int) -> Return | None: ...


class Comeback(NamedTuple):
    """A node that starts a round from messages of the round before: whose they are, ascending, and their weights."""

    kind: Return
    ids: tuple[int, ...]
    weights: Tensor  # float64, of sum 1


class Round(NamedTuple):
    """What faults leave of a round."""

    present: tuple[int, ...]
    mixing: Mixing  # a node that is away hears itself alone
    received: tuple[int, ...]  # by each node: of how many others it takes the message
    rejected: tuple[int, ...]  # and how many it refuses
    alone: frozenset[int]  # those that are there, have neighbours and hear none of them
    sent: tuple[int, ...]  # by each node: how many messages arrive, whole or broken


class PresenceSchedule:
    """The rounds of a network under a plan."""

    def __init__(self, plan: Attendance, mixing: Mixing, samples: Sequence[int]) -> None:
        self.plan, self.mixing, self.samples = plan, mixing, samples
        self.nodes = mixing.topology.nodes
        self._last: tuple[object, Round] | None = None
        self._voices: dict[int, list[Voice]] = {}  # of all nodes, by phase

    def round(self, number: int) -> Round:
        """Rounds that are alike are computed once."""
        key = self.mixing.topology.phase(number), self.plan.alike(number)
        if self._last is None or self._last[0] != key:
            self._last = key, self._make(number)
        return self._last[1]

    def comebacks(self, number: int) -> dict[int, Comeback]:
        """Who starts this round from others' messages; one whom none of them reaches goes on from what it has."""
        found = {}
        for node in range(self.nodes):
            kind = self.plan.rejoins(node, number)
            if kind is None:
                continue
            before = number - 1  # messages are of that round, and so is what befell them
            closed, _ = self.mixing.row(node, before)
            reached = [j for j in closed if j != node and self.plan.reaches(j, node, before)]
            if not reached:
                continue
            ids = tuple(sorted([*reached, node])) if kind == "with_own" and self.spoke(node, before) else tuple(reached)
            voices = self._closed(closed, before)
            weights = mean_weights(self.mixing.weights, node, voices, ids, push=self.mixing.push)
            found[node] = Comeback(kind, ids, weights)
        return found

    def spoke(self, node: int, number: int) -> bool:
        """Did the node ever publish a message, up to this round?"""
        return any(not self.plan.away(node, round) for round in range(number, 0, -1))

    def _make(self, number: int) -> Round:
        nodes, mixing = range(self.nodes), self.mixing
        present = tuple(node for node in nodes if not self.plan.away(node, number))
        closed, received, rejected = zip(*(self._links(node, number) for node in nodes), strict=True)
        rows = self._rows(closed, received, number)
        arrived = Counter(chain(*received, *rejected))
        return Round(
            present,
            mixing.with_rows(rows, number) if rows else mixing,
            received=tuple(map(len, received)),
            rejected=tuple(map(len, rejected)),
            alone=frozenset(node for node in rows.keys() & present if not received[node]),
            sent=tuple(arrived[node] for node in nodes),
        )

    def _links(self, node: int, number: int) -> tuple[Ids, Ids, Ids]:
        """The closed neighbourhood of a node, the others that it hears, and those whose message it rejects."""
        closed, _ = self.mixing.row(node, number)
        others = [j for j in closed if j != node]
        received = tuple(j for j in others if self.plan.receives(node, j, number))
        return closed, received, tuple(j for j in others if self.plan.rejects(node, j, number))

    def _rows(self, closed: Sequence[Ids], received: Sequence[Ids], number: int) -> dict[int, tuple[Ids, Tensor]]:
        """The rows of W of the nodes that do not hear all of their neighbours."""
        rows = {}
        for node, others in enumerate(received):
            if len(others) + 1 < len(closed[node]):
                near = tuple(sorted((node, *others)))
                voices = self._closed(closed[node], number)
                rows[node] = near, row_weights(self.mixing.weights, node, voices, near, push=self.mixing.push)
        return rows

    def _closed(self, closed: Sequence[int], number: int) -> list[Voice]:
        """What those of a closed neighbourhood tell of themselves."""
        graph = self.mixing.topology
        phase = graph.phase(number)
        if phase not in self._voices:
            receivers = self.mixing.messages(number).tolist()
            self._voices[phase] = [
                Voice(node, self.samples[node], len(graph.neighbours(node, number)), receivers[node])
                for node in range(self.nodes)
            ]
        return [self._voices[phase][node] for node in closed]
