"""Write the observed faults of a network as a fault plan, for a run without a plan."""

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
    """A plan of the faults in the nodes' records; "" if all nodes received all messages in every round.

    A node that did not finish counts as crashed. A message that was not received counts as dropped, whatever the
    cause. The plan does not tell how an absent node came back.
    """
    last = [_last(rows) for rows in records]
    faults: list[_Crash | _Drop] = [
        {"kind": "crash", "node": node, "round": end + 1} for node, end in enumerate(last) if end < rounds
    ]
    for sender, end in enumerate(last):
        faults += _drops(records, graph, sender, end)
    return tomli_w.dumps({"fault": faults}) if faults else ""


def _drops(records: Sequence[Records], graph: Topology, sender: int, last: int) -> Iterator[_Drop]:
    """A node's lost messages; consecutive rounds with the same receivers are one entry."""
    receivers = [node for node, received in enumerate(graph.period[0]) if sender in received]

    def missed_by(round: int) -> list[int]:
        published = [(receiver, records[receiver][round - 1]) for receiver in receivers]
        return [receiver for receiver, record in published if record and sender not in record["received"]]

    for to, group in groupby(range(1, last + 1), key=missed_by):
        if to:
            lost = list(group)
            yield {"kind": "drop", "node": sender, "round": lost[0], "rounds": len(lost), "to": to}


def _last(records: Records) -> int:
    """The last round in which a node took part."""
    return max((round for round, record in enumerate(records, start=1) if record), default=0)
