"""A fault plan, and what it says of a node, a round and a message. Nothing here knows of a network or of time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

Kind = Literal["crash", "restart", "hang", "delay", "drop", "corrupt", "split", "rejoin"]
Return = Literal["without_own", "with_own"]
"""How a node takes up the network's model: the mean of its neighbours' messages, without its own or with it."""

DEADLINE = 5.0  # seconds that a message may take, unless the plan says otherwise


@dataclass(frozen=True)
class Fault:
    """One entry of a plan, for one node; of a split there is none."""

    kind: Kind
    round: int
    node: int = -1
    rounds: int = 1  # that it lasts: of hang, delay, drop, corrupt and split
    seconds: float | None = None  # of delay; of hang how long a real process is stopped
    to: frozenset[int] | None = None  # of drop and corrupt: who does not hear it; None: nobody does
    sides: tuple[frozenset[int], ...] = ()  # of split

    def holds(self, round: int) -> bool:
        return self.round <= round < self.round + self.rounds

    def cuts(self, sender: int, listener: int) -> bool:
        """Is it this sender's message to this listener that a drop or a corrupt spoils?"""
        return self.node == sender and (self.to is None or listener in self.to)

    def parts(self, one: int, other: int) -> bool:
        """Are these two on different sides of a split? Whoever is on no side is with all."""
        side = [next((number for number, side in enumerate(self.sides) if node in side), None) for node in (one, other)]
        return None not in side and side[0] != side[1]


@dataclass(frozen=True)
class Absence:
    """Rounds [start, stop) that a node misses; without a stop it never comes back."""

    start: int
    stop: int | None
    back: Return

    def holds(self, round: int) -> bool:
        return self.start <= round and (self.stop is None or round < self.stop)


@dataclass(frozen=True)
class FaultPlan:
    """Who fails in which round. A fault of round r touches what is done and sent in round r (1, 2, ...).

    >>> plan = FaultPlan((Fault("crash", 3, node=1), Fault("restart", 5, node=1)))
    >>> [plan.away(1, round) for round in (2, 3, 4, 5)], plan.rejoins(1, 5)
    ([False, True, True, False], 'without_own')
    """

    faults: tuple[Fault, ...] = ()
    deadline: float = DEADLINE  # seconds after which a message is left out
    text: str = field(default="", compare=False)  # as it was written

    @classmethod
    def load(cls, path: str | Path, nodes: int) -> "FaultPlan":
        """The plan in a TOML file, for a network of so many nodes; every mistake in it is a FedA2LError."""
        from feda2l.faults.parse_plan import read_plan  # not at the top: it makes plans, so it imports this file

        return read_plan(path, nodes)

    def __bool__(self) -> bool:
        """Does anything ever fail?"""
        return bool(self.faults)

    # --- of a node -----------------------------------------------------------------------------------------

    def away(self, node: int, round: int) -> bool:
        """Does the node miss the round: train, publish, mix and adapt nothing?"""
        return any(absence.holds(round) for absence in self.absences.get(node, ()))

    def crashes(self, node: int, round: int) -> bool:
        """Does its process die in this round, after training and before its message is out?"""
        return any(fault.round == round for fault in self._of("crash", node))

    def restarts(self, node: int, round: int) -> bool:
        """Does its process start again so that it takes part from this round on?"""
        return any(fault.round == round for fault in self._of("restart", node))

    def hangs(self, node: int, round: int) -> Fault | None:
        """The hang that begins in this round: it lasts `rounds`, and of a real process `seconds` if it says so."""
        return next((fault for fault in self._of("hang", node) if fault.round == round), None)

    def delay(self, node: int, round: int) -> float:
        """Seconds by which its message is late."""
        return max((fault.seconds or 0.0 for fault in self._of("delay", node) if fault.holds(round)), default=0.0)

    def late(self, node: int, round: int) -> bool:
        """Does everybody go on without its message?"""
        return self.delay(node, round) > self.deadline

    def rejoins(self, node: int, round: int) -> Return | None:
        """Does the node start this round from its neighbours' messages of the round before, and its own among them?

        One that dies or hangs in the round in which it would have come back does not come back.
        """
        if self.away(node, round):
            return None
        ended = [absence.back for absence in self.absences.get(node, ()) if absence.stop == round]
        if ended:
            return ended[0]
        return "with_own" if any(fault.round == round for fault in self._of("rejoin", node)) else None

    def alike(self, round: int) -> tuple[bool, ...]:
        """Which faults hold, and who is away: rounds in which these are the same are alike."""
        return (*(fault.holds(round) for fault in self.faults), *(self.away(node, round) for node in self.absences))

    @property
    def returns(self) -> bool:
        """Does a node ever take up the network's model again?"""
        return any(fault.kind in ("restart", "hang", "rejoin") for fault in self.faults)

    # --- of a message --------------------------------------------------------------------------------------

    def receives(self, node: int, sender: int, round: int) -> bool:
        """Does `node` take the message of `sender` of this round into its average?"""
        return not self.away(node, round) and self.reaches(sender, node, round)

    def reaches(self, sender: int, listener: int, round: int) -> bool:
        """Does a message of this round come to a listener, whenever it asks: there, in time, whole and not cut off?"""
        return self._arrives(sender, listener, round) and not self._broken(sender, listener, round)

    def rejects(self, node: int, sender: int, round: int) -> bool:
        """Does the message of `sender` of this round come to `node` broken, so that it is refused and counted?"""
        return not self.away(node, round) and self._arrives(sender, node, round) and self._broken(sender, node, round)

    # --- what the entries come to --------------------------------------------------------------------------

    @cached_property
    def absences(self) -> dict[int, list[Absence]]:
        """The rounds that each node misses, in their order."""
        found: dict[int, list[Absence]] = {}
        for fault in self._by_kind["hang"]:
            found.setdefault(fault.node, []).append(Absence(fault.round, fault.round + fault.rounds, "with_own"))
        for fault in self._by_kind["crash"]:
            later = [restart.round for restart in self._of("restart", fault.node) if restart.round > fault.round]
            found.setdefault(fault.node, []).append(Absence(fault.round, min(later, default=None), "without_own"))
        return {node: sorted(own, key=lambda absence: absence.start) for node, own in sorted(found.items())}

    @cached_property
    def _by_kind(self) -> dict[str, list[Fault]]:
        kinds: dict[str, list[Fault]] = {kind: [] for kind in KINDS}
        for fault in self.faults:
            kinds[fault.kind].append(fault)
        return kinds

    @cached_property
    def _by_node(self) -> dict[tuple[str, int], list[Fault]]:
        found: dict[tuple[str, int], list[Fault]] = {}
        for fault in self.faults:
            found.setdefault((fault.kind, fault.node), []).append(fault)
        return found

    def _of(self, kind: Kind, node: int) -> Sequence[Fault]:
        return self._by_node.get((kind, node), ())

    def _arrives(self, sender: int, listener: int, round: int) -> bool:
        if self.away(sender, round):
            return False
        if sender == listener:
            return True
        dropped = any(fault.holds(round) and fault.cuts(sender, listener) for fault in self._of("drop", sender))
        parted = any(fault.holds(round) and fault.parts(sender, listener) for fault in self._by_kind["split"])
        return not (dropped or parted or self.late(sender, round))

    def _broken(self, sender: int, listener: int, round: int) -> bool:
        own = sender == listener  # a node needs no message of itself
        return not own and any(f.holds(round) and f.cuts(sender, listener) for f in self._of("corrupt", sender))


KINDS: dict[Kind, str] = {
    "crash": "the process dies in the round, before its message is out",
    "restart": "it is back from this round on",
    "hang": "the process stands still for some rounds",
    "delay": "its message is late",
    "drop": "its message does not arrive",
    "corrupt": "its message arrives broken",
    "split": "no message passes between the sides",
    "rejoin": "it starts the round from its neighbours' messages",
}
