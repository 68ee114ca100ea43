"""DFedAvgM: local epochs with heavy-ball momentum that is reset every round.

Sun, Li, Wang: "Decentralized Federated Averaging", TPAMI 2022.
"""

from dataclasses import dataclass
from typing import ClassVar

from feda2l.algorithms.base import Algorithm, Defaults


@dataclass(frozen=True, kw_only=True)
class DFedAvgM(Algorithm):
    """Decentralized FedAvg as its authors analyse it: W is doubly stochastic and momentum is reset after mixing.

    Only these two defaults differ from `fedavg`, which keeps each node's momentum. For compressed messages see `choco`.
    """

    summary = "local momentum that is reset every round, doubly stochastic mixing"
    citation = "Sun et al. 2022"
    mixing = "doubly_stochastic"
    defaults: ClassVar[Defaults] = {"topology": {"weights": "metropolis"}, "training": {"momentum_state": "reset"}}
