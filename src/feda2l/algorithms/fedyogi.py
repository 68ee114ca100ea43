"""FedYogi without a server: each node takes the average as a direction for its own Yogi step.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: "Adaptive Federated Optimization", ICLR 2021.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from feda2l.algorithms.base import Algorithm, NodeStates


@dataclass(frozen=True, kw_only=True)
class FedYogi(Algorithm):
    """The server's Yogi moved into every node. With a the plain average and d = a - B:

        m <- beta1 m + (1 - beta1) d
        v <- v - (1 - beta2) d^2 sign(v - d^2)
        A = B + rate m / (sqrt(v) + tau)

    The aggregated state that FedA2L compares with is A, the state that the next round starts from. `bias_correction`
    multiplies the rate by sqrt(1 - beta2^r) / (1 - beta1^r) in round r.
    """

    summary = "the average is a direction of a Yogi step with moments of its own"
    citation = "Reddi et al. 2021"
    state = ("first", "second")

    rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    bias_correction: bool = False
    first_round: Literal["average", "step"] = "average"

    def __post_init__(self) -> None:
        self.demand(0 < self.rate < float("inf"), "rate", "must be above 0: it is the step from the base state")
        self.demand(0 <= self.beta1 < 1, "beta1", "must be from 0 up to, but not, 1")
        self.demand(0 <= self.beta2 < 1, "beta2", "must be from 0 up to, but not, 1")
        self.demand(0 < self.tau < float("inf"), "tau", "must be above 0: it stands beside sqrt(v), which starts at 0")

    def accept(self, states: NodeStates, sent: dict[str, Tensor], mixed: dict[str, Tensor]) -> Tensor:
        if self.first_round == "average" and states.round == 1:
            return mixed["model"]
        first, second = states.state["first"], states.state["second"]
        change = mixed["model"].sub_(states.base)
        first.mul_(self.beta1).add_(change * (1 - self.beta1))
        square = change.square_()
        second.sub_((second - square).sign_().mul_(square).mul_(1 - self.beta2))
        rate = self.rate
        if self.bias_correction:
            rate *= (1 - self.beta2**states.round) ** 0.5 / (1 - self.beta1**states.round)
        return first.mul(rate).div_(second.sqrt().add_(self.tau)).add_(states.base)
