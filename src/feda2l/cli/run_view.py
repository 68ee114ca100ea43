"""The terminal output of one run: its partition, its summary and the scores of its models."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from feda2l.data.partition import table as count_samples
from feda2l.errors import FedA2LError
from feda2l.plain_values import PlainMapping
from feda2l.records.round_record import MEAN_MODEL, Evaluation, node_scores
from feda2l.report.plots import plot_partition
from feda2l.report.tables import partition_table
from feda2l.runs.assign_samples import partition_of
from feda2l.runs.datasets import load_data
from feda2l.spec.spec import Spec


def show_partition(spec: Spec, data: Path | None, out: Path | None) -> None:
    """Print and plot which node holds which samples."""
    with spec.at_fault():
        dataset = load_data(spec.data, data)
        parts = partition_of(spec, dataset)
    names, series = dataset.class_names, dataset.classes is None
    # a series has groups of windows instead of classes
    groups = dataset.groups if series else dataset.train.targets(torch.arange(len(dataset.train)))
    if groups is None:
        raise FedA2LError(
            f"data.name = {spec.data.name!r}: --show-partition needs classes or groups, and these data have neither"
        )
    counts = count_samples(groups, parts, len(names))
    Console().print(partition_table(counts, names, series=series))
    path = Path(f"{spec.name}-partition.png") if out is None else Path(f"{out}-partition.png")
    skew = f" {spec.data.alpha:g}" if spec.data.partition in ("dirichlet", "cluster") else ""
    title = f"{spec.data.name}, {len(parts)} nodes, {spec.data.partition}{skew}"
    plot_partition(counts, names, title, path, kind="site" if series else "class")
    print(f"figure: {path} (in the folder {path.absolute().parent})")


def summary_text(summary: PlainMapping, path: Path) -> str:
    """The summary of a run in a few lines."""
    metric, final = summary["metric"], summary["final"]
    values = summary[metric]
    first = (
        f"{summary['name']}: {summary['rounds']} rounds, {metric} {values['final']:.4f} "
        f"(nodes: std {final[f'{metric}_std']:.4f}, worst {final[f'{metric}_worst']:.4f}), "
        f"best {values['best']:.4f} in round {values['best_round']}"
    )
    if "naive" in summary:
        first += f"; mae {final['mae']:.4f}"
    parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in summary["seconds"].items())
    last = [f"seconds: {parts}; sent {summary['bytes_sent'] / 1e6:,.1f} MB", f"records: {path}"]
    return "\n".join([first, *_conditions(summary), *_target(summary), *last])


def _conditions(summary: PlainMapping) -> Iterator[str]:
    """Lines that only some runs have: naive forecasts, rate search, faults, participation, a simulated network."""
    if "naive" in summary:
        naive = ", ".join(f"{name} {errors['mse']:.4f}" for name, errors in summary["naive"].items())
        yield f"naive forecasts, mse: {naive}"
    if "search" in summary:
        rates, cost = summary["search"]["rates"], summary["search"]["rounds"]
        yield f"base rates found: {min(rates):.3g} to {max(rates):.3g}; the search cost {cost:.0f} rounds"
    if faults := summary.get("faults"):
        yield (
            f"faults: {faults['missed']} node rounds missed, {faults['alone']} without any neighbour, "
            f"{faults['rejected']} messages rejected"
        )
    if partly := summary.get("participation"):
        yield f"participation: {partly['missed']} node rounds skipped, {partly['alone']} without any neighbour"
    if (simulated := summary.get("simulated_seconds")) is not None:
        each = simulated / max(summary["rounds"], 1)
        yield f"simulated time on this network: {simulated:,.1f} s, {each:.3g} s per round"


def _target(summary: PlainMapping) -> Iterator[str]:
    target = summary.get("target")
    if target and target["round"]:
        time = f" after {target['seconds']:.1f} s" if "seconds" in target else ""
        time += f" ({target['simulated_seconds']:,.1f} simulated s)" if "simulated_seconds" in target else ""
        yield f"target {target[summary['metric']]:g} reached in round {target['round']}{time}"


def scores_table(scores: Evaluation, node: int | None) -> Table:
    """The scores of every model, or of one node's model."""
    columns = node_scores(scores["nodes"])
    rows = list(zip(*columns.values(), strict=True))
    if node not in (None, *range(len(rows))):
        raise FedA2LError(f"--node {node}: the run has nodes 0 to {len(rows) - 1}")
    table = Table(title=f"after round {scores['round']}")
    table.add_column("model")
    for column in columns:
        table.add_column(column.removeprefix("test_"), justify="right")

    for number in range(len(rows)) if node is None else [node]:
        table.add_row(f"node {number}", *_texts(rows[number]))
    if node is None:
        table.add_row("mean of nodes", *_texts(scores[column] for column in columns), style="bold")
        if means := [scores[name] for name in MEAN_MODEL if name in scores]:
            table.add_row("mean model", *_texts(means))
    return table


def _texts(values: Iterable[float | None]) -> list[str]:
    # an absent node and a node without test samples have no score
    return ["-" if value is None else f"{value:.4f}" for value in values]
