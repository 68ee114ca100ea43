"""Join the records of a network's nodes into those of one run: lists by node, and the same means as the simulator."""

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
"""The records of a node's rounds 1, 2, ...; None for a missed round."""


def read_records(folder: RunFolder, rounds: int) -> Records:
    """The records of a node, one per round; None for a round that it missed or did not reach."""
    records: Records = [None if record["train_loss"] is None else record for record in folder.read()[:rounds]]
    return records + [None] * (rounds - len(records))


def join_round(round: int, records: Sequence[RoundRecord | None]) -> RoundRecord:
    """The record of a round from the records of all nodes; at least one node took part in it."""
    present = [record for record in records if record]
    nodes = _join_nodes(records)
    joined: RoundRecord = {
        "round": round,
        "train_loss": mean(known(nodes["train_loss"])),
        "disagreement": None,  # unknown: it needs all models
        "bytes_sent": sum(nodes["bytes_sent"]),
        "multiplier_min": min(known(record["multiplier_min"] for record in present)),
        "multiplier_max": max(known(record["multiplier_max"] for record in present)),
        "multiplier_change": max(known(record["multiplier_change"] for record in present)),
        "nodes": nodes,
        "layers": _join_layers(records, present[0]["layers"]["name"]),
    }
    for prefix in ("", "local_"):
        add_scores(joined, prefix, [record and _scores(record, prefix) for record in records])
    return joined


def _join_nodes(records: Sequence[RoundRecord | None]) -> NodeColumns:
    return {
        "train_loss": [record and record["nodes"]["train_loss"][0] for record in records],
        "bytes_sent": [record["nodes"]["bytes_sent"][0] if record else 0 for record in records],
    }


def _join_layers(records: Sequence[RoundRecord | None], names: list[str]) -> LayerColumns:
    def rows(column: LayerColumn) -> LayerRows:
        return [record["layers"][column][0] if record else [None] * len(names) for record in records]

    return {
        "name": names,
        "rate": rows("rate"),
        "multiplier": rows("multiplier"),
        "divergence": rows("divergence"),
        "stability": rows("stability"),
    }


def _scores(record: RoundRecord, prefix: str) -> Mapping[str, float]:
    """The scores of a node's own model in its record; a non-finite loss is null on disk."""
    scores = node_scores(record["nodes"], prefix).items()
    return {name: math.nan if value is None else value for name, (value, *_) in scores}


def join_timings(round: int, nodes: Sequence[Sequence[RoundTimings]]) -> RoundTimings:
    """The timings of a round from the timings of all nodes; the slowest node counts."""
    present = [timings[round - 1] for timings in nodes if len(timings) >= round]
    parts = [part for part in PARTS if any(part in timing for timing in present)]
    return round_timings(round, {part: max(timing.get(part, 0.0) for timing in present) for part in parts}, pack=1)


def node_facts(folder: RunFolder) -> dict[str, object]:
    """The engine and device of a node, which may differ between nodes; empty for a node that never started."""
    if not folder.environment.exists():
        return {}
    facts = json.loads(folder.environment.read_text())
    return {key: facts.get(key) for key in ("node", "engine", "device")}
