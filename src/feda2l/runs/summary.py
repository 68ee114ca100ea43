"""The outcome of a run, from its records: `summary.json`."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from feda2l.data.series import Series, naive_errors
from feda2l.records.curve_metrics import best_value, rounds_to_grid, rounds_to_target
from feda2l.records.round_record import Metric, RoundRecord
from feda2l.records.round_timings import PARTS, TRAINING, RoundTimings, total_seconds
from feda2l.records.run_folder import RunFolder
from feda2l.records.theory import theory_summary
from feda2l.round.record import mean
from feda2l.round.run import LiveRun
from feda2l.runs.assemble import Assembled

Section = dict[str, object]
"""Some keys of the summary; none where they do not apply."""


class Searched(NamedTuple):
    """What a search before round 1 found: base rates and local epochs, of all nodes."""

    rates: list[float]
    epochs: list[float]


def searched_rates(run: LiveRun) -> Searched | None:
    """What the search before round 1 found, if the run's algorithm has one. To be called by all ranks together."""
    if run.plan.algorithm.rate_search is None:
        return None
    small_state = run.state.small_state
    return Searched(*(run.collectives.of_all(small_state[name].tolist()) for name in ("found", "epochs")))


def write_summary(
    assembled: Assembled,
    folder: RunFolder,
    by_class: list[float | None] | None,
    searched: Searched | None,
    *,
    pack: int = 1,
) -> Section:
    """Complete a run folder: its tables, and `summary.json` with the accuracy on each class where there are classes."""
    summary = summarise(assembled, folder, searched, pack)
    if by_class:
        summary["class_accuracy"] = dict(zip(assembled.dataset.class_names, by_class, strict=True))
    folder.write_tables()
    folder.write_json(folder.summary, summary)
    return summary


def summarise(assembled: Assembled, folder: RunFolder, searched: Searched | None, pack: int) -> Section:
    """The outcome of a run, from its records."""
    spec, run = assembled.spec, assembled.live
    records, timings = folder.read(), folder.read_timings()
    metric: Metric = "mse" if run.plan.member.classes is None else "accuracy"
    alone = pack == 1 and all(timing.get("pack") == 1 for timing in timings)
    mixing = run.plan.mixing.report()
    base_rate = spec.rates.base if searched is None else mean(searched.rates)
    return {
        "name": spec.name,
        "status": "finished" if run.non_finite is None else "non_finite",
        "rounds": len(records),
        "engine": json.loads(folder.environment.read_text())["engine"],
        "pack": pack,
        "metric": metric,
        **_scores(records, metric, spec.evaluation.smoothing),
        "bytes_sent": sum(record["bytes_sent"] for record in records),
        "seconds": {part: sum(timing.get(part, 0.0) for timing in timings) for part in PARTS},
        "rounds_to": {} if metric == "mse" else rounds_to_grid(_curve(records, metric), spec.evaluation.smoothing),
        "mixing": mixing,
        **theory_summary(records, base_rate, run.plan.network, mixing["mixing_norm"]),
        **_naive_forecasts(assembled),
        **_search(assembled, searched),
        **_simulated_time(run, records),
        **_absences(assembled, records),
        **_divergence(run),
        **_target(assembled, records, timings if alone else None, metric, searched),
    }


def _curve(records: Sequence[RoundRecord], metric: Metric) -> list[float | None]:
    return [record.get(metric) for record in records]


def _scores(records: Sequence[RoundRecord], metric: Metric, smoothing: int) -> Section:
    """The last and the best score, and all figures of the last evaluated round."""
    curve = _curve(records, metric)
    evaluated = [record for record in records if record.get(metric) is not None]
    last: Mapping[str, object] = evaluated[-1] if evaluated else {}
    return {
        metric: {"final": last.get(metric), **best_value(curve, smoothing, falls=metric == "mse")},
        "final": {key: value for key, value in last.items() if key not in ("nodes", "layers")},
    }


def _naive_forecasts(assembled: Assembled) -> Section:
    if not isinstance(assembled.dataset, Series):
        return {}
    return {"naive": naive(assembled.dataset, by_node=assembled.live.plan.member.tests is not None)}


def _search(assembled: Assembled, searched: Searched | None) -> Section:
    """The base rates that a search before round 1 found, and its cost in rounds."""
    if searched is None:
        return {}
    return {"search": {"rates": searched.rates, "rounds": _search_rounds(assembled, searched)}}


def _simulated_time(run: LiveRun, records: Sequence[RoundRecord]) -> Section:
    if run.exchange.clock is None:
        return {}
    return {"simulated_seconds": records[-1]["simulated_seconds"] if records else 0.0}


def _absences(assembled: Assembled, records: Sequence[RoundRecord]) -> Section:
    """How many rounds nodes missed or spent alone, under a fault plan or with partial participation."""
    if not assembled.faults and not assembled.participation:
        return {}
    received = [count for record in records for count in record["nodes"]["received"]]
    missed = {"missed": received.count(None), "alone": received.count(0)}
    if not assembled.faults:
        return {"participation": missed}
    rejected = [count for record in records for count in record["nodes"]["rejected"] if count]
    return {"faults": {**missed, "rejected": sum(rejected)}}


def _divergence(run: LiveRun) -> Section:
    where = run.non_finite
    return {"non_finite": {"round": where.round, "node": where.node, "layer": where.layer}} if where else {}


def _target(
    assembled: Assembled,
    records: Sequence[RoundRecord],
    timings: Sequence[RoundTimings] | None,
    metric: Metric,
    searched: Searched | None,
) -> Section:
    """When the run reached its target: the round, with the cost of its search, and seconds.

    `timings` is None where packed runs shared the machine: the seconds of one run are then unknown.
    """
    spec = assembled.spec
    if spec.evaluation.target is None:
        return {}
    falls = metric == "mse"
    smoothing = 1 if falls else spec.evaluation.smoothing  # as the paper counts: an accuracy is smoothed, an MSE is not
    reached = rounds_to_target(_curve(records, metric), spec.evaluation.target, smoothing, falls=falls)
    target: Section = {
        metric: spec.evaluation.target,
        "smoothing": smoothing,
        "every": spec.evaluation.every,
        "round": reached,
    }
    if reached:
        if assembled.live.exchange.clock is not None:
            target["simulated_seconds"] = records[reached - 1]["simulated_seconds"]
        if searched is not None:
            target["round_with_search"] = reached + _search_rounds(assembled, searched)
        target |= _measured_seconds(timings and timings[:reached])
    return {"target": target}


def _measured_seconds(timings: Sequence[RoundTimings] | None) -> Section:
    if timings is None:
        return {}
    return {
        "seconds": sum(total_seconds(timing, TRAINING) for timing in timings),
        "seconds_with_evaluation": sum(total_seconds(timing) for timing in timings),
    }


def naive(series: Series, *, by_node: bool) -> dict[str, dict[str, float]]:
    """Errors of the naive forecasts on the test windows: the mean over nodes, or over windows that they share."""
    counts = torch.bincount(series.test_node, minlength=series.nodes).double()
    weights = torch.full_like(counts, 1 / series.nodes) if by_node else counts / counts.sum()
    errors_by_channel = naive_errors(series).items()
    return {
        name: {"mse": float(weights @ errors.mse), "mae": float(weights @ errors.mae)}
        for name, errors in errors_by_channel
    }


def _search_rounds(assembled: Assembled, searched: Searched) -> float:
    """Cost of the search before round 1, in rounds: the mean over nodes of its local epochs, divided by a round's."""
    return mean(searched.epochs) / assembled.spec.training.epochs
