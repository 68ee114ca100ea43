"""Assign samples to nodes: those it trains on, those it holds out, and those it is tested on."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feda2l.data import partition, series_partition
from feda2l.data.samples import Dataset
from feda2l.data.series import Series
from feda2l.errors import FedA2LError
from feda2l.spec.spec import Spec

Parts = list[NDArray[np.int64]]


def assign_samples(spec: Spec, dataset: Dataset) -> tuple[list[Tensor], list[Tensor]]:
    """Return, for each node, the indices of its training samples and of its held-out samples."""
    parts = partition_of(spec, dataset)
    size = spec.training.batch_size
    # a series is split by time when it is loaded, so a node trains on all of its windows
    fraction = 1.0 if isinstance(dataset, Series) else spec.data.train_fraction
    pairs = [
        partition.split(part, train_fraction=fraction, seed=spec.data.partition_seed, node=node)
        for node, part in enumerate(parts)
    ]
    smallest = min(range(len(pairs)), key=lambda node: len(pairs[node][0]))
    shard = len(pairs[smallest][0])
    if shard < (size if spec.training.drop_last else 1):
        raise FedA2LError(
            f"training.batch_size = {size}: node {smallest} has only {shard} training samples, less than one batch; "
            f"choose a batch_size of at most {max(shard, 1)}, fewer data.nodes, a larger data.alpha or "
            "training.drop_last = false",
            see="partition",
        )
    reasons = [f'evaluation.on = "{spec.evaluation.on}"'] if spec.evaluation.on != "global" else []
    reasons += [f'algorithm.name = "{spec.algorithm.name}"'] if spec.algorithm.algorithm.rate_search is not None else []
    if reasons and not all(len(rest) for _, rest in pairs):
        why = "a series has none" if isinstance(dataset, Series) else f"data.train_fraction = {fraction} leaves none"
        raise FedA2LError(f"{reasons[0]} needs held-out samples on every node; {why}", see="partition")
    return [torch.from_numpy(train) for train, _ in pairs], [torch.from_numpy(rest) for _, rest in pairs]


def local_tests(spec: Spec, dataset: Dataset) -> list[Tensor] | None:
    """Return each node's test samples if the test set is grouped by node, or None: every node uses the whole set."""
    if dataset.test_groups is None or spec.data.partition != "natural":
        return None
    tests = [(dataset.test_groups == node).nonzero().squeeze(1) for node in range(spec.data.nodes)]
    if empty := [node for node, samples in enumerate(tests) if not len(samples)]:
        raise FedA2LError(
            f"{spec.data.name}: node {empty[0]} has no test samples (it is missing from test_groups)", see="partition"
        )
    return tests


def count_nodes(spec: Spec, dataset: Dataset) -> int:
    """Return `data.nodes`, or the number of groups if a natural partition leaves it out."""
    if spec.data.partition != "natural" or dataset.groups is None or "nodes" in spec.data.model_fields_set:
        return spec.data.nodes
    return int(dataset.groups.max()) + 1


def partition_of(spec: Spec, dataset: Dataset) -> Parts:
    """Return the samples of each node before the split into training and held-out samples."""
    data, batch = spec.data, spec.training.batch_size
    # the released code's minimum: the held-out part has at least one batch
    derived = batch if data.train_fraction == 1 or data.forecasts else int(batch / (1 - data.train_fraction))
    if data.forecasts and not spec.training.drop_last:
        derived = 1
    least = derived if data.min_size is None else data.min_size
    try:
        return _assigned(spec, dataset, count_nodes(spec, dataset), least)
    except FedA2LError as error:
        if data.min_size is not None or "min_size" not in str(error):
            raise
        raise FedA2LError(
            f"{error}\nthe minimum of {least} samples follows from training.batch_size = {batch} and "
            f"data.train_fraction = {data.train_fraction}; use a smaller batch_size or set data.min_size",
            see="partition",
        ) from error


def _assigned(spec: Spec, dataset: Dataset, nodes: int, least: int) -> Parts:
    data, seed = spec.data, spec.data.partition_seed
    count = torch.arange(len(dataset.train))
    if data.partition == "natural":
        if dataset.groups is None:
            raise FedA2LError(
                f'data.partition = "natural": {data.name} does not define which node a sample belongs to; '
                "choose iid, dirichlet, pathological or shards",
                see="partition",
            )
        return partition.natural(dataset.groups, nodes=nodes, min_size=least)
    if data.partition in ("time", "cluster"):
        if not isinstance(dataset, Series):
            raise FedA2LError(
                f'data.partition = "{data.partition}" needs a time series; {data.name} is not one', see="partition"
            )
        if data.partition == "time":
            return series_partition.by_time(dataset, nodes=nodes, min_size=least)
        clusters = data.clusters
        return series_partition.by_cluster(
            dataset, nodes=nodes, alpha=data.alpha, clusters=clusters, seed=seed, min_size=least
        )
    if data.partition == "iid":
        labels = count if dataset.classes is None else dataset.train.targets(count)
        return partition.iid(labels, nodes=nodes, seed=seed, min_size=least)
    if dataset.classes is None:
        raise FedA2LError(
            f'data.partition = "{data.partition}" needs classes; {data.name} has none; choose natural, time, '
            "cluster or iid",
            see="partition",
        )
    labels = dataset.train.targets(count)
    match data.partition:
        case "dirichlet":
            return partition.dirichlet(labels, nodes=nodes, alpha=data.alpha, seed=seed, min_size=least)
        case "pathological":
            each = data.classes_per_node
            return partition.pathological(labels, nodes=nodes, classes_per_node=each, seed=seed, min_size=least)
    return partition.shards(labels, nodes=nodes, shards_per_node=data.shards_per_node, seed=seed, min_size=least)
