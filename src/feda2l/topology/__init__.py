"""Which nodes receive from which (`graphs`), and the weights of their average (`mixing`). No state is stored here."""

from feda2l.topology.graphs import NAMES, TOPOLOGIES, Topology, build
from feda2l.topology.mixing import WEIGHTS, Mixing, Report, build_mixing

__all__ = ["NAMES", "TOPOLOGIES", "WEIGHTS", "Mixing", "Report", "Topology", "build", "build_mixing"]
