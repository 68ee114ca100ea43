"""DFedSAM: sharpness-aware local training, then one or several gossip steps.

Shi, Shen, Wei, Sun, Yuan, Wang, Tao: "Improving the Model Consistency of Decentralized Federated Learning", ICML 2023.
"""

from dataclasses import dataclass

from feda2l.algorithms.base import Algorithm, Task
from feda2l.errors import FedA2LError


@dataclass(frozen=True, kw_only=True)
class DFedSAM(Algorithm):
    """Every local step takes its gradient at x + radius g / ||g|| and applies it at x (one norm over all parameters).

    Then the nodes mix `gossip_steps` times; more than one is DFedSAM-MGS. Each step mixes the mixed models again and
    costs one more exchange. BatchNorm statistics are updated in the first pass only. radius = 0 with one gossip step is
    FedAvg.

    Adapted: the authors' repository was not available, so three choices are ours. The default radius is 0.05, which
    FedA2L's authors use in their framework; a public re-implementation of the method uses 0.01, at a rate of 0.1. The
    method mixes with a symmetric doubly stochastic matrix; here the topology's weights apply, by default the sample
    sizes, as in FedA2L's paper (`topology.weights = "metropolis"` gives a symmetric matrix). The local optimizer keeps
    its momentum as in the other algorithms.

    Args:
        radius: the length of the ascent step. Usual values are 0.01 to 0.1; larger values look for flatter minima.
        gossip_steps: exchanges per round. More bring the models closer together and cost as many times the bytes.
    """

    summary = "sharpness-aware local steps; gossip_steps > 1 is DFedSAM-MGS"
    citation = "Shi et al. 2023"

    radius: float = 0.05
    gossip_steps: int = 1

    def __post_init__(self) -> None:
        self.demand(
            0 <= self.radius < float("inf"), "radius", "must be 0 (plain steps) or more; usual values are 0.01 to 0.1"
        )
        self.demand(
            self.gossip_steps >= 1, "gossip_steps", "must be at least 1: without mixing every node trains alone"
        )

    def check(self, task: Task) -> None:
        if task.precision == "bf16" and self.radius:
            raise FedA2LError(
                'runtime.precision = "bf16" rounds away the ascent step of algorithm.name = "dfedsam": use fp32 or tf32'
            )

    @property
    def ascent(self) -> float:
        return self.radius

    @property
    def gossip(self) -> int:
        return self.gossip_steps
