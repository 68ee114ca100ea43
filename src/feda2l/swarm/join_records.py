"""The records of a network's nodes as those of one run: lists by node, and the simulator's own means over them."""

import json
import math
from collections.abc import Mapping, Sequence

from feda2l.records.round_record import (
    LayerColumn,
    LayerColumns,
    LayerRows,
    NodeColumns,
    RoundRecord,
    known,
    node_scores,
)
from feda2l.records.round_timings import PARTS, RoundTimings, round_timings
from feda2l.records.run_folder import RunFolder
from feda2l.round.record import add_scores, mean

Records = list[RoundRecord | None]
"""A node's rounds 1, 2, ...; None for one that it missed."""


def read_records(folder: RunFolder, rounds: int) -> Records:
    """A node's records, one per round; None for those that it did not reach, too."""
    found: Records = [None if record["train_loss"] is None else record for record in folder.read()[:rounds]]
    return found + [None] * (rounds - len(found))


def join_round(round: int, own: Sequence[RoundRecord | None]) -> RoundRecord:
    """The record of a round from every node's; at least one node took part in it."""
    there = [record for record in own if record]
    nodes = _join_nodes(own)
    joined: RoundRecord = {
        "round": round,
        "train_loss": mean(known(nodes["train_loss"])),
        "disagreement": None,  # it needs all models
        "bytes_sent": sum(nodes["bytes_sent"]),
        "multiplier_min": min(known(record["multiplier_min"] for record in there)),
        "multiplier_max": max(known(record["multiplier_max"] for record in there)),
        "multiplier_change": max(known(record["multiplier_change"] for record in there)),
        "nodes": nodes,
        "layers": _join_layers(own, there[0]["layers"]["name"]),
    }
    for prefix in ("", "local_"):
        add_scores(joined, prefix, [record and _scores(record, prefix) for record in own])
    return joined


def _join_nodes(own: Sequence[RoundRecord | None]) -> NodeColumns:
    return {
        "train_loss": [record and record["nodes"]["train_loss"][0] for record in own],
        "bytes_sent": [record["nodes"]["bytes_sent"][0] if record else 0 for record in own],
    }


def _join_layers(own: Sequence[RoundRecord | None], names: list[str]) -> LayerColumns:
    def rows(column: LayerColumn) -> LayerRows:
        return [record["layers"][column][0] if record else [None] * len(names) for record in own]

    return {
        "name": names,
        "rate": rows("rate"),
        "multiplier": rows("multiplier"),
        "divergence": rows("divergence"),
        "stability": rows("stability"),
    }


def _scores(record: RoundRecord, prefix: str) -> Mapping[str, float]:
    """What a node's record says of its own model; a loss that overflowed is null on disk."""
    found = node_scores(record["nodes"], prefix).items()
    return {name: math.nan if value is None else value for name, (value, *_) in found}


def join_timings(round: int, nodes: Sequence[Sequence[RoundTimings]]) -> RoundTimings:
    """A round's timings from all of every node's: it took as long as its slowest node."""
    own = [timings[round - 1] for timings in nodes if len(timings) >= round]
    parts = [part for part in PARTS if any(part in timing for timing in own)]
    return round_timings(round, {part: max(timing.get(part, 0.0) for timing in own) for part in parts}, pack=1)


def node_facts(folder: RunFolder) -> dict[str, object]:
    """What a node's process ran on, as far as nodes may differ in it; empty for one that never began."""
    if not folder.environment.exists():
        return {}
    facts = json.loads(folder.environment.read_text())
    return {key: facts.get(key) for key in ("node", "engine", "device")}
