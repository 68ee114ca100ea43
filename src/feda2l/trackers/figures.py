"""Reduce a round to single numbers for trackers: name -> value."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeGuard

from feda2l.plain_values import PlainDict, PlainMapping
from feda2l.records.round_record import LAYER_COLUMNS, Metric, RoundRecord, known

WORST: Mapping[Metric, Callable[[Iterable[float]], float]] = {"accuracy": min, "mse": max}


def figures(record: RoundRecord) -> dict[str, float]:
    """Return the means over nodes, the score of the worst node, and each layer's learning rate and signals.

    Absent nodes and values that were not measured are left out.

    >>> nodes = {"accuracy": [0.75, None, 0.25]}
    >>> layers = {"name": ["fc"], "rate": [[0.1], [None], [0.3]]}
    >>> figures({"round": 2, "accuracy": 0.5, "seconds": 1.5, "nodes": nodes, "layers": layers})
    {'accuracy': 0.5, 'seconds': 1.5, 'worst_accuracy': 0.25, 'rate/fc': 0.2}
    """
    result = {key: value for key, value in record.items() if key != "round" and _is_number(value)}
    for metric, worst in WORST.items():
        if values := known(record["nodes"].get(metric, ())):
            result[f"worst_{metric}"] = worst(values)
    layers = record["layers"]
    for key in LAYER_COLUMNS:
        for name, column in zip(layers["name"], zip(*layers.get(key, ()), strict=True), strict=False):
            if values := known(column):
                result[f"{key}/{name}"] = sum(values) / len(values)
    return result


def outcome(summary: PlainMapping) -> PlainDict:
    """Return the result of a run as single values: status, final and best score, rounds to the target."""
    metric = summary.get("metric", "")
    figures_of_run = {f"{key}_{metric}": value for key, value in summary.get(metric, {}).items() if _is_number(value)}
    if (target := summary.get("target")) and target["round"] is not None:
        figures_of_run["rounds_to_target"] = target["round"]
    return {"status": summary["status"], **figures_of_run}


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
