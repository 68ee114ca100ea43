"""One row of W over those a node really hears: what a peer weighs with, and a simulated node under faults."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Voice(NamedTuple):
    """What a node tells of itself so that others can weigh it."""

    id: int
    samples: int  # that it trains on
    receives: int  # neighbours that it hears
    receivers: int  # neighbours that hear it


def row_weights(
    weights: str, node: int, closed: Sequence[Voice], present: Collection[int], *, push: bool = False
) -> Tensor:
    """The float64 weights that `node` gives those of its closed neighbourhood that are `present`, itself among them.

    `closed` is in ascending id. When all are present this is the node's row of W (`build_mixing`), to the bit. Without
    some of them

    - `samples`: n_j / sum of n over those present;
    - `uniform`: 1 / how many are present;
    - `metropolis`: as it was, and what the absent ones would have got is the node's own: W stays symmetric where
      absence is mutual;
    - with `push` as it was, and the node keeps what it would have given one that it does not hear: absence is mostly
      mutual, and mass that goes nowhere would fade from the network round by round (steps go with share / mass).
    """
    there = np.array([voice.id in present for voice in closed])
    if weights == "metropolis":
        return torch.from_numpy(_metropolis_weights(node, closed, there))
    if push:
        return torch.from_numpy(_push_weights(node, closed, there))
    if weights == "samples":
        samples = np.array([voice.samples for voice in closed], dtype=np.int64)[there]
        return torch.from_numpy(samples / samples.sum())
    return torch.full((int(there.sum()),), 1 / int(there.sum()), dtype=torch.float64)


def _push_weights(node: int, closed: Sequence[Voice], there: NDArray[np.bool_]) -> NDArray[np.float64]:
    given = 1 / (1 + np.array([voice.receivers for voice in closed]))
    own = np.array([voice.id == node for voice in closed])
    # no more than it would have given to all of its listeners: it has as much as it had, at most
    given[own] *= 1 + min((~there).sum(), *(voice.receivers for voice in closed if voice.id == node))
    kept: NDArray[np.float64] = given[there]
    return kept


def _metropolis_weights(node: int, closed: Sequence[Voice], there: NDArray[np.bool_]) -> NDArray[np.float64]:
    own = np.array([voice.id == node for voice in closed])
    size = 1 + np.array([voice.receives for voice in closed])
    values = 1 / np.maximum(size[own], size)
    # as in `build_mixing`: exact where degrees are equal
    values[own] += np.add.reduceat(1 / size[own] - values, [0])
    if not there.all():
        values[own] += values[~there].sum()
    kept: NDArray[np.float64] = values[there]
    return kept


def mean_weights(
    weights: str, node: int, closed: Sequence[Voice], present: Collection[int], *, push: bool = False
) -> Tensor:
    """The weights of a mean of those of a closed neighbourhood that are `present`; the node itself need not be.

    They are `row_weights`, made to sum to 1 where these need not: what a node that comes back takes its neighbours'
    models with.
    """
    given = row_weights(weights, node, closed, present, push=push)
    return given / given.sum() if push or weights == "metropolis" else given
