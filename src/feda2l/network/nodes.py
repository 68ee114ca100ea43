"""What nodes are like by themselves: how fast each computes, and how wide its uplink is."""

from collections.abc import Sequence

import numpy as np

from feda2l.network.draws import lognormal
from feda2l.network.links import Floats, network_error, seconds_per_byte
from feda2l.network.profiles import SPEEDS, LinkProfile

PerNode = float | tuple[float, ...]


def speeds(given: PerNode | str, nodes: int, seed: int) -> Floats:
    """The speed of each node: as given, or drawn from a profile by the node's number."""
    if isinstance(given, str):
        return lognormal(seed, "speed", SPEEDS[given].spread, np.arange(nodes))
    return _each(given, nodes, "network.speed")


def uplinks(given: PerNode | None, profile: LinkProfile, nodes: int, seed: int) -> Floats:
    """Seconds that each node's uplink takes for a byte; 0 where it limits nothing."""
    if given is not None:
        return seconds_per_byte(_each(given, nodes, "network.uplink_mbit"))
    if profile.uplink_mbit is None:
        return np.zeros(nodes)
    return seconds_per_byte(profile.uplink_mbit * lognormal(seed, "uplink", profile.uplink_spread, np.arange(nodes)))


def _each(given: float | Sequence[float], nodes: int, what: str) -> Floats:
    if isinstance(given, Sequence):
        if len(given) != nodes:
            raise network_error(
                f"{what} has {len(given)} numbers for data.nodes = {nodes}; give one a node, or one for all"
            )
        return np.array(given, dtype=np.float64)
    return np.full(nodes, float(given))
