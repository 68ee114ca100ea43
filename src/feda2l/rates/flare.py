"""FLARE, the rate of a node from its share of the work.

Xiao, Zhang, Ni, Wang: "FLARE: A New Federated Learning Framework with Adjustable Learning Rates over
Resource-Constrained Wireless Networks", 2025 (arXiv 2404.14811).
"""

from dataclasses import dataclass

import torch

from feda2l.equations import Signals
from feda2l.rates.base import Rates, Rule, Setting


@dataclass(frozen=True, kw_only=True)
class Flare(Rule):
    """rate_i = base * mean(steps of i and its neighbours) / steps_i: rate times steps is alike among neighbours.

    A node that takes many local steps takes small ones. Constant over the rounds, one rate for all layers of a
    node; with equal step counts it is the base rate.

    Adapted: FLARE lets a device set its rate and its number of local steps from its computing power, under a server
    that also schedules devices and bandwidth. We know the abstract only, so this is our reading of the rate, not
    the authors' equation; step counts come from the shards, there is no scheduling, and the mean over all devices
    is one over the closed neighbourhood. Messages: one whole number a neighbour, once, beside the sample sizes.
    """

    summary = "a node's rate in inverse proportion to its local steps (FLARE, our reading of it)"

    def start(self, setting: Setting) -> Rates:
        return _FlareRates(setting)


class _FlareRates(Rates):
    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        setting.demand("flare", "steps", "near_steps")
        factors = [sum(near) / (len(near) * own) for own, near in zip(setting.steps, setting.near_steps, strict=True)]
        self.multiplier *= torch.tensor(factors, dtype=torch.float64).unsqueeze(1)
        self.rates = self.base * self.multiplier

    def step(self, round: int, signals: Signals) -> None:
        """The step counts do not change, and so neither do the rates."""
