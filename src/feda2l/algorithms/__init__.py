"""Base algorithms. A new one is one short file and one entry in `ALGORITHMS`."""

from feda2l.algorithms.base import Algorithm
from feda2l.algorithms.fedavg import FedAvg

ALGORITHMS: dict[str, type[Algorithm]] = {"fedavg": FedAvg}

__all__ = ["ALGORITHMS", "Algorithm"]
