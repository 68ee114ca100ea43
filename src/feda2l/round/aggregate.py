"""Neighbours' trained states -> aggregated (Algorithm 1, line 6)."""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from feda2l.topology import Mixing

MomentumState = Literal["keep", "reset", "average"]


def aggregate(mixing: Mixing, round: int, trained: Tensor, out: Tensor) -> None:
    """A = W T, for the parameters of every node: [nodes, width]."""
    mixing.apply(trained, round, out)


def mix_published(mixing: Mixing, round: int, sent: dict[str, Tensor], times: int) -> dict[str, Tensor]:
    """W applied `times` times to all that was published: [nodes, ...] by name, in fresh memory."""
    mixed = {}
    for name, values in sent.items():
        rows = values.flatten(1) if values.dim() > 1 else values.unsqueeze(1)
        for _ in range(times):
            out = torch.empty_like(rows)
            mixing.apply(rows, round, out)
            rows = out
        mixed[name] = rows.view_as(values)
    return mixed


def aggregate_in_place(mixing: Mixing, round: int, *states: Tensor) -> None:
    """The same for what travels beside the parameters (statistics, optimiser memory): [nodes, ...] each.

    Those of one kind are mixed as one matrix: forty small ones take a GPU forty times as long.
    """
    for kind in dict.fromkeys(values.dtype for values in states):
        alike = [values for values in states if values.dtype == kind]
        rows = torch.cat([values.flatten(1) for values in alike], dim=1) if len(alike) > 1 else alike[0].flatten(1)
        mixed = torch.empty_like(rows)
        mixing.apply(rows, round, mixed)
        widths = [values[0].numel() for values in alike]
        for values, own in zip(alike, mixed.split(widths, dim=1), strict=True):
            values.copy_(own.view_as(values))


def settle_memory(policy: MomentumState, mixing: Mixing, round: int, memory: Iterable[Tensor]) -> None:
    """What happens to the optimiser's memory at mixing: kept as it is, set to zero, or averaged."""
    for values in memory:
        if policy == "reset":
            values.zero_()
        elif policy == "average":
            aggregate_in_place(mixing, round, values)
