"""The demo: ten nodes learn digits without a server, FedA2L beside the usual schedules, over several seeds."""

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from feda2l.errors import FedA2LError
from feda2l.report.plots import plot_rules
from feda2l.report.tables import rules_table
from feda2l.runs.run import Run, run

ROUNDS, TARGET = 100, 0.9
# the paper's schedules, made for 500 rounds, scaled to ours
RULES: dict[str, dict[str, Any]] = {
    "constant": {},
    "step": {"step_size": ROUNDS // 5},
    "cawr": {"period": ROUNDS // 10},
    "one_cycle": {},
    "feda2l": {},
    "decay_only": {},
}


def demo(out: Path, seeds: int = 3, rounds: int = ROUNDS) -> None:
    """Run every rule with every seed as one pack, print a table and save a figure; whatever comes out is printed."""
    console = Console()
    console.print(
        f"10 nodes, no server: handwritten digits dealt unevenly (Dirichlet 0.1), full graph, {rounds} rounds.\n"
        f"{len(RULES)} rate rules x {seeds} seeds train together as one population.",
        highlight=False,
    )
    specs = [
        {
            "name": f"{rule}-{seed}",
            "seed": seed,
            "rounds": rounds,
            "rates": {"name": rule, **parameters},
            "evaluation": {"target": TARGET},
        }
        for rule, parameters in RULES.items()
        for seed in range(1, seeds + 1)
    ]
    started = time.perf_counter()
    runs = run(specs, out=_fresh(out))
    seconds = time.perf_counter() - started
    by_rule = {rule: runs[i * seeds : (i + 1) * seeds] for i, rule in enumerate(RULES)}
    console.print(
        rules_table({rule: [r.summary for r in own] for rule, own in by_rule.items()}, TARGET, rounds, seconds)
    )
    console.print(
        f"{len(runs)} runs in {seconds:.1f} s; they share the machine, so the time of one run is the mean. "
        f"Rounds are of the trailing mean over 10.\nEvery seed has the same data split and its own start and batches: "
        "differences within the spread are noise.\n"
        "decay_only is FedA2L with every multiplier 1: what it reaches, the global decay reaches without adapting.",
        highlight=False,
    )
    try:
        figure = runs[0].path.parent / "demo.png"
        _figure(by_rule, figure)
        console.print(f"figure: {figure}\nruns:   {figure.parent}/", highlight=False)
    except FedA2LError as error:
        console.print(f"no figure: {error}", highlight=False)


def _figure(by_rule: dict[str, list[Run]], path: Path) -> None:
    curves = {rule: np.stack([_accuracy(own) for own in runs]) for rule, runs in by_rule.items()}
    adapted, plain = by_rule["feda2l"][0], by_rule["decay_only"][0]
    records = adapted.folder.read()
    plot_rules(
        curves,
        np.array([record["layers"]["rate"][0] for record in records]),
        records[0]["layers"]["name"],
        TARGET,
        path,
        np.array([record["layers"]["rate"][0][0] for record in plain.folder.read()]),
    )


def _accuracy(own: Run) -> NDArray[np.float64]:
    return np.array([record["accuracy"] for record in own.folder.read()])


def _fresh(out: Path) -> Path:
    """`out`, or `out-2`, `out-3`...: the demo never writes into an older one."""
    number = 1
    path = out
    while path.exists():
        number += 1
        path = out.with_name(f"{out.name}-{number}")
    return path
