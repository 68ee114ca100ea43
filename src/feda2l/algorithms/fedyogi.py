"""FedYogi without a server: each node takes the average as the direction of a Yogi step.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: "Adaptive Federated Optimization", ICLR 2021.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from feda2l.algorithms.base import Algorithm, NodeStates


@dataclass(frozen=True, kw_only=True)
class FedYogi(Algorithm):
    """The server's Yogi step at every node. With the plain average a and d = a - B:

        m <- beta1 m + (1 - beta1) d
        v <- v - (1 - beta2) d^2 sign(v - d^2)
        A = B + rate m / (sqrt(v) + tau)

    m and v start at 0. A is the aggregated state that FedA2L compares with, and the state that the next round starts
    from. The server's model of the original is the node's own base state.

    Adapted, the start: the first round averages plainly (A = a), and m and v start with the second. The original has
    one server model, so d is always a step of training. Without a server each node may start from its own random model.
    Then d of round 1 is mostly the distance between the nodes' initial models: it is large and says nothing about the
    data. A step of size `rate` covers little of it, so the nodes' models stay apart, and sqrt(v) remembers it, so later
    steps are too small. `first_round = "step"` takes a Yogi step in round 1 too. A node that is absent in round 1 takes
    a Yogi step in its first round.

    Args:
        rate, tau: the server's learning rate, and the number added to sqrt(v). A coordinate moves by about `rate` per
            round if its d is far above `tau`, and by about (rate / tau) m if its d is far below. The defaults are those
            of Flower, and so are the betas. The original tunes both for each data set and finds a ratio rate / tau near
            10 for CIFAR-100 (rate 1, tau 0.1) as the defaults have it; raise `rate` if training is slow.
        beta1, beta2: decay of the two moments.
        bias_correction: multiply the rate by sqrt(1 - beta2^r) / (1 - beta1^r) in round r. Neither the original nor
            Flower does.
        first_round: `average` or `step`, as above. With one common start the two differ little.
    """

    summary = "the average is the direction of a Yogi step with moments per node"
    citation = "Reddi et al. 2021"
    state = ("first", "second")
    claims = ("outer_step",)  # `accept` takes it

    rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    bias_correction: bool = False
    first_round: Literal["average", "step"] = "average"

    def __post_init__(self) -> None:
        self.demand(0 < self.rate < float("inf"), "rate", "must be above 0: it is the step from the base state")
        self.demand(0 <= self.beta1 < 1, "beta1", "must be at least 0 and below 1")
        self.demand(0 <= self.beta2 < 1, "beta2", "must be at least 0 and below 1")
        self.demand(0 < self.tau < float("inf"), "tau", "must be above 0: it is added to sqrt(v), which starts at 0")
        self.demand(self.first_round in ("average", "step"), "first_round", "must be average or step")

    def accept(self, states: NodeStates, sent: dict[str, Tensor], mixed: dict[str, Tensor]) -> Tensor:
        if states.round == 1 and self.first_round == "average":
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
