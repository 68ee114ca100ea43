"""From signals to the rates of the next round (Algorithm 1, lines 11 to 16), and the layers' columns of the record."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from feda2l.equations import Signals
from feda2l.round.run import LiveRun, NonFinite

Row = list[float | None]  # one entry per layer


class Adapted(NamedTuple):
    """The values of one node's layers in a round; None where the node was absent or received nothing."""

    rate: Row  # used for training in the round
    multiplier: Row
    divergence: Row
    stability: Row
    least: float | None  # smallest multiplier
    largest: float | None  # largest multiplier
    change: float | None  # largest change of a multiplier


def first_non_finite(
    run: LiveRun, nodes: Sequence[int], losses: Sequence[float], divergence: Tensor
) -> NonFinite | None:
    """Find the first node and layer, by id, in which training produced an infinite value or NaN."""
    layers, finite = run.plan.layers, divergence[list(nodes)].isfinite() & torch.tensor(losses).isfinite().unsqueeze(1)
    broken = (~finite).nonzero()
    place = None
    if len(broken):
        number, layer = broken[0].tolist()
        place = run.plan.ids[nodes[number]] * len(layers) + layer
    first = run.collectives.first(place)
    if first is None:
        return None
    return NonFinite(run.state.round + 1, first // len(layers), layers[first % len(layers)].name)


def adapt(run: LiveRun, nodes: Sequence[int], signals: Signals, *, jumped: bool) -> list[Adapted]:
    """Complete the round: nodes that received something adapt their rates, the other present nodes skip the round.

    Absent nodes do not change. A node that `jumped` took its round and its rates from the exchange.
    """
    state, rates = run.state, run.state.rates
    before, trained_with = rates.rates, rates.multiplier.clone()
    observing: set[int] = set()
    if not jumped:
        state.round += 1
        mixed = run.exchange.mixed(state.round, nodes)
        observing.update(mixed)
        rates.advance(state.round, signals, mixed, [node for node in nodes if node not in observing])
    least, largest = trained_with.amin(dim=1), trained_with.amax(dim=1)
    change = (rates.multiplier - trained_with).abs_().amax(dim=1)
    # one list per tensor, not one per row: a network may have thousands of nodes
    tensors = before, trained_with, signals.divergence, signals.stability, least, largest, change
    adapted = [Adapted(*row) for row in zip(*(values.tolist() for values in tensors), strict=True)]
    if len(observing) == run.plan.nodes:
        return adapted
    unknown: Row = [None] * len(run.plan.layers)
    acting = set(nodes)
    return [
        Adapted(unknown, unknown, unknown, unknown, None, None, None)
        if node not in acting
        else row
        if node in observing
        else row._replace(stability=unknown)
        for node, row in enumerate(adapted)
    ]
