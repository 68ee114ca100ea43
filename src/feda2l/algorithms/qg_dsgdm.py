"""QG-DSGDm: momentum that follows the network, not the node.

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
    """Every local step goes along g + beta m; after mixing m follows how far the round really moved the model:

        m <- mu m + (1 - mu) (B - A) / (rate x steps)

    so that it holds the direction of the whole neighbourhood. With one step a round (`dpsgd`'s) this is the original;
    over local epochs m stands still and the movement is divided by the number of steps, which keeps its units.
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
            self.demand(0 <= getattr(self, key) < 1, key, "must be from 0 up to, but not, 1")

    def check(self, task: Task) -> None:
        if task.optimizer != "sgd" or task.momentum:
            raise FedA2LError(
                'algorithm.name = "qg_dsgdm" brings its own momentum and is a form of SGD: it needs '
                'training.optimizer = "sgd" and training.momentum = 0'
            )

    def gradient(self, gradient: Tensor, parameters: Tensor, base: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        return gradient.add_(state["momentum"] * self.beta)

    def accept(self, states: NodeStates, sent: dict[str, Tensor], mixed: dict[str, Tensor]) -> Tensor:
        aggregated = mixed["model"]
        states.state["momentum"].mul_(self.mu).add_(states.per_step(states.base - aggregated).mul_(1 - self.mu))
        return aggregated
