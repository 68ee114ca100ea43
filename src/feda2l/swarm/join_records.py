"""The records of a network's nodes as those of one run: lists by node, and the simulator's own means over them."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from feda2l.records.run_folder import LAYER_COLUMNS, SCORES, RunFolder
from feda2l.simulate.make_record import add_scores, mean

Records = list[dict[str, Any] | None]
"""A node's rounds 1, 2, ...; None for one that went by without it."""


def read_records(folder: RunFolder, rounds: int) -> Records:
    """A node's records, one a round; those it never came to are None too."""
    found: Records = [None if record["train_loss"] is None else record for record in folder.read()[:rounds]]
    return found + [None] * (rounds - len(found))


def join_round(round: int, own: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """The record of a round from every node's; somebody was there."""
    there = [record for record in own if record]
    names = there[0]["layers"]["name"]
    away = [None] * len(names)
    sent = [record["nodes"]["bytes_sent"][0] if record else 0 for record in own]
    joined: dict[str, Any] = {
        "round": round,
        "train_loss": mean([record["train_loss"] for record in there]),
        "disagreement": None,  # it takes all models to know that
        "bytes_sent": sum(sent),
        "multiplier_min": min(record["multiplier_min"] for record in there),
        "multiplier_max": max(record["multiplier_max"] for record in there),
        "multiplier_change": max(record["multiplier_change"] for record in there),
        "nodes": {"train_loss": [record and record["nodes"]["train_loss"][0] for record in own], "bytes_sent": sent},
        "layers": {
            "name": names,
            **{name: [record["layers"][name][0] if record else away for record in own] for name in LAYER_COLUMNS},
        },
    }
    for prefix in ("", "local_"):
        add_scores(joined, prefix, [record and _scores(record, prefix) for record in own])
    return joined


def _scores(record: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """What a node's record says of its own model, in the order in which it says it."""
    found = {
        name.removeprefix(prefix): values[0] for name, values in record["nodes"].items() if name.startswith(prefix)
    }
    # a loss that overflowed is null on disk
    return {name: math.nan if value is None else value for name, value in found.items() if name in SCORES}


def join_timings(round: int, own: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A round took as long as its slowest node."""
    parts = dict.fromkeys(part for timing in own for part in timing if part not in ("round", "pack"))
    return {"round": round, **{part: max(timing.get(part, 0.0) for timing in own) for part in parts}, "pack": 1}


def node_facts(folder: RunFolder) -> dict[str, Any]:
    """What a node's process ran on, as far as nodes may differ in it; nothing of one that never began."""
    if not folder.environment.exists():
        return {}
    facts = json.loads(folder.environment.read_text())
    return {key: facts.get(key) for key in ("node", "engine", "device")}
