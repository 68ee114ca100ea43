"""Synthetic run folders: curves whose figures can be calculated by hand."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars
import tomli_w


def write_run(
    folder: Path,
    curve: Sequence[float | None],
    *,
    rates: str = "feda2l",
    seed: int = 1,
    target: float | None = 0.5,
    smoothing: int = 1,
    rounds: int | None = None,
    status: str = "finished",
    metric: str = "accuracy",
    pack: int = 6,
    nodes: int = 2,
    every_second: float | None = None,
    simulated: float | None = None,
    naive: Mapping[str, float] | None = None,
    more: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:
    """Write a run of `nodes` equal nodes on a ring, with layers `a` and `b`.

    With `simulated`, the last node ends round r after `simulated * r` seconds. Each other node ends one second before
    the next one.
    """
    folder.mkdir(parents=True)
    length = len(curve)
    spec: dict[str, Any] = {
        "name": folder.name,
        "seed": seed,
        "rounds": rounds or length,
        "data": {"name": "digits", "nodes": nodes, "partition": "dirichlet", "alpha": 0.1, "partition_seed": 1},
        "model": {"name": "mlp"},
        "topology": {"name": "ring"},
        "algorithm": {"name": "fedavg"},
        "rates": {"name": rates, "base": 0.01},
        "training": {"batch_size": 10},
        "evaluation": {"every": 1, "smoothing": smoothing} | ({} if target is None else {"target": target}),
        "runtime": {"engine": "rows"},
    }
    for section, values in (more or {}).items():
        spec[section] = {**spec.get(section, {}), **values}
    (folder / "spec.toml").write_text(tomli_w.dumps(spec))
    per_round = [round for round in range(1, length + 1) for _ in range(nodes)]
    polars.DataFrame(
        {
            "round": per_round,
            "node": list(range(nodes)) * length,
            "train_loss": [1.0] * (length * nodes),
            metric: [value for value in curve for _ in range(nodes)],
            "bytes_sent": [1_000_000] * (length * nodes),
            "disagreement": [1 / round for round in per_round],
            **({} if simulated is None else {"simulated_seconds": _end_times(simulated, length, nodes)}),
        },
        schema_overrides={metric: polars.Float64},
    ).write_parquet(folder / "rounds.parquet")
    cells = [(round, node, layer) for round in range(1, length + 1) for node in range(nodes) for layer in "ab"]
    polars.DataFrame(
        {
            "round": [round for round, _, _ in cells],
            "node": [node for _, node, _ in cells],
            "layer": [layer for _, _, layer in cells],
            "rate": [0.01 / round for round, _, _ in cells],
            "multiplier": [1.0] * len(cells),
            "divergence": [0.1 * (node + 1) / round for round, node, _ in cells],
            "stability": [0.5 + 0.4 * (layer == "a") for _, _, layer in cells],
        }
    ).write_parquet(folder / "layers.parquet")
    summary: dict[str, Any] = {"name": folder.name, "status": status, "rounds": length, "metric": metric, "pack": pack}
    if naive is not None:
        summary["naive"] = {name: {"mse": mse, "mae": mse / 2} for name, mse in naive.items()}
    if status == "non_finite":
        summary["non_finite"] = {"round": length, "node": 0, "layer": "a"}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "environment.json").write_text(json.dumps({"python": "3.11"}))
    if every_second is not None:
        parts = {"train": every_second, "mix": 0.25, "adapt": 0.25, "evaluate": 1.0, "pack": pack}
        lines = [json.dumps({"round": round, **parts}) for round in range(1, length + 1)]
        (folder / "timings.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def _end_times(seconds: float, length: int, nodes: int) -> list[float]:
    return [seconds * round - (nodes - 1 - node) for round in range(1, length + 1) for node in range(nodes)]


def rising(target_round: int | None, length: int = 10) -> list[float]:
    """0.1 before `target_round` and 0.6 from it on; 0.1 throughout if it is None."""
    return [0.6 if target_round and round >= target_round else 0.1 for round in range(1, length + 1)]


def write_seeds(folder: Path, rates: str, target_rounds: Sequence[int | None], **options: Any) -> None:
    """Write one run per seed; `target_rounds` lists the round at which each reaches 0.5."""
    for seed, target_round in enumerate(target_rounds, start=1):
        write_run(folder / f"{rates}-{seed}", rising(target_round), rates=rates, seed=seed, **options)
