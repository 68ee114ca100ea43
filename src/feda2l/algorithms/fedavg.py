"""FedAvg without a server: train locally, average with the neighbours.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017; without a server, and with momentum, Sun, Li, Wang: "Decentralized Federated
Averaging", TPAMI 2022.
"""

from dataclasses import dataclass

from feda2l.algorithms.base import Algorithm


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """Local SGD on the task loss, then the weighted average over the closed neighbourhood. It keeps no state."""

    summary = "local training, then the neighbours' weighted average"
    citation = "McMahan et al. 2017; Sun et al. 2022"
