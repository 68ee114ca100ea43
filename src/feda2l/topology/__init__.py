"""Graphs of nodes (`graphs`) and the weights with which neighbours are averaged (`mixing`). Holds no state."""

from feda2l.topology.graphs import NAMES, TOPOLOGIES, Topology, build
from feda2l.topology.mixing import WEIGHTS, Mixing, Report, build_mixing

__all__ = ["NAMES", "TOPOLOGIES", "WEIGHTS", "Mixing", "Report", "Topology", "build", "build_mixing"]
