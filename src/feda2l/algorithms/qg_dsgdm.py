"""QG-DSGDm: momentum that follows the network instead of the node.

Lin, Karimireddy, Stich, Jaggi: "Quasi-Global Momentum: Accelerating Decentralized Deep Learning on Heterogeneous
Data", ICML 2021.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from feda2l.algorithms.base import Algorithm, Defaults, NodeStates, Task
from feda2l.errors import FedA2LError


@dataclass(frozen=True, kw_only=True)
class QGDSGDm(Algorithm):
    """Every local step follows g + beta m. After mixing, m is updated by how far the round moved the mixed model:

        m <- mu m + (1 - mu) (B - A) / (rate x steps)

    So m holds the direction of the whole neighbourhood. With one step per round this is the original. Adapted: over
    local epochs m is constant, and the movement is divided by the number of steps, which keeps its units.
    """

    summary = "momentum from the movement of the mixed models (quasi-global)"
    citation = "Lin et al. 2021"
    state = ("momentum",)
    mixing = "doubly_stochastic"
    defaults: ClassVar[Defaults] = {"topology": {"weights": "metropolis"}, "training": {"momentum": 0.0}}

    beta: float = 0.9
    mu: float = 0.9

    def __post_init__(self) -> None:
        for key in ("beta", "mu"):
            self.demand(0 <= getattr(self, key) < 1, key, "must be at least 0 and below 1")

    def check(self, task: Task) -> None:
        if task.optimizer != "sgd" or task.momentum:
            raise FedA2LError(
                'algorithm.name = "qg_dsgdm" is a form of SGD with its own momentum: it needs '
                'training.optimizer = "sgd" and training.momentum = 0'
            )

    def gradient(self, gradient: Tensor, parameters: Tensor, base: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        return gradient.add_(state["momentum"] * self.beta)

    def accept(self, states: NodeStates, sent: dict[str, Tensor], mixed: dict[str, Tensor]) -> Tensor:
        aggregated = mixed["model"]
        states.state["momentum"].mul_(self.mu).add_(states.per_step(states.base - aggregated).mul_(1 - self.mu))
        return aggregated
