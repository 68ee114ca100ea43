"""FedProx without a server: a proximal term towards the base state of the round.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks", MLSys 2020.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from feda2l.algorithms.base import Algorithm


@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm):
    """FedAvg on the local objective f_i(x) + (mu / 2) ||x - B_i||^2; mu = 0 is FedAvg.

    B_i is the node's own base state of the round, in place of the server's model. The term is added to the gradient, so
    the optimizer and its momentum are those of the other algorithms.
    """

    summary = "a proximal term pulls local training back to the base state"
    citation = "Li et al. 2020"

    mu: float = 0.01

    def __post_init__(self) -> None:
        self.demand(0 <= self.mu < float("inf"), "mu", "must be 0 (FedAvg) or more; usual values are 0.001 to 1")

    def gradient(self, gradient: Tensor, parameters: Tensor, base: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """Return g + mu (x - B)."""
        return gradient.add_((parameters - base).mul_(self.mu))
