"""What went wrong in a network that nobody had planned to fail, written as a fault plan."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal, TypedDict

import tomli_w

from feda2l.swarm.join_records import Records
from feda2l.topology import Topology


class _Crash(TypedDict):
    kind: Literal["crash"]
    node: int
    round: int


class _Drop(TypedDict):
    kind: Literal["drop"]
    node: int
    round: int
    rounds: int
    to: list[int]


def observed_fault_plan(records: Sequence[Records], graph: Topology, rounds: int) -> str:
    """A plan of what the nodes' records tell; nothing where everybody heard everybody in every round.

    A node that never came to the end crashed; a message that was not heard was dropped, whatever became of it. How a
    node that was away came back is not told.
    """
    last = [_last(own) for own in records]
    faults: list[_Crash | _Drop] = [
        {"kind": "crash", "node": node, "round": end + 1} for node, end in enumerate(last) if end < rounds
    ]
    for sender, end in enumerate(last):
        faults += _drops(records, graph, sender, end)
    return tomli_w.dumps({"fault": faults}) if faults else ""


def _drops(records: Sequence[Records], graph: Topology, sender: int, last: int) -> Iterator[_Drop]:
    """A node's messages that were not heard; consecutive rounds with the same deaf listeners are one entry."""
    listeners = [node for node, received in enumerate(graph.period[0]) if sender in received]

    def deaf(round: int) -> list[int]:
        found = [(listener, records[listener][round - 1]) for listener in listeners]
        return [listener for listener, record in found if record and sender not in record["received"]]

    for to, group in groupby(range(1, last + 1), key=deaf):
        if to:
            lost = list(group)
            yield {"kind": "drop", "node": sender, "round": lost[0], "rounds": len(lost), "to": to}


def _last(records: Records) -> int:
    """The last round that a node took part in."""
    return max((round for round, record in enumerate(records, start=1) if record), default=0)
