"""Benchmark of the time and memory of a report over a large study, with generated records."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import islice, product
from pathlib import Path

import numpy as np
import polars
import tomli_w

from feda2l.bench.works import Result, note
from feda2l.plain_values import PlainDict

LAYERS = ("conv1", "conv2", "fc1", "fc2")
AXES = {
    "algorithm.name": ("fedavg", "fedprox", "fedntd", "fedawa"),
    "topology.name": ("full", "ring", "star", "tree"),
    "rates.name": ("constant", "step", "cawr", "feda2l", "decay_only"),
    "seed": range(1, 1_000_000),
}


def report_work(*, runs: int, rounds: int, nodes: int) -> Result:
    """Run `feda2l report` in a separate process on generated records of a study."""
    with tempfile.TemporaryDirectory(prefix="feda2l-bench-") as folder:
        write_synthetic_runs(Path(folder) / "runs", runs=runs, rounds=rounds, nodes=nodes)
        note(f"generated {runs} runs")
        command = [sys.executable, "-m", "feda2l", "report", f"{folder}/runs", "--out", f"{folder}/report"]
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"feda2l report failed with exit code {process.returncode}")
        page = (Path(folder) / "report" / "index.html").stat().st_size
    memory = usage.ru_maxrss * 1024  # Linux reports KiB
    return Result(
        what=f"{runs} runs x {rounds} rounds x {nodes} nodes",
        outcome=f"peak memory {memory / 2**30:.2f} GiB, page {page / 1e6:.1f} MB",
        figure=f"{seconds:.1f} s",
        numbers={"seconds": seconds, "memory_bytes": memory, "page_bytes": page},
    )


def write_synthetic_runs(folder: Path, *, runs: int, rounds: int, nodes: int) -> None:
    """Write run folders with learning curves that rise to a random final value."""
    seeds = -(-runs // 80)
    names = [key for key in AXES if key != "seed"]
    cells = product(*(AXES[name] for name in names), range(1, seeds + 1))
    random = np.random.default_rng(1)
    at = {"round": np.repeat(np.arange(1, rounds + 1), nodes), "node": np.tile(np.arange(nodes), rounds)}
    deep = {
        "round": np.repeat(at["round"], len(LAYERS)),
        "node": np.repeat(at["node"], len(LAYERS)),
        "layer": np.tile(np.array(LAYERS), rounds * nodes),
    }
    for values in islice(cells, runs):
        *levels, seed = values
        name = "-".join(map(str, values))
        path = folder / name
        path.mkdir(parents=True)
        height, speed = 0.85 + 0.1 * random.random(), rounds * (0.02 + 0.06 * random.random())
        rising = height * (1 - np.exp(-at["round"] / speed)) + 0.01 * random.standard_normal(rounds * nodes)
        accuracy = np.clip(rising, 0, 1)
        distance = np.repeat(np.exp(-np.arange(rounds) / 90), nodes)
        more = {"accuracy": accuracy, "train_loss": 2 * (1 - accuracy), "disagreement": distance}
        polars.DataFrame({**at, **more, "bytes_sent": np.full(rounds * nodes, 322_920)}).write_parquet(
            path / "rounds.parquet", statistics=False
        )
        size = rounds * nodes * len(LAYERS)
        rate = 0.01 / np.sqrt(deep["round"]) * (0.5 + random.random(size))
        signals = {
            "rate": rate,
            "multiplier": np.ones(size),
            "divergence": random.random(size),
            "stability": random.random(size),
        }
        polars.DataFrame({**deep, **signals}).write_parquet(path / "layers.parquet", statistics=False)
        spec: PlainDict = {
            "name": name,
            "seed": int(seed),
            "rounds": rounds,
            "data": {"name": "digits", "nodes": nodes, "partition": "dirichlet", "alpha": 0.1, "train_fraction": 0.75},
            "model": {"name": "mlp"},
            "training": {"batch_size": 10},
            "evaluation": {"every": 1, "target": 0.8, "smoothing": 10},
        }
        for key, level in zip(names, levels, strict=True):
            section, _, last = key.partition(".")
            spec.setdefault(section, {})[last] = level
        (path / "spec.toml").write_text(tomli_w.dumps(spec))
        facts = {"name": name, "status": "finished", "rounds": rounds, "metric": "accuracy", "pack": 6}
        (path / "summary.json").write_text(json.dumps(facts))


REPORT_WORKS: dict[str, Callable[[], Result]] = {"report": partial(report_work, runs=400, rounds=500, nodes=10)}
