"""Properties of the nodes of a simulated network: compute speed and uplink bandwidth."""

from collections.abc import Sequence

import numpy as np

from feda2l.network.draws import lognormal
from feda2l.network.links import Floats, network_error, seconds_per_byte
from feda2l.network.profiles import SPEEDS, LinkProfile

PerNode = float | tuple[float, ...]


def speeds(given: PerNode | str, nodes: int, seed: int) -> Floats:
    """Return the speed of each node: the given values, or a draw from a profile by node number."""
    if isinstance(given, str):
        return lognormal(seed, "speed", SPEEDS[given].spread, np.arange(nodes))
    return _each(given, nodes, "network.speed")


def uplinks(given: PerNode | None, profile: LinkProfile, nodes: int, seed: int) -> Floats:
    """Return the seconds per byte of each node's uplink; 0 means no limit."""
    if given is not None:
        return seconds_per_byte(_each(given, nodes, "network.uplink_mbit"))
    if profile.uplink_mbit is None:
        return np.zeros(nodes)
    return seconds_per_byte(profile.uplink_mbit * lognormal(seed, "uplink", profile.uplink_spread, np.arange(nodes)))


def _each(given: float | Sequence[float], nodes: int, what: str) -> Floats:
    if isinstance(given, Sequence):
        if len(given) != nodes:
            raise network_error(
                f"{what} has {len(given)} numbers for data.nodes = {nodes}; give one number per node, or one for all"
            )
        return np.array(given, dtype=np.float64)
    return np.full(nodes, float(given))
