"""A network as users have it: who takes part in a round, how fast nodes and links are, and the time that this takes."""

from feda2l.network.clock import Clock
from feda2l.network.participation import Participation

__all__ = ["Clock", "Participation"]
