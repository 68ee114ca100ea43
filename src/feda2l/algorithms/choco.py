"""CHOCO-SGD: gossip with compressed messages.

Koloskova, Stich, Jaggi: "Decentralized Stochastic Optimization and Gossip Algorithms with Compressed Communication",
ICML 2019.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from feda2l.algorithms.base import Algorithm, Defaults, NodeStates
from feda2l.algorithms.compression import BLOCK, quantise, random_k, top_k


@dataclass(frozen=True, kw_only=True)
class Choco(Algorithm):
    """Neighbours use a replica of each node, which follows the node by compressed differences:

        r_i <- r_i + Q(T_i - r_i);   A_i = T_i + gamma sum_j W_ij (r_j - r_i)

    Only Q(...) is sent. Replicas start at 0. `compressor = "none"` with gamma = 1 is FedAvg. BatchNorm statistics are
    sent uncompressed.

    Args:
        compressor: `top_k` sends the largest entries (4 bytes for the value and 4 for the position of each), `random_k`
            sends entries at positions that follow from the seed (4 bytes each), `quantise` sends all entries with
            `bits` bits each and one 4-byte scale per 64 entries, `none` sends everything.
        ratio: the share of the entries that `top_k` and `random_k` send.
        bits: the bits per entry of `quantise`.
        gamma: the consensus step size. Choose a smaller one for stronger compression.
    """

    summary = "compressed gossip: neighbours follow replicas by top-k, random-k or quantised differences"
    citation = "Koloskova et al. 2019"
    state = ("replica",)
    mixing = "symmetric"
    defaults: ClassVar[Defaults] = {"topology": {"weights": "metropolis"}}

    compressor: Literal["top_k", "random_k", "quantise", "none"] = "top_k"
    ratio: float = 0.1
    bits: int = 8
    gamma: float = 0.5

    def __post_init__(self) -> None:
        known = ("top_k", "random_k", "quantise", "none")
        self.demand(self.compressor in known, "compressor", f"must be one of {', '.join(known)}")
        self.demand(0 < self.ratio <= 1, "ratio", "must be above 0 and at most 1: the share of entries that are sent")
        self.demand(2 <= self.bits <= 16, "bits", "must be from 2 to 16")
        self.demand(0 < self.gamma <= 1, "gamma", "must be above 0 and at most 1 (use 1 without compression)")

    def publish(self, states: NodeStates) -> dict[str, Tensor]:
        replica = states.state["replica"]
        replica.add_(self._compressed(states.trained - replica, states))
        return {"model": replica}

    def accept(self, states: NodeStates, sent: dict[str, Tensor], mixed: dict[str, Tensor]) -> Tensor:
        return mixed["model"].sub_(sent["model"]).mul_(self.gamma).add_(states.trained)

    def message_bytes(self, parameters: int, width: int) -> int:
        match self.compressor:
            case "top_k":
                return 8 * self._count(parameters)
            case "random_k":
                return 4 * self._count(parameters)
            case "quantise":
                return -(-parameters * self.bits // 8) + 4 * (width // BLOCK)
        return 4 * parameters

    def _count(self, parameters: int) -> int:
        return max(1, round(self.ratio * parameters))

    def _compressed(self, rows: Tensor, states: NodeStates) -> Tensor:
        count = self._count(len(states.columns))
        match self.compressor:
            case "top_k":
                return top_k(rows, count)
            case "random_k":
                return random_k(rows, count, states.columns, states.seed, states.round, states.ids)
            case "quantise":
                return quantise(rows, self.bits)
        return rows
