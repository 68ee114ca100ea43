"""The assignment of windows to nodes: every window once, the properties of each kind, and infeasible requests."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from feda2l.data import beijing, exchange_rate
from feda2l.data.partition import Indices, natural
from feda2l.data.series import Lengths, Series, Site, assemble, split_rows, split_windows
from feda2l.data.series_partition import by_cluster, by_time, cluster_windows, window_features
from feda2l.errors import FedA2LError

LENGTHS = Lengths(6, 4)


def waves(sites: int = 3, rows: int = 400, *, gaps: bool = False) -> Series:
    """Random walks of two variates at a few sites. With `gaps`, each site has missing rows."""
    generator = np.random.default_rng(0)
    series = []
    for site in range(sites):
        values = generator.normal(size=(rows, 2)).cumsum(axis=0)
        split = split_rows(rows, LENGTHS)
        if gaps:
            values[generator.random(rows) < 0.02 * (site + 1)] = np.nan
            split = split_windows(~np.isnan(values).any(axis=1), LENGTHS)
        series.append(Site(f"site {site}", values, split))
    return assemble("waves", series, ("x", "y"), LENGTHS)


KINDS: dict[str, Callable[..., list[Indices]]] = {
    "natural": lambda series, **keys: natural(series.train_node, **keys),
    "time": lambda series, **keys: by_time(series, **{"nodes": 5, **keys}),
    "cluster": lambda series, **keys: by_cluster(series, **{"nodes": 5, "alpha": 0.3, "min_size": 10, **keys}),
}


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_window_is_assigned_once_and_reproducibly(kind: str, gaps: bool) -> None:
    series = waves(gaps=gaps)
    parts = KINDS[kind](series)
    assert np.sort(np.concatenate(parts)).tolist() == list(range(len(series.train_starts)))
    for first, second in zip(parts, KINDS[kind](series), strict=True):
        assert first.dtype == np.int64
        assert np.array_equal(first, second)


@pytest.mark.parametrize("kind", KINDS)
def test_a_minimum_that_cannot_be_met_is_an_error(kind: str) -> None:
    with pytest.raises(FedA2LError, match="feasible: "):
        KINDS[kind](waves(), min_size=10_000)


def test_a_natural_partition_gives_each_node_the_windows_of_its_site() -> None:
    series = waves(gaps=True)
    for node, part in enumerate(natural(series.train_node, nodes=3)):
        assert (series.train_node[torch.from_numpy(part)] == node).all()
    with pytest.raises(FedA2LError, match=r"come from 3 nodes, got data\.nodes = 4"):
        natural(series.train_node, nodes=4)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("nodes", [1, 2, 7])
def test_by_time_gives_blocks_of_equal_size_in_time_order(nodes: int, gaps: bool) -> None:
    series = waves(gaps=gaps)
    time = series.train_starts - torch.tensor(series.bounds)[series.train_node]
    parts = [time[torch.from_numpy(part)] for part in by_time(series, nodes=nodes)]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for earlier, later in pairwise(parts):
        assert earlier.max() <= later.min()
        assert (earlier.diff() >= 0).all()
    if nodes > 2 and not gaps:
        assert parts[0].max() + LENGTHS.window <= parts[2].min()  # non-adjacent blocks share no row


@pytest.mark.parametrize("nodes", [0, -1, 2.5, 100_000])
def test_by_time_rejects_an_infeasible_number_of_nodes(nodes: int) -> None:
    with pytest.raises(FedA2LError, match="nodes"):
        by_time(waves(), nodes=nodes)


def test_small_alpha_gives_few_kinds_of_windows() -> None:
    series = waves(sites=6, rows=1000)
    labels = cluster_windows(series, clusters=8)

    def kinds(alpha: float) -> float:
        """Mean share of a node's largest cluster."""
        parts = by_cluster(series, nodes=6, alpha=alpha, clusters=8, min_size=10)
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))

    assert kinds(0.05) > kinds(100.0) + 0.2


def test_clusters_depend_on_the_seed_and_are_all_used() -> None:
    series = waves()
    labels = cluster_windows(series, clusters=5, seed=1)
    assert set(labels.tolist()) == set(range(5))
    assert np.array_equal(labels, cluster_windows(series, clusters=5, seed=1))
    assert not np.array_equal(labels, cluster_windows(series, clusters=5, seed=2))


def test_each_window_is_in_the_cluster_of_the_nearest_centre() -> None:
    """After Lloyd's algorithm converges, a centre is the mean of its windows and is the nearest centre to each."""
    series = waves()
    features, labels = window_features(series), cluster_windows(series, clusters=4)
    centres = np.stack([features[labels == cluster].mean(axis=0) for cluster in range(4)])
    distance = ((features[:, None] - centres) ** 2).sum(axis=2)
    assert np.array_equal(distance.argmin(axis=1), labels)


def test_the_slope_separates_rising_from_falling_windows() -> None:
    time, noise = np.arange(200.0), np.random.default_rng(0).normal(size=(3, 200)) * 0.01
    split = split_rows(200, LENGTHS)
    saw = time % 40
    sites = [Site(str(i), (shape + noise[i])[:, None], split) for i, shape in enumerate([saw, -saw, 0 * saw])]
    series = assemble("saw", sites, ("x",), LENGTHS)
    slopes = window_features(series)[:, 2]
    inside = ((series.train_starts - torch.tensor(series.bounds)[series.train_node]) % 40 <= 34).numpy()
    rising = inside & (series.train_node == 0).numpy()
    falling = inside & (series.train_node == 1).numpy()
    assert slopes[rising].min() > slopes[falling].max()


def test_features_are_mean_deviation_and_slope() -> None:
    series = waves()
    x = series.batch(series.train_starts)[0].double().numpy()
    slope = np.polynomial.polynomial.polyfit(np.arange(6), x[:, :, 1].T, 1)[1]
    expected = np.stack([x[:, :, 1].mean(axis=1), x[:, :, 1].std(axis=1), slope], axis=1)
    expected = (expected - expected.mean(axis=0)) / expected.std(axis=0)
    actual = window_features(series, batch=100)
    assert actual.shape == (len(series.train_starts), 6)
    np.testing.assert_allclose(actual[:, [1, 3, 5]], expected, atol=1e-8)


@pytest.mark.parametrize("clusters", [0, 100_000])
def test_clusters_must_fit_the_windows(clusters: int) -> None:
    with pytest.raises(FedA2LError, match=r"clusters must be in 1\.\."):
        cluster_windows(waves(), clusters=clusters)


def test_identical_windows_form_one_cluster() -> None:
    split = split_rows(60, LENGTHS)
    series = assemble("flat", [Site("a", np.ones((60, 1)), split)], ("x",), LENGTHS)
    assert cluster_windows(series, clusters=3).tolist() == [0] * len(series.train_starts)


@pytest.mark.parametrize("name", ["exchange_rate", "beijing"])
def test_the_real_data_are_assigned(official: Path, name: str) -> None:
    series = (exchange_rate if name == "exchange_rate" else beijing).load(official)
    sizes = [len(part) for part in natural(series.train_node)]
    assert sizes == torch.bincount(series.train_node).tolist()
    assert {len(part) for part in by_time(series, nodes=10)} <= {len(series.train_starts) // 10 + i for i in (0, 1)}
    parts = by_cluster(series, nodes=10, alpha=0.1)
    assert sum(map(len, parts)) == len(series.train_starts)
    assert min(map(len, parts)) >= 40
