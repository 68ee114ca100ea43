"""Push-sum (stochastic gradient push): exact averages on directed graphs.

Assran, Loizou, Ballas, Rabbat: "Stochastic Gradient Push for Distributed Deep Learning", ICML 2019.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from feda2l.algorithms.base import Algorithm, Defaults, Neighbourhood, NodeStates


@dataclass(frozen=True, kw_only=True)
class PushSum(Algorithm):
    """Each node j sends an equal part W_ij = 1 / (out_j + 1) of its model and of its mass p_j to each receiver:

        x_j = p_j B_j + s_j (T_j - B_j);   A_i = sum_j W_ij x_j / p_i,   p_i <- sum_j W_ij p_j

    The columns of W sum to 1, so the total over the nodes is preserved. With s_j = 1 (weights = "uniform") the plain
    mean of the nodes' losses is minimised on any connected graph; with s_j the samples of node j (weights = "samples")
    their weighted mean is. If W is doubly stochastic the masses stay equal and this is FedAvg.
    """

    summary = "column-stochastic mixing with a mass per node: exact averages on directed graphs"
    citation = "Assran et al. 2019"
    mixing = "push"
    defaults: ClassVar[Defaults] = {"topology": {"weights": "uniform"}}

    def small_state(self, shares: Tensor, nodes: int, layers: int) -> dict[str, Tensor]:
        return {"share": shares.clone(), "mass": shares.clone()}

    def publish(self, states: NodeStates) -> dict[str, Tensor]:
        """Publish x_j / p_j and p_j, which the receiver multiplies again."""
        part = (states.small_state["share"] / states.small_state["mass"]).to(states.base).unsqueeze(1)
        return {"model": torch.lerp(states.base, states.trained, part), "mass": states.small_state["mass"].clone()}

    def message_bytes(self, parameters: int, width: int) -> int:
        return 4 * parameters + 8

    def weigh(self, neighbourhood: Neighbourhood) -> Tensor:
        """Return W_ij p_j / p_i. These sum to 1 per row, so statistics and momentum are averaged like the model."""
        received = neighbourhood.weights * neighbourhood.receive("mass")
        mass = received.sum()
        neighbourhood.small_state["mass"].copy_(mass)
        return received / mass
