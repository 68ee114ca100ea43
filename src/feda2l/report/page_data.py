"""The data of the page, as plain values that are small enough to be embedded."""

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

import numpy as np
import polars
from numpy.typing import NDArray

from feda2l.errors import FedA2LError
from feda2l.report.curves import Floats, mean_of, read_layers, why_no_layers
from feda2l.report.draw_scores import seeds_band, seeds_seconds
from feda2l.report.find_runs import FoundRun
from feda2l.report.results import Cell, Contest, ResultTable
from feda2l.report.sheets import Sheet, sheets_of
from feda2l.report.words import naive_words, setting_of
from feda2l.spec.spec import Spec

POINTS = 240  # of a curve
BINS = 100  # columns of a heat map; with more rounds, each is a mean over several
NODES = 32  # nodes in heat maps
HEAT_BYTES = 4_000_000  # size of all heat maps together
RUNS = 80  # runs with spec, graph and rates in the page
GRAPH_NODES = 150
PARTITIONS = 4
PARTITION_CELLS = 8000
MISSING = 65535
ROLES = ("ours", "control", "constant", "baseline")


Json = dict[str, object]  # plain values for the page
Places = NDArray[np.int64]


class Packed(TypedDict):
    """Values of a heat map as text, and the ends of their range and of the colour scale."""

    low: float
    high: float
    top: float
    values: str


class Heat(TypedDict):
    """Learning rate, divergence and stability of a run as heat maps."""

    layers: list[str]
    nodes: int
    of: int
    width: int
    bins: int
    rate: Packed
    divergence: Packed
    stability: Packed


def page_data(
    tables: Sequence[ResultTable],
    related: Sheet,
    notes: Sequence[str],
    *,
    printed: Sequence[Sheet] = (),
    primary: Sequence[Sheet] = (),
) -> Json:
    """Everything that the page draws; a sentence replaces what is missing."""
    settings = [_setting(table, contest, several=len(tables) > 1) for table in tables for contest in table.contests]
    contests = [contest for table in tables for contest in table.contests]
    chosen = [
        (str(own["name"]), cell) for own, contest in zip(settings, contests, strict=True) for cell in contest.cells
    ]
    runs, left = _runs(chosen)
    shown = [
        {"title": table.title, "setting": setting_of(table), "sheets": [_sheet(s) for s in sheets_of(table)]}
        for table in tables
    ]
    if primary:
        setting = "The tests that a study or --holm names; Holm's method corrects their p values for their number."
        shown.append({"title": "Primary tests", "setting": setting, "sheets": [_sheet(s) for s in primary]})
    if printed:
        setting = "All runs of this report that belong there, whatever their study; a cell without runs says so."
        shown.append({"title": "In the paper's layout", "setting": setting, "sheets": [_sheet(s) for s in printed]})
    return {
        "tables": shown,
        "settings": settings,
        "runs": runs,
        "partitions": _partitions([cell.example.run for _, cell in chosen]),
        "related": _sheet(related),
        "notes": [*notes, *left],
    }


def to_json(data: Mapping[str, object]) -> str:
    """JSON for a <script>: it contains no closing tag and no NaN."""
    return json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")


def numbers(values: Iterable[float], digits: int = 5) -> list[float | None]:
    """Round to the digits that a screen can show; NaN becomes null."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]


def _sheet(sheet: Sheet) -> Json:
    return {
        "title": sheet.title,
        "header": sheet.header,
        "rows": [[[entry.text, entry.place or 0] for entry in row] for row in sheet.rows],
        "notes": sheet.notes,
    }


def _setting(table: ResultTable, contest: Contest, *, several: bool) -> Json:
    return {
        "name": " / ".join(filter(None, (table.title * several, contest.where))) or table.title,
        "metric": table.metric,
        "target": contest.target,
        "naive": contest.naive and [naive_words(contest.naive[0]), contest.naive[1]],
        "methods": [_method(contest, cell) for cell in contest.cells],
    }


def _method(contest: Contest, cell: Cell) -> Json:
    middle, low, high = seeds_band(cell)
    seconds = seeds_seconds(cell)
    at = _thin(np.flatnonzero(~np.isnan(middle)))
    distance = mean_of([figures.curve.disagreement for figures in cell.sound])
    there = _thin(np.flatnonzero(~np.isnan(distance)))
    sent = [np.nancumsum(figures.curve.bytes_sent) for figures in cell.sound]
    arrived = [
        float(total[figures.reached - 1])
        for total, figures in zip(sent, cell.sound, strict=True)
        if figures.reached is not None and figures.reached <= len(total)
    ]
    complete = len(arrived) == len(cell.seeds)
    return {
        "name": cell.row,
        "role": cell.role,
        "seeds": len(cell.seeds),
        "x": (at + 1).tolist(),
        **({} if seconds is None else {"seconds": numbers(seconds[at])}),
        "mean": numbers(middle[at]),
        "low": numbers(low[at]),
        "high": numbers(high[at]),
        "distance_x": (there + 1).tolist(),
        "distance": numbers(distance[there]),
        "bytes": float(np.mean([total[-1] for total in sent])),
        "bytes_to_target": float(np.mean(arrived)) if arrived and complete else None,
    }


def _runs(chosen: list[tuple[str, Cell]]) -> tuple[list[Json], list[str]]:
    """The first seed of each method; heat maps up to the size limit, those of FedA2L first."""
    notes = []
    by_role = sorted(range(len(chosen)), key=lambda number: ROLES.index(chosen[number][1].role))[:RUNS]
    if len(chosen) > RUNS:
        notes.append(f"the page shows rates, graph and spec of {RUNS} of {len(chosen)} methods and settings")
    room = HEAT_BYTES
    shown: dict[int, Json] = {}
    crowded = 0
    for number in by_role:
        setting, cell = chosen[number]
        run = cell.example.run
        heat: Heat | str = "the page is full; make a report of this run's folder alone"
        if room > 0:
            heat = heat_of(run)
            signals = () if isinstance(heat, str) else (heat["rate"], heat["divergence"], heat["stability"])
            room -= sum(len(signal["values"]) for signal in signals)
        else:
            crowded += 1
        shown[number] = {
            "name": f"{cell.row}, seed {run.seed}",
            "setting": setting,
            "metric": run.metric,
            "nodes": numbers(cell.example.curve.last),
            "edges": edges_of(run),
            "heat": heat,
            "partition": _partition_key(run),
            "spec": run.records.text("spec"),
            "environment": json.dumps(run.environment, indent=2) if run.environment else "environment.json is missing",
        }
    if crowded:
        notes.append(f"the page has no heat maps of {crowded} runs, to stay small")
    return [shown[number] for number in sorted(shown)], notes


def heat_of(run: FoundRun) -> Heat | str:
    """Learning rate, divergence and stability as [nodes, layers, bins of rounds], or why not."""
    frame = read_layers(run)
    if frame is None or frame.is_empty():
        return why_no_layers(run)
    rounds = int(frame["round"].max())  # type: ignore[arg-type]
    width = math.ceil(rounds / BINS)
    names = frame.filter(polars.col("node") == 0)["layer"].unique(maintain_order=True).to_list()
    places = polars.DataFrame({"layer": names, "place": range(len(names))})
    binned = (
        frame.lazy()
        .filter(polars.col("node") < NODES)
        .with_columns(((polars.col("round") - 1) // width).alias("bin"))
        .group_by("node", "layer", "bin")
        .agg(polars.col("rate", "divergence", "stability").mean())
        .join(places.lazy(), on="layer")
        .collect()
    )
    nodes, bins = int(binned["node"].max()) + 1, math.ceil(rounds / width)  # type: ignore[arg-type]
    at = tuple(binned[name].to_numpy() for name in ("node", "place", "bin"))

    def own(name: str) -> Packed:
        values = np.full((nodes, len(names), bins), np.nan)
        values[at] = binned[name].cast(polars.Float64).to_numpy()
        return packed(values)

    return Heat(
        layers=names,
        nodes=nodes,
        of=int(frame["node"].max()) + 1,  # type: ignore[arg-type]
        width=width,
        bins=bins,
        rate=own("rate"),
        divergence=own("divergence"),
        stability=own("stability"),
    )


def packed(values: Floats) -> Packed:
    """Sixteen bits per value between the lowest and the highest; `top` is the end of the colour scale."""
    there = values[np.isfinite(values)]
    if not len(there):
        return {"low": 0, "high": 0, "top": 0, "values": ""}
    low, high = float(there.min()), float(there.max())
    scaled = np.round((values - low) / ((high - low) or 1.0) * (MISSING - 1))
    whole = np.where(np.isfinite(values), scaled, MISSING).astype("<u2")
    # a single extreme layer must not use up the colour scale
    top = float(np.percentile(there, 98))
    return {"low": low, "high": high, "top": top, "values": base64.b64encode(whole.tobytes()).decode()}


def edges_of(run: FoundRun) -> list[list[int]] | str:
    """The edges of the graph, each edge of a period once, or the reason why it is not drawn."""
    from feda2l.topology import build

    keys = run.keys
    nodes = int(keys.get("data.nodes", 0))
    if nodes > GRAPH_NODES:
        return f"{nodes} nodes are too many to draw"
    try:
        options = {key: keys[f"topology.{key}"] for key in ("k", "p", "seed", "file") if f"topology.{key}" in keys}
        graph = build(str(keys.get("topology.name")), nodes, **options)
    except (FedA2LError, OSError, TypeError) as error:
        return f"the graph cannot be rebuilt: {error}"
    pairs = {(min(i, j), max(i, j)) for phase in graph.period for i, near in enumerate(phase) for j in near}
    return [list(pair) for pair in sorted(pairs)]


def _partition_key(run: FoundRun) -> str:
    wanted = sorted((key, str(value)) for key, value in run.keys.items() if key.startswith("data."))
    return json.dumps([*wanted, str(run.keys.get("training.batch_size"))])


def _partitions(runs: Iterable[FoundRun]) -> dict[str, Json | str]:
    """The number of samples of each class at each node, if the data are available."""
    found: dict[str, Json | str] = {}
    for run in runs:
        key = _partition_key(run)
        if key not in found:
            found[key] = _counts(run) if len(found) < PARTITIONS else f"only {PARTITIONS} partitions are drawn"
    return found


def _counts(run: FoundRun) -> Json | str:
    import torch

    from feda2l.data.partition import table
    from feda2l.runs.assign_samples import partition_of
    from feda2l.runs.datasets import load_data

    name = run.keys.get("data.name")
    if name == "tinyimagenet" or ":" in str(name):
        return f"{name} is too large to read for this figure; feda2l run SPEC --show-partition draws it"
    try:
        spec = Spec.parse(run.spec)
        dataset = load_data(spec.data)
        parts = partition_of(spec, dataset)
    except (FedA2LError, OSError):
        # a page may be shared, so it must not name paths of this machine
        return f"the data are not available ({name} is not in the data folder, or cannot be assigned as the spec says)"
    own = dataset.train.targets(torch.arange(len(dataset.train))) if dataset.classes else dataset.groups
    if own is None:
        return f"{name} has neither classes nor groups to show"
    counts = table(own, parts, len(dataset.class_names))
    if counts.size > PARTITION_CELLS:
        return f"{counts.shape[0]} nodes with {counts.shape[1]} classes are too many to draw"
    return {"classes": list(dataset.class_names), "counts": counts.tolist()}


def _thin(at: Places) -> Places:
    """At most `POINTS` of the places, always with the last one."""
    if len(at) <= POINTS:
        return at
    chosen = np.unique(np.linspace(0, len(at) - 1, POINTS).round().astype(np.int64))
    thinned: Places = at[chosen]
    return thinned
