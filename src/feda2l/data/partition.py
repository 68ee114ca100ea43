"""Assigns samples to nodes. Every function returns one array of sample indices per node, with each sample once.

An impossible request raises `FedA2LError` within seconds, with feasible values.
"""

import math
import sys
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from feda2l.errors import FedA2LError
from feda2l.randomness import numpy_generator

__all__ = ["Indices", "dirichlet", "iid", "natural", "pathological", "shards", "split", "table"]

Indices = NDArray[np.int64]
_T = TypeVar("_T")

# The limit of work per request, in units of about 10 ns: seconds, and the same number of draws on every machine.
_BUDGET = 150_000_000
_PROBE = _BUDGET // 10
_ALPHAS = [mantissa * 10.0**exponent for exponent in range(-3, 3) for mantissa in (1, 2, 5)]


def iid(labels: ArrayLike | Tensor, *, nodes: int, seed: int = 1, min_size: int = 1) -> list[Indices]:
    """Assign samples at random to nodes of equal size (up to one sample).

    >>> [len(part) for part in iid([0, 1, 0, 1, 0], nodes=2)]
    [3, 2]
    """
    samples = len(_checked(labels, nodes, seed, min_size))
    _demand_room(samples, nodes, min_size)
    order = numpy_generator(seed, purpose="iid").permutation(samples)
    return np.array_split(order, nodes)


def dirichlet(
    labels: ArrayLike | Tensor, *, nodes: int, alpha: float, seed: int = 1, min_size: int = 40
) -> list[Indices]:
    """Assign samples with label skew: each class in proportions p ~ Dirichlet(alpha, ..., alpha) over the nodes.

    A node that has its fair share, samples / nodes, gets no samples of the following classes. The whole draw is
    repeated until the smallest node has `min_size` samples. Random numbers come from NumPy's legacy
    `RandomState(seed)`, as in the paper's released code, so each node has the same samples as there.

    Args:
        alpha: small values give each node few classes, large values approach `iid`; the paper uses 0.01, 0.1 and 0.5.
    """
    array = _checked(labels, nodes, seed, min_size)
    if not _within(alpha, 0, sys.float_info.max):
        raise FedA2LError(f"alpha must be a positive number, got {alpha!r}; the paper uses 0.01, 0.1 and 0.5")
    members = [np.flatnonzero(array == label) for label in np.unique(array)]
    possible = min(min_size, len(array) // nodes)
    parts, best = None, 0
    if possible or not min_size:
        parts, best = _draw(members, nodes=nodes, alpha=alpha, seed=seed, min_size=possible, budget=_BUDGET)
    if parts is None or possible < min_size:
        raise FedA2LError(
            _infeasible(members, nodes=nodes, alpha=alpha, seed=seed, min_size=min_size, best=best), see="partition"
        )
    return parts


def pathological(
    labels: ArrayLike | Tensor, *, nodes: int, classes_per_node: int = 2, seed: int = 1, min_size: int = 1
) -> list[Indices]:
    """Assign exactly `classes_per_node` classes to each node; the nodes of a class share it equally.

    >>> parts = pathological([0, 0, 1, 1, 2, 2], nodes=3, classes_per_node=1)
    >>> sorted(sorted(part.tolist()) for part in parts)
    [[0, 1], [2, 3], [4, 5]]
    """
    array = _checked(labels, nodes, seed, min_size)
    classes, counts = np.unique(array, return_counts=True)
    _demand_shareable(nodes, classes_per_node, len(classes), counts.min())
    generator = numpy_generator(seed, purpose="pathological")
    holders: list[list[int]] = [[] for _ in classes]
    for node in range(nodes):
        # The classes with the fewest nodes, ties at random: every class gets a node, and none is preferred.
        load = np.array([len(holder) for holder in holders])
        for chosen in np.lexsort((generator.random(len(classes)), load))[:classes_per_node]:
            holders[chosen].append(node)
    pieces: list[list[Indices]] = [[] for _ in range(nodes)]
    for label, holder in zip(classes, holders, strict=True):
        shuffled = generator.permutation(np.flatnonzero(array == label))
        for node, piece in zip(holder, np.array_split(shuffled, len(holder)), strict=True):
            pieces[node].append(piece)
    return _enough([np.concatenate(piece) for piece in pieces], min_size)


def shards(
    labels: ArrayLike | Tensor, *, nodes: int, shards_per_node: int = 2, seed: int = 1, min_size: int = 1
) -> list[Indices]:
    """Sort the samples by label, cut them into equal shards, and assign `shards_per_node` random shards to each node.

    B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas, "Communication-Efficient Learning of Deep
    Networks from Decentralized Data", AISTATS 2017, section 3.
    """
    array = _checked(labels, nodes, seed, min_size)
    _positive("shards_per_node", shards_per_node)
    if nodes * shards_per_node > len(array):
        raise FedA2LError(
            f"{nodes} nodes of {shards_per_node} shards need {nodes * shards_per_node} samples, there are "
            f"{len(array)}; feasible: nodes <= {len(array) // shards_per_node}, or shards_per_node <= "
            f"{len(array) // nodes}",
            see="partition",
        )
    cut = np.array_split(np.argsort(array, kind="stable"), nodes * shards_per_node)
    assigned = numpy_generator(seed, purpose="shards").permutation(len(cut)).reshape(nodes, shards_per_node)
    return _enough([np.concatenate([cut[shard] for shard in chosen]) for chosen in assigned], min_size)


def natural(groups: ArrayLike | Tensor, *, nodes: int | None = None, min_size: int = 1) -> list[Indices]:
    """Assign one node to each distinct value of `groups` (a writer, a station, ...), in ascending order.

    >>> [part.tolist() for part in natural(["b", "a", "b"])]
    [[1], [0, 2]]
    """
    array = np.asarray(groups)
    if array.ndim != 1 or not len(array):
        raise FedA2LError(f"groups must be a list with one node id per sample, got shape {array.shape}")
    _positive("min_size", min_size, least=0)
    values, inverse = np.unique(array, return_inverse=True)
    if nodes is not None and nodes != len(values):
        raise FedA2LError(
            f"these data come from {len(values)} nodes, got data.nodes = {nodes!r}; leave data.nodes out, or choose "
            "another data.partition",
            see="partition",
        )
    order = np.argsort(inverse, kind="stable")
    return _enough(np.split(order, np.cumsum(np.bincount(inverse))[:-1]), min_size)


def split(indices: ArrayLike, *, train_fraction: float = 0.75, seed: int, node: int) -> tuple[Indices, Indices]:
    """Split the samples of one node at random into a training part (rounded down) and its local test set."""
    if not _within(train_fraction, 0, 1):
        raise FedA2LError(f"train_fraction must be above 0 and at most 1, got {train_fraction!r}")
    shuffled = numpy_generator(seed, node=node, purpose="split").permutation(np.asarray(indices, dtype=np.int64))
    # The small term corrects rounding: 0.29 * 100 is 28.999999999999996.
    train = math.floor(train_fraction * len(shuffled) + 1e-9)
    return shuffled[:train], shuffled[train:]


def table(labels: ArrayLike | Tensor, parts: Sequence[Indices], classes: int) -> NDArray[np.int64]:
    """Count the samples of each class at each node, [nodes, classes].

    >>> table([0, 1, 1], natural([0, 0, 1]), classes=2).tolist()
    [[1, 1], [0, 1]]
    """
    array = _labels(labels)
    if array.min() < 0 or array.max() >= classes:
        raise FedA2LError(f"labels must lie in 0..{classes - 1}, found {array.min()}..{array.max()}")
    return np.stack([np.bincount(array[part], minlength=classes) for part in parts])


def _draw(
    members: list[Indices], *, nodes: int, alpha: float, seed: int, min_size: int, budget: int
) -> tuple[list[Indices] | None, int]:
    """The first draw that gives every node `min_size` samples, or None; and the largest minimum seen (-1: none)."""
    random = np.random.RandomState(seed)
    samples = sum(map(len, members))
    concentration = np.full(nodes, float(alpha))
    best = -1
    budget = max(budget, 4 * (samples + len(members) * (2000 + 5 * nodes)))  # a few draws for any size of data
    while budget > 0:
        sizes = np.zeros(nodes, dtype=np.int64)
        cut: list[tuple[Indices, Indices]] = []
        for indices in members:
            shuffled = random.permutation(indices)
            budget -= len(indices)
            mass = math.nan
            while not mass > 0:  # 0: all of it went to full nodes; NaN: every gamma variate underflowed
                if budget <= 0:
                    return None, best
                budget -= 2000 + 5 * nodes
                share = np.where(sizes < samples / nodes, random.dirichlet(concentration), 0.0)
                mass = share.sum()
            cuts = (np.cumsum(share / mass) * len(indices)).astype(np.int64)[:-1]
            sizes += np.diff(cuts, prepend=0, append=len(indices))
            cut.append((shuffled, cuts))
        best = max(best, int(sizes.min()))
        if best >= min_size:
            pieces = [np.split(shuffled, cuts) for shuffled, cuts in cut]
            return [np.concatenate(piece) for piece in zip(*pieces, strict=True)], best
    return None, best


def _infeasible(members: list[Indices], *, nodes: int, alpha: float, seed: int, min_size: int, best: int) -> str:
    """Why no draw succeeded, and similar requests that succeed with the same seed."""

    samples = sum(map(len, members))

    def passes(nodes: int = nodes, alpha: float = alpha) -> bool:
        return _draw(members, nodes=nodes, alpha=alpha, seed=seed, min_size=min_size, budget=_PROBE)[0] is not None

    feasible = [f"min_size <= {best}"] if best > 0 else []
    most = min(nodes - 1, samples // min_size if min_size else nodes)
    if fewer := _first(list(range(most, 0, -1)), lambda count: passes(nodes=count)):
        feasible.append(f"nodes = {fewer}")
    if nodes * min_size > samples:
        hints = ", or ".join(feasible) or "fewer nodes with a smaller min_size"
        return f"{_too_few(samples, nodes, min_size)}; feasible: {hints}"
    if larger := _first([value for value in _ALPHAS if value > alpha], lambda value: passes(alpha=value)):
        feasible.append(f"alpha = {larger:g}")
    feasible.append('partition = "iid"')
    why = "" if best >= 0 else " (no draw could be completed: alpha is too extreme for floating point)"
    return (
        f"no Dirichlet draw gave each of {nodes} nodes {min_size} of the {samples} samples with "
        f"alpha = {alpha:g}, seed = {seed}{why}; feasible: {', or '.join(feasible)}"
    )


def _first(candidates: list[_T], passes: Callable[[_T], bool]) -> _T | None:
    """The first candidate that passes, by bisection: earlier candidates fail, later ones pass."""
    low, high, best = 0, len(candidates), None
    while low < high:
        middle = (low + high) // 2
        if passes(candidates[middle]):
            high, best = middle, candidates[middle]
        else:
            low = middle + 1
    return best


def _labels(labels: ArrayLike | Tensor) -> NDArray[np.integer]:
    array = np.asarray(labels)
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu":
        raise FedA2LError(f"labels must be a list of whole numbers, got shape {array.shape} of {array.dtype}")
    return array


def _checked(labels: ArrayLike | Tensor, nodes: int, seed: int, min_size: int) -> NDArray[np.integer]:
    """The labels as an array, after the checks that only need counting."""
    array = _labels(labels)
    _positive("nodes", nodes)
    _positive("min_size", min_size, least=0)
    _positive("seed", seed, least=0)
    if seed >= 2**32:
        raise FedA2LError(f"seed must be below 2**32, got {seed}")
    return array


def _demand_room(samples: int, nodes: int, min_size: int) -> None:
    """Raise unless nodes of equal size (up to one sample) have `min_size` samples each."""
    if nodes * min_size > samples:
        raise FedA2LError(
            f"{_too_few(samples, nodes, min_size)}; "
            f"feasible: {f'nodes <= {samples // min_size}, or ' * (min_size <= samples)}min_size <= {samples // nodes}",
            see="partition",
        )


def _too_few(samples: int, nodes: int, min_size: int) -> str:
    need = f"{nodes} nodes of at least {min_size} samples need {nodes * min_size} samples, there are {samples}"
    return f"{need} (min_size = {min_size})"


def _demand_shareable(nodes: int, classes_per_node: int, classes: int, smallest: int) -> None:
    """Raise unless the nodes can cover all classes, and can share the smallest class."""
    _positive("classes_per_node", classes_per_node)
    if classes_per_node > classes:
        raise FedA2LError(f"classes_per_node = {classes_per_node}, but there are only {classes} classes")
    if nodes * classes_per_node < classes:
        raise FedA2LError(
            f"{nodes} nodes of {classes_per_node} classes leave classes of the {classes} without a node; "
            f"feasible: classes_per_node >= {-(-classes // nodes)}, or nodes >= {-(-classes // classes_per_node)}",
            see="partition",
        )
    if (sharing := -(-nodes * classes_per_node // classes)) > smallest:
        raise FedA2LError(
            f"a class of {smallest} samples cannot be shared by {sharing} nodes; "
            f"feasible: nodes <= {smallest * classes // classes_per_node}",
            see="partition",
        )


def _within(value: object, above: float, most: float) -> bool:
    """Is the value a number in (above, most]? NaN and infinity are not."""
    return isinstance(value, Real) and above < float(value) <= most


def _positive(name: str, value: object, *, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise FedA2LError(f"{name} must be a whole number of at least {least}, got {value!r}")


def _enough(parts: list[Indices], min_size: int) -> list[Indices]:
    sizes = [len(part) for part in parts]
    if min(sizes) < min_size:
        raise FedA2LError(
            f"node {int(np.argmin(sizes))} has {min(sizes)} samples, fewer than min_size = {min_size}; "
            f"feasible: min_size <= {min(sizes)}",
            see="partition",
        )
    return parts
