"""Signals -> the next round's rates (Algorithm 1, lines 11 to 16), and what the record says of the layers."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from feda2l.equations import Signals
from feda2l.round.run import LiveRun, NonFinite

Row = list[float | None]  # by layer


class Adapted(NamedTuple):
    """What a round made of one node's layers; None where it was absent or had nothing to observe."""

    rate: Row  # that the round trained with
    multiplier: Row
    divergence: Row
    stability: Row
    least: float | None  # multiplier
    largest: float | None
    change: float | None  # the largest of a multiplier


def first_non_finite(
    run: LiveRun, nodes: Sequence[int], losses: Sequence[float], divergence: Tensor
) -> NonFinite | None:
    """The first node and layer, by id, whose training became infinite or not a number."""
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
    """Complete the round: nodes that mixed with somebody observe and adapt, the others that acted skip the round.

    Absent nodes stand still. A node that `jumped` has its round and rates from the exchange.
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
    # one list of each tensor, not one of each row: a network may have thousands of nodes
    tensors = before, trained_with, signals.divergence, signals.stability, least, largest, change
    adapted = [Adapted(*own) for own in zip(*(values.tolist() for values in tensors), strict=True)]
    if len(observing) == run.plan.nodes:
        return adapted
    unknown: Row = [None] * len(run.plan.layers)
    acting = set(nodes)
    return [
        Adapted(unknown, unknown, unknown, unknown, None, None, None)
        if node not in acting
        else own
        if node in observing
        else own._replace(stability=unknown)
        for node, own in enumerate(adapted)
    ]
