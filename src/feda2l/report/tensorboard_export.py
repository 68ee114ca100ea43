"""Runs for TensorBoard: scores a round, and each layer's mean rate, sigma and zeta."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import polars

from feda2l.errors import FedA2LError
from feda2l.report.curves import read_layers
from feda2l.report.run_figures import Figures


def export_tensorboard(runs: Iterable[Figures], folder: Path) -> int:
    """A folder of events a run; returns how many. Steps are rounds."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise FedA2LError("--tensorboard needs tensorboard: pip install 'feda2l[tensorboard]'") from error
    count = 0
    taken: set[str] = set()
    for figures in runs:
        run, curve = figures.run, figures.curve
        name = run.name if run.name not in taken else f"{run.name}-{len(taken)}"
        taken.add(name)
        with SummaryWriter(str(folder / name)) as writer:
            for tag, values in (
                (run.metric, curve.score),
                ("disagreement", curve.disagreement),
                ("bytes_sent", curve.bytes_sent),
            ):
                for at in np.flatnonzero(~np.isnan(values)):
                    writer.add_scalar(tag, float(values[at]), int(at) + 1)
            layers = read_layers(run)
            if layers is not None:
                means = (
                    layers.group_by("layer", "round")
                    .agg(polars.col("rate", "sigma", "zeta").mean())
                    .sort("layer", "round")
                )
                for layer, number, rate, sigma, zeta in means.iter_rows():
                    for tag, value in (("rate", rate), ("sigma", sigma), ("zeta", zeta)):
                        if value is not None:
                            writer.add_scalar(f"{tag}/{layer}", value, number)
        count += 1
    return count
