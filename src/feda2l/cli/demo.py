"""The demo: ten nodes learn digits without a server, with FedA2L and with common schedules, over several seeds."""

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from feda2l.errors import FedA2LError
from feda2l.plain_values import PlainDict
from feda2l.report.plots import plot_rules
from feda2l.report.tables import rules_table
from feda2l.runs.run import Run, run

ROUNDS, TARGET = 100, 0.9
# the paper's schedules were chosen for 500 rounds; their periods are scaled to this number of rounds
RULES: dict[str, PlainDict] = {
    "constant": {},
    "step": {"step_size": ROUNDS // 5},
    "cawr": {"period": ROUNDS // 10},
    "one_cycle": {},
    "feda2l": {},
    "decay_only": {},
}


def demo(out: Path, seeds: int = 3, rounds: int = ROUNDS) -> None:
    """Train every rule with every seed together, then print a table and save a figure, whatever the result is."""
    console = Console()
    console.print(
        f"10 nodes, no server: handwritten digits assigned unevenly (Dirichlet 0.1), full graph, {rounds} rounds.\n"
        f"{len(RULES)} rate rules x {seeds} seeds train together in one process.",
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
        rules_table({rule: [r.summary for r in group] for rule, group in by_rule.items()}, TARGET, rounds, seconds)
    )
    console.print(
        f"{len(runs)} runs took {seconds:.1f} s together; the time per run is the mean. "
        "The target counts the trailing mean over 10 rounds.\n"
        "All seeds use the same data split, but different initial models and batches: "
        "differences within the spread are noise.\n"
        "decay_only is FedA2L with every multiplier fixed at 1. "
        "If this control does equally well, the gain is not due to adaptation.",
        highlight=False,
    )
    folder = runs[0].path.parent
    try:
        figure = folder / "demo.png"
        _figure(by_rule, figure)
        console.print(f"figure: {figure}\nruns:   {folder}/", highlight=False)
    except FedA2LError as error:
        console.print(f"no figure: {error}", highlight=False)
    console.print(next_steps(folder), highlight=False, soft_wrap=True)


def next_steps(folder: Path) -> str:
    """Three commands to try after the demo, whose runs are in `folder`."""
    return "\n".join(
        (
            f"next: feda2l report {folder} --out report    # tables, figures and one page of these runs",
            "      feda2l init my.toml                     # a spec with every key explained",
            "      feda2l run my.toml                      # your own run",
        )
    )


def _figure(by_rule: dict[str, list[Run]], path: Path) -> None:
    curves = {rule: np.stack([_accuracy(run) for run in runs]) for rule, runs in by_rule.items()}
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


def _accuracy(run: Run) -> NDArray[np.float64]:
    return np.array([record["accuracy"] for record in run.folder.read()])


def _fresh(out: Path) -> Path:
    """`out`, or `out-2`, `out-3`...: the demo never writes into the folder of an earlier demo."""
    number = 1
    path = out
    while path.exists():
        number += 1
        path = out.with_name(f"{out.name}-{number}")
    return path
