"""FLAYER, rates that rise with depth, the more the smaller a layer's gradient.

Chen, Yang, Ren, Li, Wang: "Optimizing Personalized Federated Learning through Adaptive Layer-Wise Learning",
IJCAI 2025.
"""

from dataclasses import dataclass

import torch

from feda2l.equations import Signals
from feda2l.errors import FedA2LError
from feda2l.rates.base import Rates, Rule, Setting, SignalSettings

HEAD = 0.2  # rate of the last layer, in the base rate


@dataclass(frozen=True, kw_only=True)
class Flayer(Rule):
    """LR_l = base * (1 + l / (layers - 1) * log(1 + 1 / ||g_l||)), l = 0, 1, ...; the last layer, the head, base / 5.

    The first layer keeps the base rate. g_l is the mean gradient of the round that ended,
    ||g_l|| = ||T_l - B_l|| / (rate_l * steps). Round 1 has the base rate.

    Adapted: FLAYER takes the gradient of the first batch of a round, which would be an extra pass here; the mean
    gradient of the round before comes for free. Its norm is smaller where gradients of a round disagree, and with
    momentum or Adam it is that of the mean update. A layer has one norm, where the released code averages over its
    tensors; the factor 20 which that code gives to the middle layers of its CNN is left out. FLAYER's layer-wise
    aggregation and masks are not part of a rate rule: mixing is that of the algorithm. It sends no message.

    A model of a single layer has no depth and no head: its rate is the base rate.

    eps: the least ||g_l|| that is told from 0; it bounds the rate of a layer that did not move to
        base * (1 + log(1 + 1 / eps)), some 19 times the base rate. Raise it if layers at rest wake up too fast.
    """

    summary = "rates that rise with depth and as the gradient shrinks, a fifth for the head (FLAYER)"

    eps: float = 1e-8

    def __post_init__(self) -> None:
        if not 1e-300 <= self.eps < float("inf"):
            raise FedA2LError(f"rates.eps = {self.eps}: must be above 0 and finite, or a layer at rest has no rate")

    @property
    def measure(self) -> SignalSettings:
        return SignalSettings(movement=True)

    def start(self, setting: Setting) -> Rates:
        return _FlayerRates(self, setting)


class _FlayerRates(Rates):
    def __init__(self, rule: Flayer, setting: Setting) -> None:
        super().__init__(setting)
        setting.demand("flayer", "steps")
        self.rule = rule
        self.steps = torch.tensor(setting.steps, dtype=torch.float64).unsqueeze(1)

    def step(self, round: int, signals: Signals) -> None:
        layers = self.rates.shape[1]
        if layers == 1:
            return
        gradient = self.movement("flayer", signals) / (self.rates * self.steps)
        depth = torch.arange(layers, dtype=torch.float64) / (layers - 1)
        self.multiplier = 1 + depth * torch.log1p(1 / gradient.clamp(min=self.rule.eps))
        self.multiplier[:, -1] = HEAD
        self.rates = self.base * self.multiplier
