"""The base algorithms, as hooks that `round` calls. A new one is a short file and an entry in `ALGORITHMS`."""

from feda2l.algorithms.base import Algorithm, Neighbourhood, NodeStates, RateSearch, Task, Trial
from feda2l.algorithms.choco import Choco
from feda2l.algorithms.dfedavgm import DFedAvgM
from feda2l.algorithms.dfedhpo import DFedHPO
from feda2l.algorithms.dfedsam import DFedSAM
from feda2l.algorithms.dpsgd import DPSGD
from feda2l.algorithms.fedavg import FedAvg
from feda2l.algorithms.fedawa import FedAWA
from feda2l.algorithms.fedlws import FedLWS
from feda2l.algorithms.fedntd import FedNTD
from feda2l.algorithms.fedprox import FedProx
from feda2l.algorithms.fedyogi import FedYogi
from feda2l.algorithms.gradient_tracking import GradientTracking
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

__all__ = ["ALGORITHMS", "Algorithm", "FedAvg", "Neighbourhood", "NodeStates", "RateSearch", "Task", "Trial"]
