"""Absences in a network: the nodes present in a round, the messages each receives, and the mixing weights."""

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

from torch import Tensor

from feda2l.faults.plan import Return
from feda2l.topology import Mixing
from feda2l.topology.row import MixingFacts, mean_weights, row_weights

Ids = tuple[int, ...]


class Attendance(Protocol):
    """Which nodes are present and which messages arrive: `FaultPlan` or `Participation`."""

    @property
    def returns(self) -> bool:
        """True if any node ever adopts the network's model again."""
        ...

    def condition_key(self, round: int) -> Hashable:
        """Return a key that is equal for rounds with the same absences and the same lost messages."""
        ...

    def is_absent(self, node: int, round: int) -> bool: ...
    def receives(self, node: int, sender: int, round: int) -> bool: ...
    def reaches(self, sender: int, listener: int, round: int) -> bool: ...
    def rejects(self, node: int, sender: int, round: int) -> bool: ...
    def rejoins(self, node: int, round: int) -> Return | None: ...


class Rejoining(NamedTuple):
    """The senders (ascending) and weights of the messages from which a returning node starts a round."""

    kind: Return
    ids: tuple[int, ...]
    weights: Tensor  # float64, with sum 1


class RoundSchedule(NamedTuple):
    """The mixing and the message counts of a round with absent nodes and lost messages."""

    present: tuple[int, ...]
    mixing: Mixing  # an absent node keeps its own state (weight 1)
    received: tuple[int, ...]  # per node: messages received and accepted
    rejected: tuple[int, ...]  # per node: messages rejected as corrupt
    alone: frozenset[int]  # present nodes that have neighbours and receive no message
    sent: tuple[int, ...]  # per node: its messages that arrive, corrupt ones included


class PresenceSchedule:
    """The rounds of a network under a fault plan or partial participation."""

    def __init__(self, plan: Attendance, mixing: Mixing, samples: Sequence[int]) -> None:
        self.plan, self.mixing, self.samples = plan, mixing, samples
        self.nodes = mixing.topology.nodes
        self._last: tuple[object, RoundSchedule] | None = None
        self._mixing_facts: dict[int, list[MixingFacts]] = {}  # by phase, for all nodes

    def round(self, number: int) -> RoundSchedule:
        """Return the schedule of a round. Rounds with equal faults are computed once."""
        key = self.mixing.topology.phase(number), self.plan.condition_key(number)
        if self._last is None or self._last[0] != key:
            self._last = key, self._make(number)
        return self._last[1]

    def rejoining_nodes(self, number: int) -> dict[int, Rejoining]:
        """Return the nodes that start this round from others' messages. A node that no message reaches is left out."""
        rejoining_nodes = {}
        for node in range(self.nodes):
            kind = self.plan.rejoins(node, number)
            if kind is None:
                continue
            before = number - 1  # these messages, and the faults that affect them, are of the previous round
            closed, _ = self.mixing.row(node, before)
            reached = [j for j in closed if j != node and self.plan.reaches(j, node, before)]
            if not reached:
                continue
            ids = tuple(sorted([*reached, node])) if kind == "with_own" and self.spoke(node, before) else tuple(reached)
            mixing_facts = self._closed(closed, before)
            weights = mean_weights(self.mixing.weights, node, mixing_facts, ids, push=self.mixing.push)
            rejoining_nodes[node] = Rejoining(kind, ids, weights)
        return rejoining_nodes

    def spoke(self, node: int, number: int) -> bool:
        """True if the node has published a message in any round up to this one."""
        return any(not self.plan.is_absent(node, round) for round in range(number, 0, -1))

    def _make(self, number: int) -> RoundSchedule:
        nodes, mixing = range(self.nodes), self.mixing
        present = tuple(node for node in nodes if not self.plan.is_absent(node, number))
        closed, received, rejected = zip(*(self._links(node, number) for node in nodes), strict=True)
        rows = self._rows(closed, received, number)
        arrived = Counter(chain(*received, *rejected))
        return RoundSchedule(
            present,
            mixing.with_rows(rows, number) if rows else mixing,
            received=tuple(map(len, received)),
            rejected=tuple(map(len, rejected)),
            alone=frozenset(node for node in rows.keys() & present if not received[node]),
            sent=tuple(arrived[node] for node in nodes),
        )

    def _links(self, node: int, number: int) -> tuple[Ids, Ids, Ids]:
        """Return a node's closed neighbourhood, the senders it receives from, and the senders it rejects."""
        closed, _ = self.mixing.row(node, number)
        others = [j for j in closed if j != node]
        received = tuple(j for j in others if self.plan.receives(node, j, number))
        return closed, received, tuple(j for j in others if self.plan.rejects(node, j, number))

    def _rows(self, closed: Sequence[Ids], received: Sequence[Ids], number: int) -> dict[int, tuple[Ids, Tensor]]:
        """Return the rows of W of the nodes that do not receive messages from all of their neighbours."""
        rows = {}
        for node, others in enumerate(received):
            if len(others) + 1 < len(closed[node]):
                present_ids = tuple(sorted((node, *others)))
                mixing_facts = self._closed(closed[node], number)
                rows[node] = (
                    present_ids,
                    row_weights(self.mixing.weights, node, mixing_facts, present_ids, push=self.mixing.push),
                )
        return rows

    def _closed(self, closed: Sequence[int], number: int) -> list[MixingFacts]:
        """Return what each node of a closed neighbourhood reports about itself: its samples and its degrees."""
        graph = self.mixing.topology
        phase = graph.phase(number)
        if phase not in self._mixing_facts:
            receivers = self.mixing.messages(number).tolist()
            self._mixing_facts[phase] = [
                MixingFacts(node, self.samples[node], len(graph.neighbours(node, number)), receivers[node])
                for node in range(self.nodes)
            ]
        return [self._mixing_facts[phase][node] for node in closed]
