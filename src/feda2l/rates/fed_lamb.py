"""Fed-LAMB: rates proportional to a layer's norm divided by the norm of its update.

Karimi, Li, Li: "Fed-LAMB: Layer-wise and Dimension-wise Locally Adaptive Federated Learning", UAI 2023.
"""

from dataclasses import dataclass
from functools import reduce

import torch

from feda2l.equations import Signals
from feda2l.errors import FedA2LError
from feda2l.rates.base import Rates, Rule, Setting, demand_clip


@dataclass(frozen=True, kw_only=True)
class FedLamb(Rule):
    """rate_l = base * clamp(trust * ||B_l|| / ||u_l||, low, high): each layer moves by a similar share of its norm.

    u_l = (T_l - B_l) / (eta_l K) is the mean update of the last round, with K local steps at rate eta_l. With
    sigma_l = ||T_l - B_l|| / ||B_l|| this gives ||B_l|| / ||u_l|| = eta_l K / sigma_l. Round 1 has the base rate.

    Adapted: Fed-LAMB computes the ratio at every local step, from the update of that step. Here it is computed once per
    round from signals that the round measures anyway, without an additional pass or message. The rest of Fed-LAMB does
    not concern the rate. Use `training.optimizer = "adam"` for its local moments (Adam in place of AMSGrad), and
    `training.momentum_state = "average"` to average them with the neighbours, which sends them too.

    As in LAMB the ratio of a layer that did not move counts as 1, so it has the base rate. A layer that is zero at the
    start of a round looks like one that moved far; it has the lowest rate in the next round.

    Args:
        trust: None divides by the mean ratio of the node's layers: the multipliers have mean 1 before the clip, K
            cancels, and base means the same as in other rules. With a number, a local step moves a layer by
            trust * base of its norm; divergence / (base K) of a good run at the base rate is a good first value.
        clip: (low, high) bounds of rate / base. Narrower bounds trust the rule less; (1, 1) disables it.
    """

    summary = "rates proportional to a layer's norm over its update's norm (trust ratio of Fed-LAMB)"

    trust: float | None = None
    clip: tuple[float, float] = (0.1, 10.0)

    def __post_init__(self) -> None:
        if self.trust is not None and not 0 < self.trust < float("inf"):
            raise FedA2LError(f"rates.trust = {self.trust}: must be above 0, or omitted for a mean multiplier of 1")
        demand_clip(self.clip)

    def start(self, setting: Setting) -> Rates:
        return _FedLambRates(self, setting)


class _FedLambRates(Rates):
    def __init__(self, rule: FedLamb, setting: Setting) -> None:
        super().__init__(setting)
        self.rule = rule
        if rule.trust is not None:
            setting.demand("fed_lamb with rates.trust", "steps")
            self.scale = rule.trust * torch.tensor(setting.steps, dtype=torch.float64).unsqueeze(1)

    def step(self, round: int, signals: Signals) -> None:
        ratio = self.rates / signals.divergence.to(torch.float64)  # ||B|| / ||u||, without the factor K
        moved = ratio.isfinite()
        if self.rule.trust is None:
            # layer by layer: the order in torch's sum, and so the last bits, depends on the number of nodes
            total = reduce(torch.add, torch.where(moved, ratio, 0.0).unbind(1))
            scaled = ratio / (total / moved.sum(1)).unsqueeze(1)
        else:
            scaled = ratio * self.scale
        self.multiplier = torch.where(moved, scaled, 1.0).clamp(*self.rule.clip)
        self.rates = self.base * self.multiplier
