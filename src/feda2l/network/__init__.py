"""A simulated network: participation of nodes, and the time of nodes and links. Package `peer` has real networks."""

from feda2l.network.clock import Clock
from feda2l.network.participation import Participation

__all__ = ["Clock", "Participation"]
