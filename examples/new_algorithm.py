"""SlowMo: a momentum for the update of a whole round.

Wang, Tantia, Ballas, Rabbat: "SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum", ICLR 2020.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import feda2l
from feda2l.algorithms import Algorithm, NodeStates


@dataclass(frozen=True, kw_only=True)
class SlowMo(Algorithm):
    """With the average a of the round, the base state B and the rate r of each layer:

        u <- beta u + (B - a) / r;   A = B - alpha r u

    beta = 0 and alpha = 1 is FedAvg.
    """

    summary = "a slow momentum for whole rounds"
    citation = "Wang et al. 2020"
    state = ("slow",)  # u: one row of parameters per node, initially zero, saved in every checkpoint

    beta: float = 0.7
    alpha: float = 1.0

    def __post_init__(self) -> None:
        self.demand(0 <= self.beta < 1, "beta", "must be at least 0 and below 1")
        self.demand(0 < self.alpha < float("inf"), "alpha", "must be above 0; 1 moves to the average")

    def accept(self, states: NodeStates, sent: dict[str, Tensor], mixed: dict[str, Tensor]) -> Tensor:
        average, slow = mixed["model"], states.state["slow"]
        rate = states.expand(states.rates)  # [nodes, layers] -> [nodes, width]
        slow.mul_(self.beta)
        # A has two terms, the new average and the momentum; with alpha = 1 the first equals the average bit for bit
        aggregated = torch.lerp(states.base, average, self.alpha) - self.alpha * rate * slow
        slow.add_(((states.base - average) / rate).masked_fill_(rate == 0, 0.0))  # a layer with rate 0 did not move
        return aggregated


if __name__ == "__main__":
    shared = {"rounds": 20, "topology": {"name": "ring"}, "rates": {"name": "constant", "base": 0.01}}
    specs = [
        shared | {"name": "fedavg"},
        shared | {"name": "slowmo", "algorithm": {"name": "new_algorithm:SlowMo", "beta": 0.7}},
    ]
    for run in feda2l.run(specs, progress=False):
        print(f"{run.path.name}: best accuracy {run.summary['accuracy']['best']:.3f}")
