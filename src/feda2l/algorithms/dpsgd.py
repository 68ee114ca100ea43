"""D-PSGD: one exchange per local step.

Lian, Zhang, Zhang, Hsieh, Zhang, Liu: "Can Decentralized Algorithms Outperform Centralized Algorithms? A Case Study
for Decentralized Parallel Stochastic Gradient Descent", NeurIPS 2017.
"""

from dataclasses import dataclass
from typing import ClassVar

from feda2l.algorithms.base import Algorithm, Defaults


@dataclass(frozen=True, kw_only=True)
class DPSGD(Algorithm):
    """x_i <- sum_j W_ij (x_j - rate g_j): a round is `steps` mini-batches (1 in the original) and one exchange.

    `training.epochs` has no effect. W is doubly stochastic, so the plain mean of the nodes' losses is minimised. There
    is no momentum unless `training.momentum` sets it.
    """

    summary = "one mini-batch step per round, doubly stochastic mixing"
    citation = "Lian et al. 2017"
    mixing = "doubly_stochastic"
    defaults: ClassVar[Defaults] = {"topology": {"weights": "metropolis"}, "training": {"momentum": 0.0}}

    steps: int = 1

    def __post_init__(self) -> None:
        self.demand(self.steps >= 1, "steps", "must be at least 1 step per round")

    @property
    def local_steps(self) -> int:
        return self.steps
