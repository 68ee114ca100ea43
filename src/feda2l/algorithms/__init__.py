"""The base algorithms and the parts that combine with them, as hooks that `round` calls.

A new one is a short file and an entry in `ALGORITHMS` or `PARTS`.
"""

from feda2l.algorithms.base import Algorithm, Neighbourhood, NodeStates, RateSearch, Task, Trial
from feda2l.algorithms.choco import Choco
from feda2l.algorithms.composed import Composed, errors_of_part, part_names
from feda2l.algorithms.dfedavgm import DFedAvgM
from feda2l.algorithms.dfedhpo import DFedHPO
from feda2l.algorithms.dfedsam import DFedSAM
from feda2l.algorithms.dpsgd import DPSGD
from feda2l.algorithms.drift_correction import DriftCorrection
from feda2l.algorithms.fedavg import FedAvg
from feda2l.algorithms.fedawa import FedAWA
from feda2l.algorithms.fedlws import FedLWS
from feda2l.algorithms.fedntd import FedNTD
from feda2l.algorithms.fedprox import FedProx
from feda2l.algorithms.fedyogi import FedYogi
from feda2l.algorithms.gradient_tracking import GradientTracking
from feda2l.algorithms.outer_momentum import OuterMomentum
from feda2l.algorithms.prior_loss import PriorLoss
from feda2l.algorithms.push_sum import PushSum
from feda2l.algorithms.qg_dsgdm import QGDSGDm

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedyogi": FedYogi,
    "fedntd": FedNTD,
    "fedawa": FedAWA,
    "dfedsam": DFedSAM,
    "dfedhpo": DFedHPO,
    "fedlws": FedLWS,
    "dpsgd": DPSGD,
    "dfedavgm": DFedAvgM,
    "qg_dsgdm": QGDSGDm,
    "gradient_tracking": GradientTracking,
    "choco": Choco,
    "push_sum": PushSum,
}

# each changes one step of a round: alone it is FedAvg with this change, and it is meant to be combined
PARTS: dict[str, type[Algorithm]] = {
    "drift_correction": DriftCorrection,
    "prior_loss": PriorLoss,
    "outer_momentum": OuterMomentum,
}

__all__ = [
    "ALGORITHMS",
    "PARTS",
    "Algorithm",
    "Composed",
    "FedAvg",
    "Neighbourhood",
    "NodeStates",
    "RateSearch",
    "Task",
    "Trial",
    "errors_of_part",
    "part_names",
]
