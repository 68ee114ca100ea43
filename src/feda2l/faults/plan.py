"""A fault plan and its queries per node, round and message. This module uses neither a network nor a clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

Kind = Literal["crash", "restart", "hang", "delay", "drop", "corrupt", "split", "rejoin"]
Return = Literal["without_own", "with_own"]
"""How a node adopts the network's model: the mean of its neighbours' messages, without or with its own message."""

DEADLINE = 5.0  # default: seconds that a message may take


@dataclass(frozen=True)
class Fault:
    """One fault of one node. A split has no node (-1)."""

    kind: Kind
    round: int
    node: int = -1
    rounds: int = 1  # duration of hang, delay, drop, corrupt and split
    seconds: float | None = None  # delay: lateness of the message; hang: how long a real process is stopped
    to: frozenset[int] | None = None  # drop and corrupt: the affected receivers; None: all receivers
    sides: tuple[frozenset[int], ...] = ()  # split: the nodes of each side

    def holds(self, round: int) -> bool:
        """True if the fault is active in this round."""
        return self.round <= round < self.round + self.rounds

    def cuts(self, sender: int, listener: int) -> bool:
        """True if a drop or corrupt fault affects the message from this sender to this receiver."""
        return self.node == sender and (self.to is None or listener in self.to)

    def parts(self, one: int, other: int) -> bool:
        """True if the two nodes are on different sides of a split. A node on no side reaches all nodes."""
        side = [next((number for number, side in enumerate(self.sides) if node in side), None) for node in (one, other)]
        return None not in side and side[0] != side[1]


@dataclass(frozen=True)
class Absence:
    """Rounds [start, stop) that a node misses. With `stop` = None it never comes back."""

    start: int
    stop: int | None
    back: Return

    def holds(self, round: int) -> bool:
        return self.start <= round and (self.stop is None or round < self.stop)


@dataclass(frozen=True)
class FaultPlan:
    """Which node fails in which round. A fault in round r affects the work and the messages of round r (1, 2, ...).

    >>> plan = FaultPlan((Fault("crash", 3, node=1), Fault("restart", 5, node=1)))
    >>> [plan.is_absent(1, round) for round in (2, 3, 4, 5)], plan.rejoins(1, 5)
    ([False, True, True, False], 'without_own')
    """

    faults: tuple[Fault, ...] = ()
    deadline: float = DEADLINE  # seconds after which a message is ignored
    text: str = field(default="", compare=False)  # the source text of the plan

    @classmethod
    def load(cls, path: str | Path, nodes: int) -> "FaultPlan":
        """Read a plan for `nodes` nodes from a TOML file. Raise FedA2LError if the plan is invalid."""
        from feda2l.faults.parse_plan import read_plan  # imported here, because `reading` imports this module

        return read_plan(path, nodes)

    def __bool__(self) -> bool:
        """True if the plan has at least one fault."""
        return bool(self.faults)

    # --- queries about a node ------------------------------------------------------------------------------

    def is_absent(self, node: int, round: int) -> bool:
        """True if the node misses the round: it does not train, publish, mix or adapt."""
        return any(absence.holds(round) for absence in self.absences.get(node, ()))

    def crashes(self, node: int, round: int) -> bool:
        """True if the node's process dies in this round, after training and before it publishes its message."""
        return any(fault.round == round for fault in self._of("crash", node))

    def restarts(self, node: int, round: int) -> bool:
        """True if the node's process is restarted so that it takes part from this round on."""
        return any(fault.round == round for fault in self._of("restart", node))

    def hangs(self, node: int, round: int) -> Fault | None:
        """Return the hang that starts in this round. It lasts `rounds`; a real process stops for `seconds` if given."""
        return next((fault for fault in self._of("hang", node) if fault.round == round), None)

    def delay(self, node: int, round: int) -> float:
        """Return the seconds by which the node's message is late."""
        return max((fault.seconds or 0.0 for fault in self._of("delay", node) if fault.holds(round)), default=0.0)

    def late(self, node: int, round: int) -> bool:
        """True if the node's message misses the deadline, so that all others continue without it."""
        return self.delay(node, round) > self.deadline

    def rejoins(self, node: int, round: int) -> Return | None:
        """Return whether the node starts this round from the messages of the previous round; None if it does not.

        The value says whether its own message is included. A node that fails again in the round of its return does
        not return.
        """
        if self.is_absent(node, round):
            return None
        ended = [absence.back for absence in self.absences.get(node, ()) if absence.stop == round]
        if ended:
            return ended[0]
        return "with_own" if any(fault.round == round for fault in self._of("rejoin", node)) else None

    def condition_key(self, round: int) -> tuple[bool, ...]:
        """Return a key of the active faults and absent nodes. Rounds with equal keys have equal schedules."""
        return (
            *(fault.holds(round) for fault in self.faults),
            *(self.is_absent(node, round) for node in self.absences),
        )

    @property
    def returns(self) -> bool:
        """True if any node ever adopts the network's model again."""
        return any(fault.kind in ("restart", "hang", "rejoin") for fault in self.faults)

    # --- queries about a message ---------------------------------------------------------------------------

    def receives(self, node: int, sender: int, round: int) -> bool:
        """True if `node` includes the message that `sender` sent in this round in its average."""
        return not self.is_absent(node, round) and self.reaches(sender, node, round)

    def reaches(self, sender: int, listener: int, round: int) -> bool:
        """True if a message of this round reaches the receiver: sent, in time, not corrupt and not cut off."""
        return self._arrives(sender, listener, round) and not self._broken(sender, listener, round)

    def rejects(self, node: int, sender: int, round: int) -> bool:
        """True if the message of `sender` reaches `node` corrupt, so that it is rejected and counted."""
        return (
            not self.is_absent(node, round) and self._arrives(sender, node, round) and self._broken(sender, node, round)
        )

    # --- derived from the entries --------------------------------------------------------------------------

    @cached_property
    def absences(self) -> dict[int, list[Absence]]:
        """The rounds that each node misses, in order."""
        missed: dict[int, list[Absence]] = {}
        for fault in self._by_kind["hang"]:
            missed.setdefault(fault.node, []).append(Absence(fault.round, fault.round + fault.rounds, "with_own"))
        for fault in self._by_kind["crash"]:
            later = [restart.round for restart in self._of("restart", fault.node) if restart.round > fault.round]
            missed.setdefault(fault.node, []).append(Absence(fault.round, min(later, default=None), "without_own"))
        return {node: sorted(rounds, key=lambda absence: absence.start) for node, rounds in sorted(missed.items())}

    @cached_property
    def _by_kind(self) -> dict[str, list[Fault]]:
        kinds: dict[str, list[Fault]] = {kind: [] for kind in KINDS}
        for fault in self.faults:
            kinds[fault.kind].append(fault)
        return kinds

    @cached_property
    def _by_node(self) -> dict[tuple[str, int], list[Fault]]:
        faults: dict[tuple[str, int], list[Fault]] = {}
        for fault in self.faults:
            faults.setdefault((fault.kind, fault.node), []).append(fault)
        return faults

    def _of(self, kind: Kind, node: int) -> Sequence[Fault]:
        return self._by_node.get((kind, node), ())

    def _arrives(self, sender: int, listener: int, round: int) -> bool:
        if self.is_absent(sender, round):
            return False
        if sender == listener:
            return True
        dropped = any(fault.holds(round) and fault.cuts(sender, listener) for fault in self._of("drop", sender))
        parted = any(fault.holds(round) and fault.parts(sender, listener) for fault in self._by_kind["split"])
        return not (dropped or parted or self.late(sender, round))

    def _broken(self, sender: int, listener: int, round: int) -> bool:
        to_itself = sender == listener  # a node needs no message from itself
        return not to_itself and any(f.holds(round) and f.cuts(sender, listener) for f in self._of("corrupt", sender))


KINDS: dict[Kind, str] = {
    "crash": "the process dies in this round, before it publishes its message",
    "restart": "the node takes part again from this round on",
    "hang": "the process stops for some rounds",
    "delay": "the node's message is late",
    "drop": "the node's message does not arrive",
    "corrupt": "the node's message arrives corrupt",
    "split": "no message passes between the sides",
    "rejoin": "the node starts the round from its neighbours' messages",
}
