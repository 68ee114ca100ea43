"""Who hears whom (`graphs`), and with which weights neighbours are averaged (`mixing`)."""

from feda2l.topology.graphs import NAMES, TOPOLOGIES, Topology, build
from feda2l.topology.mixing import WEIGHTS, Mixing, Report, build_mixing

__all__ = ["NAMES", "TOPOLOGIES", "WEIGHTS", "Mixing", "Report", "Topology", "build", "build_mixing"]
