"""Assigns training windows of a time series to nodes: one array of window indices per node, with each window once.

An index refers to `Series.train_starts`. The test windows stay with their sites (`Series.test_node`). For samples with
labels see `feda2l.data.partition`.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from feda2l.data import partition
from feda2l.data.partition import Indices
from feda2l.data.series import Series
from feda2l.errors import FedA2LError
from feda2l.randomness import numpy_generator

ITERATIONS = 100  # steps of Lloyd's algorithm; these data need a few dozen


def by_time(series: Series, *, nodes: int, min_size: int = 1) -> list[Indices]:
    """Assign a block of time to each node: windows of all sites by start and site, in equal numbers (up to one).

    No window of a node starts after a window of a later node. Two nodes share rows only where a window starts less than
    input + horizon rows before the first window of the later node. With stride 1 and no gap at the cut this is
    unavoidable if every window is used. The windows of a node are in order of time.
    """
    site = partition._checked(series.train_node, nodes, 0, min_size)
    partition._demand_room(len(site), nodes, min_size)
    time = series.train_starts.numpy() - np.array(series.bounds)[site]
    return np.array_split(np.lexsort((site, time)), nodes)


def by_cluster(
    series: Series, *, nodes: int, alpha: float, clusters: int = 10, seed: int = 1, min_size: int = 40
) -> list[Indices]:
    """Group windows of similar shape into clusters (`cluster_windows`) and assign these by `partition.dirichlet`.

    A small `alpha` gives each node few clusters, a large `alpha` approaches a random partition.
    """
    labels = cluster_windows(series, clusters=clusters, seed=seed)
    return partition.dirichlet(labels, nodes=nodes, alpha=alpha, seed=seed, min_size=min_size)


def cluster_windows(series: Series, *, clusters: int = 10, seed: int = 1) -> NDArray[np.int64]:
    """The cluster number of each training window, by k-means on `window_features`.

    The first centres are drawn as in D. Arthur, S. Vassilvitskii, "k-means++: The Advantages of Careful Seeding",
    SODA 2007.
    """
    samples = len(series.train_starts)
    if not 1 <= clusters <= samples:
        raise FedA2LError(
            f"clusters must be in 1..{samples}, the number of training windows, got {clusters!r}", see="partition"
        )
    features = window_features(series)
    generator = numpy_generator(seed, purpose="clusters")
    centres = features[generator.integers(samples)][None]
    while len(centres) < clusters:
        distance = _distances(features, centres).min(axis=1)
        total = distance.sum()
        chance = distance / total if total > 0 else None  # None if all windows are equal
        centres = np.vstack([centres, features[generator.choice(samples, p=chance)]])
    labels = np.full(samples, -1)
    for _ in range(ITERATIONS):
        before, labels = labels, _distances(features, centres).argmin(axis=1)
        if np.array_equal(before, labels):
            break
        counts = np.bincount(labels, minlength=clusters)
        sums = np.stack([np.bincount(labels, column, minlength=clusters) for column in features.T], axis=1)
        centres = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres)
    return labels


def window_features(series: Series, batch: int = 4096) -> NDArray[np.float64]:
    """Mean, standard deviation and slope of each variate over the input rows, [windows, 3 * channels].

    Each feature is standardised over the windows, so that all have the same weight.
    """
    length = series.lengths.input
    time = torch.arange(length, dtype=torch.float64) - (length - 1) / 2
    weights = (time / time.square().sum().clamp(min=1.0)).unsqueeze(-1)
    moments = []
    for starts in series.train_starts.split(batch):
        x = series.batch(starts)[0].double()
        moments.append(torch.cat([x.mean(dim=1), x.std(dim=1, correction=0), (x * weights).sum(dim=1)], dim=1))
    features: NDArray[np.float64] = torch.cat(moments).numpy()
    spread = features.std(axis=0)
    scaled: NDArray[np.float64] = (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return scaled


def _distances(features: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared distances [windows, centres], one centre at a time to save memory."""
    return np.stack([np.square(features - centre).sum(axis=1) for centre in centres], axis=1)
