"""The heat maps of a run in progress, in the format of the report page."""

import math

import numpy as np

from feda2l.report.page_data import BINS, packed
from feda2l.watch.incoming_records import SIGNALS, RoundSeries


def heat_of_rounds(rounds: RoundSeries) -> dict[str, object] | str:
    """Return learning rate, divergence and stability as [nodes, layers, bins of rounds], or a reason why not."""
    if not rounds.layers:
        return "no round is complete yet"
    signals = [rounds.signals_at(at, len(rounds.layers)) for at in range(len(rounds))]
    values = np.stack(signals, axis=-1).astype(float)  # [signal, node, layer, round]
    length = values.shape[-1]
    width = math.ceil(length / BINS)
    bins = math.ceil(length / width)
    edges = np.arange(bins) * width
    finite = np.isfinite(values)
    sums = np.add.reduceat(np.where(finite, values, 0.0), edges, axis=-1)
    counts = np.add.reduceat(finite, edges, axis=-1, dtype=int)
    means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return {
        "layers": rounds.layers,
        "nodes": values.shape[1],
        "of": rounds.count,
        "width": width,
        "bins": bins,
        **{name: packed(part) for name, part in zip(SIGNALS, means, strict=True)},
    }
