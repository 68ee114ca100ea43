"""The record of a round: what every round says, and what an evaluated one says beside it."""

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from feda2l.engines.engine import ERRORS, Member, Score
from feda2l.records.round_record import Evaluation, LayerRows, NodeColumns, RoundRecord, update_scores
from feda2l.simulate.simulation import Simulation

T = TypeVar("T")
Scores = dict[str, list[Score]]  # "global", "mean", "local": of every node


def make_record(
    simulation: Simulation,
    losses: list[float],
    layers: Mapping[str, LayerRows],
    disagreement: Tensor,
    sent: list[int],
) -> RoundRecord:
    """What every round records: losses, disagreement, bytes, multipliers, and the layers' rates and signals.

    Where time is simulated, when each node had completed the round, and when the last one had.
    """
    clock = simulation.clock
    record: RoundRecord = {
        "round": simulation.round,
        "train_loss": mean(losses),
        "disagreement": float(disagreement.sum()),
        "bytes_sent": sum(sent),
        "simulated_seconds": 0.0 if clock is None else clock.seconds,
        "multiplier_min": simulation.multiplier_range[0],
        "multiplier_max": simulation.multiplier_range[1],
        "multiplier_change": simulation.multiplier_change,
        "nodes": _node_columns(simulation, losses, sent),
        "layers": {
            "name": [layer.name for layer in simulation.layers],
            "disagreement": disagreement.tolist(),
            "rate": layers["rate"],
            "multiplier": layers["multiplier"],
            "sigma": layers["sigma"],
            "zeta": layers["zeta"],
        },
    }
    if clock is None:
        del record["simulated_seconds"]
    return record


def _node_columns(simulation: Simulation, losses: list[float], sent: list[int]) -> NodeColumns:
    nodes: NodeColumns = {"train_loss": _spread(simulation, losses, simulation.there), "bytes_sent": sent}
    if simulation.clock is not None:
        nodes["simulated_seconds"] = simulation.clock.now.tolist()
    if mail := simulation.mail():
        nodes["heard"], nodes["rejected"] = mail["heard"], mail["rejected"]
    return nodes


def put_scores(simulation: Simulation, record: RoundRecord | Evaluation, scores: Scores) -> None:
    """Put the scores of an evaluated round into its record: of every node, their means, and of the mean model."""
    member, counted = simulation.member, simulation.counted
    tested = [len(member.test) if member.tests is None else len(member.tests[node]) for node in counted]
    main = "local" if simulation.on == "local" else "global"
    for part, prefix in ((main, ""), *([("local", "local_")] if simulation.on == "both" else [])):
        sizes = tested if part == "global" else [len(member.local[node]) for node in counted]
        found = [_measured(score, size, member.classes) for score, size in zip(scores[part], sizes, strict=True)]
        add_scores(record, prefix, _spread(simulation, found, counted))
    if "mean" in scores:
        asked = zip(scores["mean"], tested, strict=False)  # one score where all nodes share the test set
        update_scores(record, _mean_model([_measured(score, size, member.classes) for score, size in asked]))


def _mean_model(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean model's scores: the mean over test sets that have samples."""
    measured = [values for values in found if values]
    names = measured[0] if measured else {}
    return {f"mean_model_{name.removeprefix('test_')}": mean([values[name] for values in measured]) for name in names}


def add_scores(record: RoundRecord | Evaluation, prefix: str, found: Sequence[Mapping[str, float] | None]) -> None:
    """Put what was measured at every node into a record, and its mean, standard deviation and worst over nodes.

    `found` holds nothing for a node that was away or has no sample to be scored on.
    """
    measured = [values for values in found if values]
    if not measured:
        return
    first, *_ = measured[0]
    figures = {prefix + name: mean([values[name] for values in measured]) for name in measured[0]}
    values = [values[first] for values in measured]
    figures[f"{prefix}{first}_std"] = float(torch.tensor(values, dtype=torch.float64).std(correction=0))
    figures[f"{prefix}{first}_worst"] = min(values) if first == "accuracy" else max(values)
    of_nodes = {prefix + name: [values[name] if values else None for values in found] for name in measured[0]}
    update_scores(record, figures, of_nodes)


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
