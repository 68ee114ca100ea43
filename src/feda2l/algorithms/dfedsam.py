"""DFedSAM: sharpness-aware local training, then one or several gossip steps.

Shi, Shen, Wei, Sun, Yuan, Wang, Tao: "Improving the Model Consistency of Decentralized Federated Learning", ICML 2023.
"""

from dataclasses import dataclass

from feda2l.algorithms.base import Algorithm, Task
from feda2l.errors import FedA2LError


@dataclass(frozen=True, kw_only=True)
class DFedSAM(Algorithm):
    """Every step takes its gradient at x + radius g / ||g|| (one norm over all parameters) and applies it at x.

    Then the nodes mix `gossip_steps` times (DFedSAM-MGS above 1): each step mixes the mixed models again and is one
    more exchange. BatchNorm statistics see the first pass only. radius = 0 with one gossip step is FedAvg.
    """

    summary = "sharpness-aware local steps; gossip_steps > 1 is DFedSAM-MGS"
    citation = "Shi et al. 2023"

    radius: float = 0.05
    gossip_steps: int = 1

    def __post_init__(self) -> None:
        self.demand(0 <= self.radius < float("inf"), "radius", "must be 0 (plain steps) or more; usual are .01 to .1")
        self.demand(self.gossip_steps >= 1, "gossip_steps", "must be at least 1: nodes that never mix train alone")

    def check(self, task: Task) -> None:
        if task.precision == "bf16" and self.radius:
            raise FedA2LError(
                'runtime.precision = "bf16" rounds away the small step of algorithm.name = "dfedsam"; use fp32 or tf32'
            )

    @property
    def ascent(self) -> float:
        return self.radius

    @property
    def gossip(self) -> int:
        return self.gossip_steps
