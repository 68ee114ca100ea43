"""One rank's nodes of a run: its rows, whose neighbours may be another rank's."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from feda2l.distributed.halo import HaloMixing
from feda2l.distributed.placement import Placement
from feda2l.distributed.ranks import Ranks
from feda2l.simulate.exact_mean import exact_mean
from feda2l.simulate.simulation import Divergence, Hear, Simulation
from feda2l.topology import Mixing

T = TypeVar("T")
NOBODY = torch.iinfo(torch.int64).max


@dataclass
class Sharded(Simulation):
    """The simulation of a rank's nodes; `whole` is the run that all ranks' nodes make, without rows of its own.

    Everything but mixing, and what is said of all nodes together, is the simulator's code over fewer rows.
    """

    whole: Simulation = field(kw_only=True)
    ranks: Ranks = field(kw_only=True)
    placement: Placement = field(kw_only=True)
    halo: HaloMixing = field(init=False)
    one_model: bool = field(init=False, default=False)  # do all of the network's nodes hold the same?

    @classmethod
    def of(cls, whole: Simulation, ranks: Ranks, placement: Placement) -> "Sharded":
        """This rank's part of a run that is assembled whole."""
        ids = placement.ids[ranks.rank].tolist()
        member, setting = whole.member, whole.setting

        def own(values: Sequence[T]) -> list[T]:
            return [values[id] for id in ids]

        tests = None if member.tests is None else own(member.tests)
        given: dict[str, Any] = {f.name: getattr(whole, f.name) for f in fields(Simulation) if f.init} | {
            "member": replace(member, shards=own(member.shards), local=own(member.local), tests=tests, ids=tuple(ids)),
            "setting": replace(
                setting, nodes=tuple(ids), steps=tuple(own(setting.steps)), near_steps=tuple(own(setting.near_steps))
            ),
        }
        return cls(**given, whole=whole, ranks=ranks, placement=placement)

    def __post_init__(self) -> None:
        super().__post_init__()
        ids = self.placement.ids[self.ranks.rank]
        self.halo = HaloMixing.of(self.mixing, self.ranks, ids, self.placement.owner)
        # along which axis of each part of the rule's state the nodes lie: where fewer nodes make it shorter
        whole, own = self.whole.rates.state_dict(), self.rates.state_dict()
        self.rate_axes: dict[str, int | None] = {
            key: next((axis for axis, size in enumerate(own[key].shape) if size != whole[key].shape[axis]), None)
            for key in own
        }

    @property
    def agreed(self) -> bool:
        return self.one_model

    def network_in(self, round: int) -> Mixing:
        return self.halo

    def mix(self) -> None:
        super().mix()
        self.halo.forget()

    def hears(self, sent: dict[str, Tensor], mixing: Mixing) -> Hear:
        """What was published, the halo included; fetched at all ranks together, in one order."""
        heard = {name: self.halo.hear(values, self.round + 1) for name, values in sent.items()}
        return lambda name, ids: heard[name](ids)

    def samples_of_all(self) -> Tensor:
        return self.whole.samples

    def of_all(self, own: list[T]) -> list[T]:
        return in_order(self.placement, self.ranks.all(own))

    def divergence(self, losses: list[float]) -> Tensor:
        """sigma of our rows; the first of all ranks' nodes that is not finite ends the run everywhere."""
        sigma = super().divergence(losses)
        layers = [layer.name for layer in self.layers]
        worst = NOBODY
        if self.diverged:
            worst = self.ids[self.diverged.node] * len(layers) + layers.index(self.diverged.layer)
        worst = int(self.ranks.least(torch.tensor([worst])))
        self.diverged = None
        if worst != NOBODY:
            self.diverged = Divergence(self.round + 1, worst // len(layers), layers[worst % len(layers)])
        self.whole.diverged = self.diverged
        return sigma

    def find_same(self) -> None:
        """As in one process; whether all ranks hold one model is told by digests."""
        super().find_same()
        digests = self.ranks.all(_digest([state[0] for state in self.models()]) if not any(self.same) else None)
        self.one_model = digests[0] is not None and len(set(digests)) == 1

    def mean(self, matrix: Tensor) -> Tensor:
        own, ranks = matrix[self.rows], self.ranks
        if own.is_floating_point():
            return exact_mean(own, count=self.network, largest=ranks.largest, total=ranks.total)
        return ranks.total(own[0].clone() if self.ids[0] == 0 else torch.zeros_like(own[0]))

    def distances(self) -> Tensor:
        """||theta_i - mean||^2 of our nodes, [nodes, layers]."""
        if self.one_model:
            return torch.zeros(self.nodes, len(self.layers), dtype=torch.float64)
        return self.all_columns.distances(self.population.base[self.rows], self.population.mean[self.number])


def in_order(placement: Placement, parts: Sequence[Sequence[T]]) -> list[T]:
    """Values of every rank's nodes -> of the network's nodes, in the order of their ids."""
    order = np.argsort(np.concatenate(placement.ids))
    values = [value for part in parts for value in part]
    return [values[place] for place in order.tolist()]


def _digest(state: Sequence[Tensor]) -> bytes:
    total = hashlib.sha256()
    for values in state:
        total.update((values + 0).cpu().contiguous().numpy().tobytes())  # -0 is equal to 0
    return total.digest()
