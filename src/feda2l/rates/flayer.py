"""FLAYER: rates that rise with depth, and more so for layers with a small gradient.

Chen, Yang, Ren, Li, Wang: "Optimizing Personalized Federated Learning through Adaptive Layer-Wise Learning",
IJCAI 2025.
"""

from dataclasses import dataclass

import torch

from feda2l.equations import Signals
from feda2l.errors import FedA2LError
from feda2l.rates.base import Rates, Rule, Setting, SignalSettings

HEAD = 0.2  # rate of the last layer, as a factor on the base rate


@dataclass(frozen=True, kw_only=True)
class Flayer(Rule):
    """LR_l = base * (1 + l / (layers - 1) * log(1 + 1 / ||g_l||)) for l = 0, 1, ...; the last layer has base / 5.

    The first layer keeps the base rate. g_l is the mean gradient of the last round,
    ||g_l|| = ||T_l - B_l|| / (rate_l * steps). Round 1 has the base rate.

    Adapted: FLAYER uses the gradient of the first batch of a round, which would need an additional pass here; the mean
    gradient of the previous round is free. Its norm is smaller if the gradients of a round disagree, and with momentum
    or Adam it is the norm of the mean update. A layer has one norm, where the released code averages over its tensors.
    The factor 20 that the released code uses for the middle layers of its CNN is omitted. FLAYER's layer-wise
    aggregation and masks are not part of a rate rule: the algorithm decides how to mix. The rule sends no message.

    A model with a single layer has no depth and no head: its rate is the base rate.

    Args:
        eps: the lower bound of ||g_l||. It limits the rate of a layer that did not move to
            base * (1 + log(1 + 1 / eps)), about 19 times the base rate. Raise it if such layers change too fast.
    """

    summary = "rates that rise with depth and with a smaller gradient; base / 5 for the head (FLAYER)"

    eps: float = 1e-8

    def __post_init__(self) -> None:
        if not 1e-300 <= self.eps < float("inf"):
            raise FedA2LError(
                f"rates.eps = {self.eps}: must be above 0 and finite, otherwise a layer that did not move has no rate"
            )

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
