"""Write runs for TensorBoard: scores per round, and the mean rate, divergence and stability of each layer."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import polars

from feda2l.report.curves import read_layers
from feda2l.report.run_figures import Figures
from feda2l.trackers.tensorboard import EventFile


def export_tensorboard(runs: Iterable[Figures], folder: Path) -> None:
    """Write one folder of events per run. Steps are rounds; tags are those of `feda2l run --track tensorboard`."""
    EventFile.demand()
    taken: set[str] = set()
    for figures in runs:
        name = figures.run.name if figures.run.name not in taken else f"{figures.run.name}-{len(taken)}"
        taken.add(name)
        events = EventFile(folder / name)
        for step, values in sorted(_by_round(figures).items()):
            events.scalars(values, step)
        events.close()


def _by_round(figures: Figures) -> dict[int, dict[str, float]]:
    run, curve = figures.run, figures.curve
    found: dict[int, dict[str, float]] = {}
    for tag, values in (
        (run.metric, curve.score),
        ("disagreement", curve.disagreement),
        ("bytes_sent", curve.bytes_sent),
        *([] if curve.seconds is None else [("simulated_seconds", curve.seconds)]),
    ):
        for at in np.flatnonzero(~np.isnan(values)):
            found.setdefault(int(at) + 1, {})[tag] = float(values[at])
    layers = read_layers(run)
    if layers is not None:
        means = layers.group_by("layer", "round", maintain_order=True).agg(
            polars.col("rate", "divergence", "stability").mean()
        )
        for layer, number, rate, divergence, stability in means.iter_rows():
            for tag, value in (("rate", rate), ("divergence", divergence), ("stability", stability)):
                if value is not None:
                    found.setdefault(number, {})[f"{tag}/{layer}"] = value
    return found
