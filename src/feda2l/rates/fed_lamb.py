"""Fed-LAMB, rates in proportion to a layer's size over its update.

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
    """rate_l = base * clamp(trust * ||B_l|| / ||u_l||, low, high): each layer moves by a like share of its size.

    u_l = (T_l - B_l) / (eta_l K) is the mean update of the round that ended, K local steps at rate eta_l. With
    sigma_l = ||T_l - B_l|| / ||B_l|| this makes ||B_l|| / ||u_l|| = eta_l K / sigma_l. Round 1 has the base rate.

    Adapted: Fed-LAMB takes the ratio anew at every local step, from the update of that step; here it is taken once a
    round, from what the round measures anyway, so there is no extra pass and no message. The rest of Fed-LAMB is not a
    rate: its local moments are `training.optimizer = "adam"` (Adam in place of AMSGrad), and the second moments that
    its server averages are averaged with the neighbours by `training.momentum_state = "average"`, whose messages they
    are.

    As in LAMB the ratio of a layer that did not move counts as 1: it has the base rate. A layer that is zero at the
    start of a round cannot be told from one that moved far, and has the lowest rate for that once.

    trust: None divides by the mean ratio of the node's layers: the multipliers have mean 1 before the clip, K cancels,
        and base means the same as in other rules. With a number a local step moves a layer by trust * base of its
        norm; sigma / (base K) of a good run at the base rate is a sound first guess.
    clip: (low, high) of rate / base. Narrower trusts the rule less; (1, 1) switches it off.
    """

    summary = "rates in proportion to a layer's norm over its update's (trust ratio of Fed-LAMB)"

    trust: float | None = None
    clip: tuple[float, float] = (0.1, 10.0)

    def __post_init__(self) -> None:
        if self.trust is not None and not 0 < self.trust < float("inf"):
            raise FedA2LError(f"rates.trust = {self.trust}: must be above 0, or left out for a mean multiplier of 1")
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
        ratio = self.rates / signals.divergence.to(torch.float64)  # ||B|| / ||u||, but for K
        moved = ratio.isfinite()
        if self.rule.trust is None:
            # layer by layer: torch's own sum changes its bits with the number of nodes that are summed together
            total = reduce(torch.add, torch.where(moved, ratio, 0.0).unbind(1))
            scaled = ratio / (total / moved.sum(1)).unsqueeze(1)
        else:
            scaled = ratio * self.scale
        self.multiplier = torch.where(moved, scaled, 1.0).clamp(*self.rule.clip)
        self.rates = self.base * self.multiplier
