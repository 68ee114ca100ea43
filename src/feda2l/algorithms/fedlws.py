"""FedLWS without a server: shrink each layer of the average by how much the neighbours differ.

Shi, Zhao, Zhang, Zhou, Guo, Chang: "FedLWS: Federated Learning with Adaptive Layer-wise Weight Shrinking", ICLR 2025.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from feda2l.algorithms.base import Algorithm, Neighbourhood, NodeStates


@dataclass(frozen=True, kw_only=True)
class FedLWS(Algorithm):
    """A_l = gamma_l a_l for each layer l of the average a. With g = B_i, the node's own base state:

        gamma_l = ||g_l|| / (||g_l|| + tau_l ||a_l - g_l||),   tau_l = clamp(beta mean_k ||theta_k,l - a_l||, low, high)

    Adapted: the original shrinks on the server and uses all clients. Here node i uses the models theta_k that it
    receives, and its own base state as the global model. No message is added.
    """

    summary = "shrinks each layer of the average by the neighbours' spread"
    citation = "Shi et al. 2025"

    beta: float = 0.03
    low: float = 0.01
    high: float = 0.2

    def __post_init__(self) -> None:
        self.demand(0 <= self.beta < float("inf"), "beta", "must be 0 or more")
        self.demand(0 <= self.low <= self.high, "low", f"must be from 0 to algorithm.high = {self.high}")
        self.demand(self.high < float("inf"), "high", "must be finite")

    def small_state(self, shares: Tensor, nodes: int, layers: int) -> dict[str, Tensor]:
        return {"spread": torch.zeros(len(shares), layers, dtype=torch.float64)}

    def weigh(self, neighbourhood: Neighbourhood) -> Tensor:
        """Return the topology's weights, and note the spread of the received models around their average."""
        models = neighbourhood.receive("model")
        centre = neighbourhood.weights.to(models) @ models
        neighbourhood.small_state["spread"].copy_(
            neighbourhood.movement(centre.expand_as(models).contiguous(), models).mean(dim=0)
        )
        return neighbourhood.weights

    def accept(self, states: NodeStates, sent: dict[str, Tensor], mixed: dict[str, Tensor]) -> Tensor:
        average = mixed["model"]
        size = states.movement(torch.zeros_like(states.base), states.base)
        moved = states.movement(states.base, average)
        shrinking = (self.beta * states.small_state["spread"]).clamp(self.low, self.high) * moved
        # no shrinking: leave the layer unchanged, also a layer of zeros, where 0 / 0 would be NaN
        gamma = torch.where(shrinking > 0, size / (size + shrinking), 1.0)
        return average.mul_(states.expand(gamma))
