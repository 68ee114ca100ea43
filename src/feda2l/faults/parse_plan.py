"""Read a fault plan. Every error names the file, the entry and a correct value."""

from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import NoReturn

from feda2l.errors import FedA2LError
from feda2l.faults.plan import DEADLINE, KINDS, Fault, FaultPlan, Kind
from feda2l.names import nearest
from feda2l.plain_values import PlainDict, PlainMapping
from feda2l.toml_files import read_toml

Refuse = Callable[[Fault, str], NoReturn]
# keys of each kind besides `kind` and `round`: the required ones, the optional ones
KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "crash": (("node",), ()),
    "restart": (("node",), ()),
    "hang": (("node",), ("rounds", "seconds")),
    "delay": (("node", "seconds"), ("rounds",)),
    "drop": (("node",), ("rounds", "to")),
    "corrupt": (("node",), ("rounds", "to")),
    "split": (("sides",), ("rounds",)),
    "rejoin": (("node",), ()),
}


def read_plan(path: str | Path, nodes: int) -> FaultPlan:
    """Read a plan for a network of `nodes` nodes from a TOML file."""
    values = read_toml(path)
    for key in values:
        if key not in ("fault", "deadline"):
            raise FedA2LError(f"{path}: {key}: unknown key; {nearest(key, ('fault', 'deadline'))}", see="fault-plan")
    deadline, entries = values.get("deadline", DEADLINE), values.get("fault", [])
    if not _is_number(deadline) or not 0 < deadline < float("inf"):
        raise FedA2LError(f"{path}: deadline = {deadline!r}: must be a number of seconds above 0", see="fault-plan")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise FedA2LError(f"{path}: fault: write each fault as a separate [[fault]] table", see="fault-plan")
    owners: dict[tuple[str, int, int], _Entry] = {}  # the first entry of each fault, named by errors about the order
    faults: list[Fault] = []
    for number, values in enumerate(entries, 1):
        entry = _Entry(path, number, values, nodes)
        for fault in entry.read():
            owners.setdefault((fault.kind, fault.round, fault.node), entry)
            faults.append(fault)
    plan = FaultPlan(tuple(faults), float(deadline), Path(path).read_text(encoding="utf-8"))

    def refuse(fault: Fault, problem: str) -> NoReturn:
        owners[fault.kind, fault.round, fault.node].refuse(problem)

    _check_order(plan, nodes, refuse)
    return plan


class _Entry:
    """One `[[fault]]` table of a file."""

    def __init__(self, path: str | Path, number: int, values: PlainMapping, nodes: int) -> None:
        self.path, self.number, self.values, self.nodes = path, number, values, nodes

    def read(self) -> list[Fault]:
        """Return one fault per node that the entry names."""
        kind = self._kind()
        self._check_keys(*KEYS[kind])
        round = self._count("round")
        rest: PlainDict = {"rounds": self._count("rounds")} if "rounds" in self.values else {}
        if "seconds" in self.values:
            rest["seconds"] = self._seconds()
        if kind == "split":
            return [Fault("split", round, sides=self._sides(), **rest)]
        named = self.values["node"]
        senders = self._nodes("node", named if isinstance(named, list) else [named])
        if "to" in self.values:
            rest["to"] = frozenset(self._listeners(senders))
        if kind == "rejoin" and round == 1:
            self.refuse("round = 1: a rejoin needs messages of the previous round; use round 2 or later")
        return [Fault(kind, round, node=node, **rest) for node in senders]

    def refuse(self, problem: str) -> NoReturn:
        kind = self.values.get("kind")
        what = f" ({kind})" if isinstance(kind, str) else ""
        raise FedA2LError(f"{self.path}: fault {self.number}{what}: {problem}", see="fault-plan")

    def _kind(self) -> Kind:
        kind = self.values.get("kind")
        if kind is None:
            self.refuse(f"kind is missing; choose one of {', '.join(KINDS)}")
        if not isinstance(kind, str) or kind not in KINDS:
            self.refuse(f"kind = {kind!r} is unknown; {nearest(str(kind), KINDS)}")
        return kind

    def _check_keys(self, needed: tuple[str, ...], allowed: tuple[str, ...]) -> None:
        known = ("kind", "round", *needed, *allowed)
        for key in self.values:
            if key not in known:
                self.refuse(f"{key}: unknown key; {nearest(key, known)}")
        for key in ("round", *needed):
            if key not in self.values:
                self.refuse(f"{key} is missing")

    def _count(self, key: str) -> int:
        value = self.values[key]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self.refuse(f"{key} = {value!r}: must be an integer of at least 1")
        return value

    def _seconds(self) -> float:
        value = self.values["seconds"]
        if not _is_number(value) or not 0 <= value < float("inf"):
            self.refuse(f"seconds = {value!r}: must be a finite number of at least 0")
        return float(value)

    def _nodes(self, key: str, values: object) -> list[int]:
        if not isinstance(values, list) or not values:
            self.refuse(f"{key} = {values!r}: must name at least one node, as in [0, 1]")
        for value in values:
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < self.nodes:
                self.refuse(f"{key} = {value!r}: there is no such node; the nodes are 0 to {self.nodes - 1}")
        twice = next((value for place, value in enumerate(values) if value in values[:place]), None)
        if twice is not None:
            self.refuse(f"{key}: node {twice} is named twice")
        return list(values)

    def _listeners(self, senders: list[int]) -> list[int]:
        listeners = self._nodes("to", self.values["to"])
        itself = next((node for node in listeners if node in senders), None)
        if itself is not None:
            self.refuse(f"to: node {itself} is the sender; a node needs no message from itself")
        return listeners

    def _sides(self) -> tuple[frozenset[int], ...]:
        sides = self.values["sides"]
        if not isinstance(sides, list) or len(sides) < 2:
            self.refuse(f"sides = {sides!r}: must be at least two lists of nodes, as in [[0, 1], [2, 3]]")
        named: list[list[int]] = []
        for side in sides:
            if side == []:
                self.refuse("sides: a side is empty; name at least one node per side")
            named.append(self._nodes("sides", side))
        everyone = [node for side in named for node in side]
        twice = next((node for place, node in enumerate(everyone) if node in everyone[:place]), None)
        if twice is not None:
            self.refuse(f"sides: node {twice} is on two sides")
        return tuple(map(frozenset, named))


def _check_order(plan: FaultPlan, nodes: int, refuse: Refuse) -> None:
    """Raise an error if the order of faults is impossible."""
    goes = [fault for fault in plan.faults if fault.kind in ("crash", "hang", "restart")]
    for node, faults in groupby(sorted(goes, key=lambda f: (f.node, f.round, f.kind != "restart")), lambda f: f.node):
        _check_node(node, faults, refuse)
    for fault in plan.faults:
        if fault.kind == "rejoin" and plan.is_absent(fault.node, fault.round):
            refuse(fault, f"node {fault.node} is absent in round {fault.round}")
    _check_somebody_is_left(plan, goes, nodes, refuse)


def _check_somebody_is_left(plan: FaultPlan, goes: list[Fault], nodes: int, refuse: Refuse) -> None:
    for fault in sorted(goes, key=lambda fault: fault.round):
        if fault.kind != "restart" and all(plan.is_absent(node, fault.round) for node in range(nodes)):
            refuse(fault, f"in round {fault.round} no node is left; keep at least one node")


def _check_node(node: int, faults: Iterable[Fault], refuse: Refuse) -> None:
    """Raise an error if a node fails while it is absent, or restarts without an earlier crash."""
    dead_since: int | None = None
    free = 1  # the first round in which the node is present again
    for fault in faults:
        if fault.kind == "restart":
            if dead_since is None:
                refuse(fault, f"node {node} has not crashed before round {fault.round}, so it cannot restart")
            dead_since, free = None, fault.round
            continue
        if dead_since is not None:
            refuse(fault, f"node {node} crashed in round {dead_since}; restart it first")
        if fault.round < free:
            refuse(fault, f"node {node} hangs until round {free - 1}; the faults of one node must not overlap")
        if fault.kind == "crash":
            dead_since = fault.round
        else:
            free = fault.round + fault.rounds


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
