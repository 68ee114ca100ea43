"""FLARE: a node's rate from its number of local steps.

Xiao, Zhang, Ni, Wang: "FLARE: A New Federated Learning Framework with Adjustable Learning Rates over
Resource-Constrained Wireless Networks", 2025 (arXiv 2404.14811).
"""

from dataclasses import dataclass

import torch

from feda2l.equations import Signals
from feda2l.rates.base import Rates, Rule, Setting


@dataclass(frozen=True, kw_only=True)
class Flare(Rule):
    """rate_i = base * mean(steps of i and its neighbours) / steps_i: neighbours have similar rate times steps.

    A node that takes many local steps takes small ones. The rate is constant over the rounds and equal for all layers
    of a node. With equal step counts it is the base rate.

    Adapted: in FLARE a device sets its rate and its number of local steps from its computing power, and a server
    schedules devices and bandwidth. We know the abstract only, so this is our reading of the rate and not the authors'
    equation. Step counts come from the shards, there is no scheduling, and the mean over all devices becomes the mean
    over the closed neighbourhood. Messages: one whole number per neighbour, sent once with the sample sizes.
    """

    summary = "a node's rate inversely proportional to its local steps (our reading of FLARE)"

    def start(self, setting: Setting) -> Rates:
        return _FlareRates(setting)


class _FlareRates(Rates):
    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        setting.demand("flare", "steps", "neighbour_steps")
        factors = [
            sum(neighbourhood) / (len(neighbourhood) * steps)
            for steps, neighbourhood in zip(setting.steps, setting.neighbour_steps, strict=True)
        ]
        self.multiplier *= torch.tensor(factors, dtype=torch.float64).unsqueeze(1)
        self.rates = self.base * self.multiplier

    def step(self, round: int, signals: Signals) -> None:
        """Keep the rates: the step counts do not change."""
