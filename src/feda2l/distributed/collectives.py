"""Collective operations over the nodes of a run that several ranks train."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from feda2l.distributed.placement import Placement
from feda2l.distributed.ranks import Ranks
from feda2l.round.exact_mean import exact_mean
from feda2l.round.run import RunPlan

T = TypeVar("T")
NOBODY = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class NodesOnRanks:
    """Implementation of `Collectives` for nodes on several ranks."""

    ranks: Ranks
    placement: Placement

    def mean(self, rows: Tensor) -> Tensor:
        ranks = self.ranks
        if rows.is_floating_point():
            nodes = sum(map(len, self.placement.ids))
            return exact_mean(rows, count=nodes, largest=ranks.largest, total=ranks.total)
        first = self.placement.ids[ranks.rank][0] == 0
        return ranks.total(rows[0].clone() if first else torch.zeros_like(rows[0]))

    def agree(self, state: Sequence[Tensor] | None) -> bool:
        digests = self.ranks.all(None if state is None else _digest(state))
        return digests[0] is not None and len(set(digests)) == 1

    def first(self, place: int | None) -> int | None:
        first_place = int(self.ranks.least(torch.tensor([NOBODY if place is None else place])))
        return None if first_place == NOBODY else first_place

    def of_all(self, values: Sequence[T]) -> list[T]:
        return self._in_order(self.ranks.all(values))

    def at_leader(self, values: Sequence[T]) -> list[T] | None:
        parts = self.ranks.gather(values)
        return None if parts is None else self._in_order(parts)

    def _in_order(self, parts: Sequence[Sequence[T]]) -> list[T]:
        """Merge the values of each rank's nodes into one list in the order of node ids."""
        order = np.argsort(np.concatenate(self.placement.ids))
        values = [value for part in parts for value in part]
        return [values[place] for place in order.tolist()]


def plan_of_rank(network_plan: RunPlan, ranks: Ranks, placement: Placement) -> RunPlan:
    """Return the part of a run's plan that concerns the nodes of this rank."""
    ids = placement.ids[ranks.rank].tolist()
    member, setting = network_plan.member, network_plan.setting

    def of_rank(values: Sequence[T]) -> list[T]:
        return [values[id] for id in ids]

    tests = None if member.tests is None else of_rank(member.tests)
    return replace(
        network_plan,
        member=replace(member, shards=of_rank(member.shards), local=of_rank(member.local), tests=tests, ids=tuple(ids)),
        setting=replace(
            setting,
            nodes=tuple(ids),
            steps=tuple(of_rank(setting.steps)),
            neighbour_steps=tuple(of_rank(setting.neighbour_steps)),
        ),
    )


def _digest(state: Sequence[Tensor]) -> bytes:
    total = hashlib.sha256()
    for values in state:
        total.update((values + 0).cpu().contiguous().numpy().tobytes())  # + 0 turns -0 into 0, which compares equal
    return total.digest()
