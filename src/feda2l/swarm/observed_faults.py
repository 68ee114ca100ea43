"""What went wrong in a network that nobody had planned to fail, written as a fault plan."""

from collections.abc import Sequence
from typing import Any

import tomli_w

from feda2l.swarm.join_records import Records
from feda2l.topology import Topology


def met_faults(records: Sequence[Records], graph: Topology, rounds: int) -> str:
    """A plan of what the nodes' records tell; nothing where everybody heard everybody in every round.

    A node that never came to the end crashed; a message that was not heard was dropped, whatever became of it. How a
    node that was away came back is not told.
    """
    near = graph.period[0]
    crashed = {node: _last(own) + 1 for node, own in enumerate(records) if _last(own) < rounds}
    faults: list[dict[str, Any]] = [{"kind": "crash", "node": node, "round": at} for node, at in crashed.items()]
    for sender in range(graph.nodes):
        listeners = [node for node in range(graph.nodes) if sender in near[node]]
        last: dict[str, Any] = {}
        for round in range(1, crashed.get(sender, rounds + 1)):
            found = [(listener, records[listener][round - 1]) for listener in listeners]
            deaf = [listener for listener, record in found if record and sender not in record["heard"]]
            if last and last["to"] == deaf and last["round"] + last["rounds"] == round:
                last["rounds"] += 1
            elif deaf:
                last = {"kind": "drop", "node": sender, "round": round, "rounds": 1, "to": deaf}
                faults.append(last)
    return tomli_w.dumps({"fault": faults}) if faults else ""


def _last(records: Records) -> int:
    """The last round that a node took part in."""
    return max((round for round, record in enumerate(records, start=1) if record), default=0)
