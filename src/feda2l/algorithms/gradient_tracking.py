"""Gradient tracking with local steps: each node corrects its gradient by what the network's lacks.

Liu, Lin, Koloskova, Stich: "Decentralized Gradient Tracking with Local Steps" (K-GT), 2023; with one local step it is
DSGT: Pu, Nedic: "Distributed Stochastic Gradient Tracking Methods", Mathematical Programming 2021.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from feda2l.algorithms.base import Algorithm, Defaults, NodeStates, Task
from feda2l.errors import FedA2LError


@dataclass(frozen=True, kw_only=True)
class GradientTracking(Algorithm):
    """Every local step goes along g + c_i. With z_i = (B_i - T_i) / (rate x steps), the round's mean direction:

        A_i = sum_j W_ij T_j
        c_i <- c_i - z_i + sum_j W_ij z_j

    The corrections sum to zero over the nodes, and at the optimum of the mean loss each cancels its node's gradient:
    unequal data move the fixed point no longer. One full-batch step a round is DSGT (y = z: y <- W y + g_new - g_old).
    With momentum beta steps are 1 / (1 - beta) as long, so z is taken times 1 - beta. Two messages instead of one.
    """

    summary = "local gradients corrected by a tracker of the network's; two messages"
    citation = "Liu et al. 2023; Pu and Nedic 2021"
    state = ("correction",)
    mixing = "doubly_stochastic"
    defaults: ClassVar[Defaults] = {"topology": {"weights": "metropolis"}, "training": {"momentum": 0.0}}

    def check(self, task: Task) -> None:
        if task.optimizer != "sgd":
            raise FedA2LError(
                f'training.optimizer = "{task.optimizer}": algorithm.name = "gradient_tracking" reads gradients from '
                'how far a node moved, which only "sgd" allows'
            )

    def gradient(self, gradient: Tensor, parameters: Tensor, base: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        return gradient.add_(state["correction"])

    def publish(self, states: NodeStates) -> dict[str, Tensor]:
        direction = states.per_step(states.base - states.trained).mul_(1 - states.momentum)
        return {"model": states.trained, "direction": direction}

    def message_bytes(self, parameters: int, width: int) -> int:
        return 2 * 4 * parameters

    def accept(self, states: NodeStates, sent: dict[str, Tensor], mixed: dict[str, Tensor]) -> Tensor:
        states.state["correction"].add_(mixed["direction"].sub_(sent["direction"]))
        return mixed["model"]
