"""Outer momentum: a step after averaging that continues in the direction of earlier rounds.

Wang, Tantia, Ballas, Rabbat: "SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum", ICLR 2020;
Douillard et al.: "DiLoCo: Distributed Low-Communication Training of Language Models", 2023.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from feda2l.algorithms.base import Algorithm, NodeStates

MOST = 0.9  # the largest beta of "agreement"


@dataclass(frozen=True, kw_only=True)
class OuterMomentum(Algorithm):
    """With the average a of the round and u = a - B:

        m <- beta m + u;   A = B + m

    A fixed `beta` is used in every round. With beta = "agreement" every node computes it from its last two updates:

        beta_r = clip(cos(u_r, u_{r-1}), 0, 0.9)

    beta is 0 in round 1, and in the first round of a node that missed rounds: its m and u are old. No message is added.
    beta = 0 is FedAvg.

    Args:
        beta: the share of the earlier steps that a round repeats, or "agreement".
        per_layer: compute the cosine of "agreement" for each layer, in place of one for the whole model.
    """

    summary = "a momentum for whole rounds: the step after averaging"
    citation = "Wang et al. 2020"
    state = ("momentum", "update")

    beta: float | Literal["agreement"] = "agreement"
    per_layer: bool = False

    def __post_init__(self) -> None:
        sound = self.beta == "agreement" if isinstance(self.beta, str) else 0 <= self.beta < 1
        self.demand(sound, "beta", 'must be at least 0 and below 1, or "agreement"')
        self.demand(not self.per_layer or self.beta == "agreement", "per_layer", 'needs beta = "agreement"')

    @property
    def outer_betas(self) -> tuple[float, ...]:
        return (0.0, MOST / 3, 2 * MOST / 3, MOST) if isinstance(self.beta, str) else (self.beta,)

    def small_state(self, shares: Tensor, nodes: int, layers: int) -> dict[str, Tensor]:
        """Return the last round in which each node took part."""
        return {"round": torch.zeros(len(shares), dtype=torch.float64)}

    def outer_step(self, states: NodeStates, average: Tensor) -> Tensor:
        momentum, last = states.state["momentum"], states.state["update"]
        update = average - states.base
        seen = states.small_state["round"]
        steady = (seen == states.round - 1) & (seen > 0)
        beta = self._beta(states, update, last) * steady.double().unsqueeze(1)
        carried = momentum.mul_(states.expand(beta))
        aggregated = average.add(carried)
        carried.add_(update)
        last.copy_(update)
        seen.fill_(states.round)
        return aggregated

    def _beta(self, states: NodeStates, update: Tensor, last: Tensor) -> Tensor:
        """Return beta of every node and layer, [nodes, layers]."""
        if not isinstance(self.beta, str):
            return torch.full_like(states.rates, self.beta)
        zero = torch.zeros_like(update)
        pairs = ((zero, update), (zero, last), (last, update))
        squares = [states.movement(start, end).square() for start, end in pairs]
        if not self.per_layer:  # one after the other: the bits of a sum of rows depend on their number
            squares = [reduce(torch.add, layers.unbind(dim=1)).unsqueeze(1).expand_as(layers) for layers in squares]
        now, before, apart = squares
        # 2 u . v = |u|^2 + |v|^2 - |u - v|^2; an update of zero agrees with nothing
        sizes = (now * before).sqrt()
        cosine = (now + before - apart) / (2 * torch.where(sizes > 0, sizes, torch.inf))
        return cosine.clamp(0, MOST)
