"""Make the record of a round and add scores to it."""

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

import torch

from feda2l.records.round_record import Evaluation, NodeColumns, RoundRecord, known, update_scores
from feda2l.round.adapt import Adapted
from feda2l.round.compare import distances
from feda2l.round.run import LiveRun

T = TypeVar("T")


def make_record(run: LiveRun, nodes: Sequence[int], losses: Sequence[float], adapted: Sequence[Adapted]) -> RoundRecord:
    """Record a round: losses, disagreement, bytes, multipliers, and the rates and signals of the layers.

    The disagreement of each layer is (1/N) sum_i ||theta_i - mean||^2 over the aggregated models of the nodes that
    count. If time is simulated, the record says when each node and when the last node completed the round. At a process
    that does not write records, only the number of the round is set.
    """
    plan, exchange, round = run.plan, run.exchange, run.state.round
    by_node = zip(
        adapted,
        spread(plan.nodes, nodes, losses),
        spread(plan.nodes, run.counted, distances(run).tolist()),
        strict=True,
    )
    everyone = run.collectives.at_leader(list(by_node))
    if everyone is None:
        return cast(RoundRecord, {"round": round})
    layers, loss, distance = zip(*everyone, strict=True)
    disagreement = torch.tensor([row for row in distance if row is not None], dtype=torch.float64).mean(dim=0)
    sent, clock = exchange.bytes_sent(run), exchange.clock
    record: RoundRecord = {
        "round": round,
        "train_loss": mean(known(loss)),
        "disagreement": float(disagreement.sum()),
        "bytes_sent": sum(sent),
        "simulated_seconds": 0.0 if clock is None else clock.seconds,
        "multiplier_min": min(known(row.least for row in layers)),
        "multiplier_max": max(known(row.largest for row in layers)),
        "multiplier_change": max(known(row.change for row in layers)),
        "nodes": _node_columns(run, list(loss), sent),
        "layers": {
            "name": [layer.name for layer in plan.layers],
            "disagreement": disagreement.tolist(),
            "rate": [row.rate for row in layers],
            "multiplier": [row.multiplier for row in layers],
            "divergence": [row.divergence for row in layers],
            "stability": [row.stability for row in layers],
        },
    }
    if clock is None:
        del record["simulated_seconds"]
    return record


def _node_columns(run: LiveRun, losses: list[float | None], sent: list[int]) -> NodeColumns:
    columns: NodeColumns = {"train_loss": losses, "bytes_sent": sent}
    clock, counts = run.exchange.clock, run.exchange.message_counts(run.state.round)
    if clock is not None:
        columns["simulated_seconds"] = clock.now.tolist()
    if counts is not None:
        columns["received"], columns["rejected"] = counts
    return columns


def add_scores(record: RoundRecord | Evaluation, prefix: str, scores: Sequence[Mapping[str, float] | None]) -> None:
    """Add every node's scores to a record, and the mean, standard deviation and worst value over nodes.

    `scores` is None or empty for a node that was absent or has no samples to be scored on.
    """
    measured = [values for values in scores if values]
    if not measured:
        return
    first, *_ = measured[0]
    figures = {prefix + name: mean([values[name] for values in measured]) for name in measured[0]}
    values = [values[first] for values in measured]
    figures[f"{prefix}{first}_std"] = float(torch.tensor(values, dtype=torch.float64).std(correction=0))
    figures[f"{prefix}{first}_worst"] = min(values) if first == "accuracy" else max(values)
    of_nodes = {prefix + name: [values[name] if values else None for values in scores] for name in measured[0]}
    update_scores(record, figures, of_nodes)


def spread(count: int, nodes: Sequence[int], values: Sequence[T]) -> list[T | None]:
    """Spread the values of these nodes over a list of all `count` nodes; None for the others."""
    if len(nodes) == count:
        return list(values)
    spread: list[T | None] = [None] * count
    for node, value in zip(nodes, values, strict=True):
        spread[node] = value
    return spread


def mean(values: Sequence[float]) -> float:
    """Return the mean over nodes."""
    return math.fsum(values) / len(values)  # exact, because plain sums differ between Python versions
