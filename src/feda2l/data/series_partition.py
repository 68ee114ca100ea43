"""Who holds which training windows of a time series: one array of window indices a node, and each window once.

An index counts `Series.train_starts`; the test windows stay with their sites, which `Series.test_node` names. See
`feda2l.data.partition` for samples with labels.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from feda2l.data import partition
from feda2l.data.partition import Indices
from feda2l.data.series import Series
from feda2l.errors import FedA2LError
from feda2l.randomness import numpy_generator

ITERATIONS = 100  # Lloyd's steps; a few dozen are enough for these data


def by_time(series: Series, *, nodes: int, min_size: int = 1) -> list[Indices]:
    """Each node holds a block of time: the windows of all sites by start, then site, in equal numbers (up to one).

    Guaranteed: a window of a node never starts after a window of a later node. Two nodes share rows only where a
    window starts less than input + horizon rows before the later node's first; with stride 1 and no gap at the cut
    that cannot be avoided if every window is to be used. Within its block a node's windows are in time order.
    """
    site = partition._checked(series.train_node, nodes, 0, min_size)
    time = series.train_starts.numpy() - np.array(series.bounds)[site]
    return np.array_split(np.lexsort((site, time)), nodes)


def by_cluster(
    series: Series, *, nodes: int, alpha: float, clusters: int = 10, seed: int = 1, min_size: int = 40
) -> list[Indices]:
    """Windows of like shape are a class (`cluster_windows`), dealt to the nodes by `partition.dirichlet`.

    Small `alpha` gives each node few kinds of windows, large `alpha` tends to a random partition.
    """
    labels = cluster_windows(series, clusters=clusters, seed=seed)
    return partition.dirichlet(labels, nodes=nodes, alpha=alpha, seed=seed, min_size=min_size)


def cluster_windows(series: Series, *, clusters: int = 10, seed: int = 1) -> NDArray[np.int64]:
    """A cluster number for each training window, by k-means over `window_features`.

    Starts are drawn as in D. Arthur, S. Vassilvitskii, "k-means++: The Advantages of Careful Seeding", SODA 2007.
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
        chance = distance / total if total > 0 else None  # all windows alike: any will do
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
    """Mean, standard deviation and slope of each variate over the rows seen, [windows, 3 channels].

    Each feature is standardised over the windows, so that none outweighs the others.
    """
    length = series.lengths.input
    time = torch.arange(length, dtype=torch.float64) - (length - 1) / 2
    weights = (time / time.square().sum().clamp(min=1.0)).unsqueeze(-1)
    found = []
    for starts in series.train_starts.split(batch):
        x = series.batch(starts)[0].double()
        found.append(torch.cat([x.mean(dim=1), x.std(dim=1, correction=0), (x * weights).sum(dim=1)], dim=1))
    features: NDArray[np.float64] = torch.cat(found).numpy()
    spread = features.std(axis=0)
    scaled: NDArray[np.float64] = (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return scaled


def _distances(features: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared distances [windows, centres], centre by centre: no array of all differences."""
    return np.stack([np.square(features - centre).sum(axis=1) for centre in centres], axis=1)
