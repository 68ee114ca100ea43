"""One row of W over the nodes whose models a node received: for peers, and for simulated nodes under faults."""

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
    receives: int  # number of neighbours that it receives from
    receivers: int  # number of neighbours that receive from it


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
    - with `push`, the weights do not change, and the node keeps the share of a neighbour from which it received
      nothing. Absence is mostly mutual, and mass sent to an absent node would be lost, which would change the step
      size share / mass.
    """
    is_present = np.array([facts.id in present for facts in closed])
    if weights == "metropolis":
        return torch.from_numpy(_metropolis_weights(node, closed, is_present))
    if push:
        return torch.from_numpy(_push_weights(node, closed, is_present))
    if weights == "samples":
        samples = np.array([facts.samples for facts in closed], dtype=np.int64)[is_present]
        return torch.from_numpy(samples / samples.sum())
    return torch.full((int(is_present.sum()),), 1 / int(is_present.sum()), dtype=torch.float64)


def _push_weights(node: int, closed: Sequence[MixingFacts], is_present: NDArray[np.bool_]) -> NDArray[np.float64]:
    given = 1 / (1 + np.array([facts.receivers for facts in closed]))
    is_node = np.array([facts.id == node for facts in closed])
    # at most what it would have given to all its receivers, so that no mass is created
    given[is_node] *= 1 + min((~is_present).sum(), *(facts.receivers for facts in closed if facts.id == node))
    present_weights: NDArray[np.float64] = given[is_present]
    return present_weights


def _metropolis_weights(node: int, closed: Sequence[MixingFacts], is_present: NDArray[np.bool_]) -> NDArray[np.float64]:
    is_node = np.array([facts.id == node for facts in closed])
    size = 1 + np.array([facts.receives for facts in closed])
    values = 1 / np.maximum(size[is_node], size)
    # as in `build_mixing`, exact where degrees are equal
    values[is_node] += np.add.reduceat(1 / size[is_node] - values, [0])
    if not is_present.all():
        values[is_node] += values[~is_present].sum()
    present_weights: NDArray[np.float64] = values[is_present]
    return present_weights


def mean_weights(
    weights: str, node: int, closed: Sequence[MixingFacts], present: Collection[int], *, push: bool = False
) -> Tensor:
    """Compute the weights of a mean over the `present` nodes of a closed neighbourhood; the node may be absent.

    They are `row_weights`, normalized to sum to 1. A node that returns after an absence starts from this mean of its
    neighbours' models.
    """
    given = row_weights(weights, node, closed, present, push=push)
    return given / given.sum() if push or weights == "metropolis" else given
