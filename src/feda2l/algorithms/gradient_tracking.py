"""Gradient tracking with local steps: each node corrects its gradient towards the network's mean gradient.

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
    """Every local step follows g + c_i. With z_i = (B_i - T_i) / (rate x steps), the mean direction of the round:

        A_i = sum_j W_ij T_j
        c_i <- c_i - z_i + sum_j W_ij z_j

    The corrections sum to zero over the nodes. At the optimum of the mean loss each correction cancels its node's
    gradient, so unequal data do not move the fixed point. One full-batch step per round is DSGT (with y = z:
    y <- W y + g_new - g_old). With momentum beta a step is 1 / (1 - beta) times as long, so z is multiplied by
    1 - beta. Each node sends two messages per neighbour and round.
    """

    summary = "local gradients corrected by a tracker of the network's gradient; two messages"
    citation = "Liu et al. 2023; Pu and Nedic 2021"
    state = ("correction",)
    mixing = "doubly_stochastic"
    defaults: ClassVar[Defaults] = {"topology": {"weights": "metropolis"}, "training": {"momentum": 0.0}}

    def check(self, task: Task) -> None:
        if task.optimizer != "sgd":
            raise FedA2LError(
                f'training.optimizer = "{task.optimizer}": algorithm.name = "gradient_tracking" computes gradients '
                'from how far a node moved, which only works with "sgd"'
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
