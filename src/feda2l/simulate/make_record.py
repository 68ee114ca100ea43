"""The record of a round: what every round says, and what an evaluated one says beside it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from feda2l.engines.engine import ERRORS, Member, Score
from feda2l.simulate.simulation import Simulation

T = TypeVar("T")
Scores = dict[str, list[Score]]  # "global", "mean", "local": of every node


def make_record(
    simulation: Simulation, losses: list[float], layers: dict[str, Any], disagreement: Tensor, sent: list[int]
) -> dict[str, Any]:
    """What every round records: losses, disagreement, bytes, multipliers, and the layers' rates and signals.

    Where time is simulated, when each node had completed the round, and when the last one had.
    """
    clock = simulation.clock
    return {
        "round": simulation.round,
        "train_loss": mean(losses),
        "disagreement": float(disagreement.sum()),
        "bytes_sent": sum(sent),
        **({} if clock is None else {"simulated_seconds": clock.seconds}),
        "multiplier_min": simulation.multiplier_range[0],
        "multiplier_max": simulation.multiplier_range[1],
        "multiplier_change": simulation.multiplier_change,
        "nodes": {
            "train_loss": _spread(simulation, losses, simulation.there),
            "bytes_sent": sent,
            **({} if clock is None else {"simulated_seconds": clock.now.tolist()}),
            **simulation.mail(),
        },
        "layers": {"name": [layer.name for layer in simulation.layers], "disagreement": disagreement.tolist()} | layers,
    }


def put_scores(simulation: Simulation, record: dict[str, Any], scores: Scores) -> None:
    """Put an evaluated round's figures into its record: of every node, their mean, of the mean model."""
    member, counted = simulation.member, simulation.counted
    tested = [len(member.test) if member.tests is None else len(member.tests[node]) for node in counted]
    main = "local" if simulation.on == "local" else "global"
    for part, prefix in ((main, ""), *([("local", "local_")] if simulation.on == "both" else [])):
        sizes = tested if part == "global" else [len(member.local[node]) for node in counted]
        found = [_measured(score, size, member.classes) for score, size in zip(scores[part], sizes, strict=True)]
        add_scores(record, prefix, _spread(simulation, found, counted))
    if "mean" in scores:
        asked = zip(scores["mean"], tested, strict=False)  # one score where all nodes share the test set
        found = [_measured(score, size, member.classes) for score, size in asked]
        for name in next(filter(None, found), {}):
            record["mean_model_" + name.removeprefix("test_")] = mean([values[name] for values in found if values])


def add_scores(record: dict[str, Any], prefix: str, found: Sequence[Mapping[str, float] | None]) -> None:
    """Put what was measured at every node into a record, and what it comes to: mean, spread and worst.

    `found` holds nothing for a node that was away or has no sample to be scored on.
    """
    measured = [values for values in found if values]
    if not measured:
        return
    first, *others = measured[0]
    for name in (first, *others):
        record["nodes"][prefix + name] = [values[name] if values else None for values in found]
        record[prefix + name] = mean([values[name] for values in measured])
    values = [values[first] for values in measured]
    record[f"{prefix}{first}_std"] = float(torch.tensor(values, dtype=torch.float64).std(correction=0))
    record[f"{prefix}{first}_worst"] = min(values) if first == "accuracy" else max(values)


def _measured(score: Score, size: int, classes: int | None) -> dict[str, float]:
    """What a score over `size` samples comes to, what matters most first; nothing where there was no sample."""
    if not size:
        return {}
    if classes is not None:
        return {"accuracy": sum(score.tally) / size, "test_loss": score.loss / size}
    errors = {name: total / size for name, total in zip(ERRORS, score.tally, strict=True)}
    return errors | {"test_loss": score.loss / size}


def accuracy_by_class(member: Member, scores: Scores, device: torch.device) -> list[float | None] | None:
    """The accuracy on each class of the test set, the mean over nodes; None for a class that has no sample."""
    if "global" not in scores or member.classes is None:
        return None
    targets = member.test.targets(torch.arange(len(member.test), device=device))
    counts = torch.bincount(targets, minlength=member.classes).tolist()
    right = [mean([score.tally[c] for score in scores["global"]]) for c in range(member.classes)]
    return [hits / n if n else None for hits, n in zip(right, counts, strict=True)]


def _spread(simulation: Simulation, values: Sequence[T], nodes: Sequence[int]) -> list[T | None]:
    """Values of these nodes, by node: None for the others."""
    spread: list[T | None] = [None] * simulation.nodes
    for node, value in zip(nodes, values, strict=True):
        spread[node] = value
    return spread


def mean(values: Sequence[float]) -> float:
    """The mean over nodes of a figure."""
    return math.fsum(values) / len(values)  # exact: plain sums differ between Python versions
