"""One row of W over the nodes that a node actually hears: for peers, and for simulated nodes under faults."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class MixingFacts(NamedTuple):
    """What a node tells others about itself so that they can weigh its state."""

    id: int
    samples: int  # training samples
    receives: int  # number of neighbours that it hears
    receivers: int  # number of neighbours that hear it


def row_weights(
    weights: str, node: int, closed: Sequence[MixingFacts], present: Collection[int], *, push: bool = False
) -> Tensor:
    """Compute the float64 weights that `node` gives to the `present` nodes of its closed neighbourhood and to itself.

    `closed` holds the node and its neighbours in ascending id. If all are present, the result is the node's row of W
    (`build_mixing`), to the bit. If some are absent:

    - `samples`: n_j / (the sum of n over those present);
    - `uniform`: 1 / (the number of those present);
    - `metropolis`: the weights do not change, and the node adds the weights of absent neighbours to its own. W stays
      symmetric where absence is mutual.
    - with `push`, the weights do not change, and the node keeps the share of a neighbour that it does not hear. Absence
      is mostly mutual, and mass sent to an absent node would be lost, which would change the step size share / mass.
    """
    there = np.array([facts.id in present for facts in closed])
    if weights == "metropolis":
        return torch.from_numpy(_metropolis_weights(node, closed, there))
    if push:
        return torch.from_numpy(_push_weights(node, closed, there))
    if weights == "samples":
        samples = np.array([facts.samples for facts in closed], dtype=np.int64)[there]
        return torch.from_numpy(samples / samples.sum())
    return torch.full((int(there.sum()),), 1 / int(there.sum()), dtype=torch.float64)


def _push_weights(node: int, closed: Sequence[MixingFacts], there: NDArray[np.bool_]) -> NDArray[np.float64]:
    given = 1 / (1 + np.array([facts.receivers for facts in closed]))
    own = np.array([facts.id == node for facts in closed])
    # at most what it would have given to all nodes that hear it, so that no mass is created
    given[own] *= 1 + min((~there).sum(), *(facts.receivers for facts in closed if facts.id == node))
    kept: NDArray[np.float64] = given[there]
    return kept


def _metropolis_weights(node: int, closed: Sequence[MixingFacts], there: NDArray[np.bool_]) -> NDArray[np.float64]:
    own = np.array([facts.id == node for facts in closed])
    size = 1 + np.array([facts.receives for facts in closed])
    values = 1 / np.maximum(size[own], size)
    # as in `build_mixing`, exact where degrees are equal
    values[own] += np.add.reduceat(1 / size[own] - values, [0])
    if not there.all():
        values[own] += values[~there].sum()
    kept: NDArray[np.float64] = values[there]
    return kept


def mean_weights(
    weights: str, node: int, closed: Sequence[MixingFacts], present: Collection[int], *, push: bool = False
) -> Tensor:
    """Compute the weights of a mean over the `present` nodes of a closed neighbourhood; the node may be absent.

    They are `row_weights`, normalized to sum to 1. A node that returns after an absence starts from this mean of its
    neighbours' models.
    """
    given = row_weights(weights, node, closed, present, push=push)
    return given / given.sum() if push or weights == "metropolis" else given
