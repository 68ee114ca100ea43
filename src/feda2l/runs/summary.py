"""What a run came to, from its records: `summary.json`."""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from feda2l.data.series import Series, naive_errors
from feda2l.runs.assemble import Assembled
from feda2l.records.curve_metrics import best_value, rounds_to_grid, rounds_to_target
from feda2l.records.round_record import Metric
from feda2l.records.round_timings import PARTS, TRAINING, total_seconds
from feda2l.records.run_folder import RunFolder
from feda2l.simulate.faulty import PartialSimulation


def write_summary(
    assembled: Assembled, folder: RunFolder, by_class: list[float | None] | None, *, pack: int = 1
) -> dict[str, Any]:
    """End a run folder: its tables, and `summary.json` with the accuracy on each class where there are classes."""
    summary = summarise(assembled, folder, pack)
    if by_class:
        summary["class_accuracy"] = dict(zip(assembled.dataset.class_names, by_class, strict=True))
    folder.write_tables()
    folder.write_json(folder.summary, summary)
    return summary


def summarise(assembled: Assembled, folder: RunFolder, pack: int) -> dict[str, Any]:
    """What a run came to, from its records."""
    spec, simulation = assembled.spec, assembled.simulation
    records, timings = folder.read(), folder.read_timings()
    metric: Metric = "accuracy" if simulation.member.classes is not None else "mse"
    curve, falls, smoothing = [record.get(metric) for record in records], metric == "mse", spec.evaluation.smoothing
    evaluated = [record for record in records if record.get(metric) is not None]
    last: Mapping[str, object] = evaluated[-1] if evaluated else {}
    seconds = {part: sum(timing.get(part, 0.0) for timing in timings) for part in PARTS}
    summary: dict[str, Any] = {
        "name": spec.name,
        "status": "finished" if simulation.diverged is None else "diverged",
        "rounds": len(records),
        "engine": json.loads(folder.environment.read_text())["engine"],
        "pack": pack,
        "metric": metric,
        metric: {"final": last.get(metric), **best_value(curve, smoothing, falls=falls)},
        "final": {key: value for key, value in last.items() if key not in ("nodes", "layers")},
        "bytes_sent": sum(record["bytes_sent"] for record in records),
        "seconds": seconds,
        "rounds_to": {} if falls else rounds_to_grid(curve, smoothing),
        "mixing": simulation.mixing.report(),
    }
    if isinstance(assembled.dataset, Series):
        summary["naive"] = naive(assembled.dataset, by_node=simulation.member.tests is not None)
    if simulation.algorithm.searches:
        summary["search"] = {"rates": simulation.notes["found"].tolist(), "rounds": search_rounds(assembled)}
    if simulation.clock is not None:
        summary["simulated_seconds"] = records[-1]["simulated_seconds"] if records else 0.0
    if assembled.faults or isinstance(simulation, PartialSimulation):
        heard = [count for record in records for count in record["nodes"]["heard"]]
        rejected = [count for record in records for count in record["nodes"]["rejected"] if count]
        missed = {"missed": heard.count(None), "alone": heard.count(0)}
        if assembled.faults:
            summary["faults"] = {**missed, "rejected": sum(rejected)}
        else:
            summary["participation"] = missed
    if simulation.diverged:
        where = simulation.diverged
        summary["diverged"] = {"round": where.round, "node": where.node, "layer": where.layer}
    if (target := spec.evaluation.target) is not None:
        smoothing = 1 if falls else smoothing  # as the paper counts: an accuracy is smoothed, an MSE is not
        reached = rounds_to_target(curve, target, smoothing, falls=falls)
        summary["target"] = {
            metric: target,
            "smoothing": smoothing,
            "every": spec.evaluation.every,
            "round": reached,
        }
        if reached and simulation.clock is not None:
            summary["target"]["simulated_seconds"] = records[reached - 1]["simulated_seconds"]
        if reached and "search" in summary:
            summary["target"]["round_with_search"] = reached + summary["search"]["rounds"]
        # packed runs share the machine: their seconds are not their own
        if reached and pack == 1 and all(timing.get("pack") == 1 for timing in timings):
            until = timings[:reached]
            summary["target"]["seconds"] = sum(total_seconds(timing, TRAINING) for timing in until)
            summary["target"]["seconds_with_evaluation"] = sum(total_seconds(timing) for timing in until)
    return summary


def naive(series: Series, *, by_node: bool) -> dict[str, dict[str, float]]:
    """What the naive forecasts come to on the test windows: the mean over nodes, or where they are shared, over all."""
    counts = torch.bincount(series.test_node, minlength=series.nodes).double()
    weights = torch.full_like(counts, 1 / series.nodes) if by_node else counts / counts.sum()
    found = naive_errors(series).items()
    return {name: {"mse": float(weights @ errors.mse), "mae": float(weights @ errors.mae)} for name, errors in found}


def search_rounds(assembled: Assembled) -> float:
    """What the search before round 1 cost, in rounds: the mean over nodes of its local epochs over a round's."""
    epochs: Tensor = assembled.simulation.notes["epochs"]
    return float(epochs.mean()) / assembled.spec.training.epochs
