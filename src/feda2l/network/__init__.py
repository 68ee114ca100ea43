"""A simulated network: who takes part in a round, and how long nodes and links take. Real networks are in `peer`."""

from feda2l.network.clock import Clock
from feda2l.network.participation import Participation

__all__ = ["Clock", "Participation"]
