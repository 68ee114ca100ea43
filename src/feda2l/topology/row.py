"""One row of W over those a node really hears: what a peer weighs with, and a simulated node whose neighbours are absent."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Voice(NamedTuple):
    """What a node tells of itself so that others can weigh it."""

    id: int
    samples: int  # that it trains on
    hears: int  # neighbours that it hears
    heard_by: int  # neighbours that hear it


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
    - with `push` as it was: what an absent node would have given is lost with its mass, so the ratio stays an average.
    """
    there = np.array([voice.id in present for voice in closed])
    if push and weights != "metropolis":
        return torch.from_numpy((1 / (1 + np.array([voice.heard_by for voice in closed])))[there])
    if weights == "samples":
        samples = np.array([voice.samples for voice in closed], dtype=np.int64)[there]
        return torch.from_numpy(samples / samples.sum())
    if weights == "uniform":
        return torch.full((int(there.sum()),), 1 / int(there.sum()), dtype=torch.float64)
    own = np.array([voice.id == node for voice in closed])
    size = 1 + np.array([voice.hears for voice in closed])
    values = 1 / np.maximum(size[own], size)
    # as in `build_mixing`: exact where degrees are equal
    values[own] += np.add.reduceat(1 / size[own] - values, [0])
    if not there.all():
        values[own] += values[~there].sum()
    return torch.from_numpy(values[there])
