"""The curve of each run over rounds; only the needed columns are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars
from numpy.typing import NDArray

from feda2l.report.find_runs import FoundRun, Notes
from feda2l.report.run_records import BundledRecords

Floats = NDArray[np.float64]
OPTIONAL = ("disagreement", "bytes_sent", "train_loss")
SIMULATED = "simulated_seconds"
DECIMALS = 12  # a mean of equal numbers may differ in the last bit, which must not decide whether a target is reached


@dataclass(frozen=True)
class Curve:
    """One run over its rounds: entry r is round r + 1, and NaN if nothing was measured in it."""

    score: Floats  # the unweighted mean over nodes
    disagreement: Floats
    bytes_sent: Floats  # of all nodes together
    last: Floats  # the last measured score of each node
    seconds: Floats | None = None  # simulated, at which the last node completed the round; None: no time is simulated


def read_curves(runs: Sequence[FoundRun], notes: Notes) -> dict[Path, Curve]:
    """The curve of each run with readable records; the notes name the others."""
    plans = {run.path: _by_round(rows, run.metric) for run in runs if (rows := _rows(run, notes)) is not None}
    curves: dict[Path, Curve] = {}
    lengths = {run.path: int(run.summary.get("rounds", 0)) for run in runs}
    for path, frame in _collect(plans, notes).items():
        if frame["score"].drop_nulls().is_empty():
            notes.add("left out, never evaluated", path)
            continue
        if frame["round"][-1] < lengths[path]:
            notes.add("left out, its records are cut off", f"{path} (at round {frame['round'][-1]})")
            continue
        curves[path] = _curve(frame)
    return curves


def read_layers(run: FoundRun) -> polars.DataFrame | None:
    """One row per node, layer and round with rate, divergence and stability; None if the records have no layers."""
    return run.records.layers(("round", "node", "layer", "rate", "divergence", "stability"))


def why_no_layers(run: FoundRun) -> str:
    """Why a run has no rows per layer."""
    if isinstance(run.records, BundledRecords):
        return "the bundle has no layers: make it with feda2l bundle --layers"
    return "layers.parquet and rounds.jsonl are missing or damaged"


def mean_curve(curves: Sequence[Floats]) -> Floats:
    """The mean over seeds of each round that all of them have, rounded so that it can be compared with a target."""
    return mean_of(curves).round(DECIMALS)


def mean_of(curves: Sequence[Floats]) -> Floats:
    """The mean of each round that all curves have."""
    length = min(map(len, curves))
    mean: Floats = np.mean([curve[:length] for curve in curves], axis=0)
    return mean


def _rows(run: FoundRun, notes: Notes) -> polars.LazyFrame | None:
    """One row per node and round, read lazily; from rounds.jsonl if the Parquet file is missing or damaged."""
    lacks = list[str]()
    try:
        rows = run.records.rounds()
        names = rows.collect_schema().names()
        lacks = [name for name in OPTIONAL if name not in names] + ["summary's metric"] * ("metric" not in run.summary)
    except (OSError, polars.exceptions.PolarsError) as error:
        lines = run.records.lines()
        if lines is None:
            notes.add("left out, neither rounds.parquet nor rounds.jsonl can be read", run.path)
            return None
        if not isinstance(error, FileNotFoundError):
            notes.add("rounds.parquet is damaged; read from rounds.jsonl instead", run.path)
        names, rows = lines.columns, lines.lazy()
    if run.metric not in names:
        notes.add("left out, never evaluated", run.path)
        return None
    if lacks:
        notes.add(f"records of an older version (without {', '.join(lacks)}), shown as far as they go", run.path)
    return rows


def _by_round(rows: polars.LazyFrame, metric: str) -> polars.LazyFrame:
    there = rows.collect_schema().names()
    column = polars.col
    wanted: list[polars.Expr] = [column(metric).cast(polars.Float64).alias("score"), column("round"), column("node")]
    wanted += [column(name).cast(polars.Float64) for name in OPTIONAL[:2] if name in there]
    totals = [column("score").mean(), column("score").alias("nodes")]
    totals += [column("disagreement").first()] if "disagreement" in there else []
    totals += [column("bytes_sent").sum()] if "bytes_sent" in there else []
    if SIMULATED in there:
        wanted.append(column(SIMULATED).cast(polars.Float64))
        totals.append(column(SIMULATED).max())
    return rows.select(wanted).sort("round", "node").group_by("round", maintain_order=True).agg(totals)


def _collect(plans: dict[Path, polars.LazyFrame], notes: Notes) -> dict[Path, polars.DataFrame]:
    try:
        return dict(zip(plans, polars.collect_all(list(plans.values())), strict=True))
    except polars.exceptions.PolarsError:
        frames = {}
        for path, plan in plans.items():  # one of them is damaged inside; read them one by one
            try:
                frames[path] = plan.collect()
            except polars.exceptions.PolarsError as error:
                notes.add("left out, its records are damaged", f"{path} ({str(error).splitlines()[0]})")
        return frames


def _curve(frame: polars.DataFrame) -> Curve:
    length = int(frame["round"][-1])
    at = frame["round"].to_numpy() - 1

    def whole(name: str) -> Floats:
        values = np.full(length, np.nan)
        if name in frame.columns:
            values[at] = frame[name].to_numpy()
        return values

    measured = frame.filter(polars.col("score").is_not_null())
    last: Any = measured["nodes"][-1]
    return Curve(
        score=whole("score").round(DECIMALS),
        disagreement=whole("disagreement"),
        bytes_sent=whole("bytes_sent"),
        last=last.cast(polars.Float64).to_numpy(),
        seconds=whole(SIMULATED) if SIMULATED in frame.columns else None,
    )
