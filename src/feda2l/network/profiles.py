"""Named network profiles with typical, rounded values (not measurements). Draws are lognormal around a median."""

from typing import NamedTuple


class LinkProfile(NamedTuple):
    """Medians and spreads of a network. A spread is the standard deviation of the logarithm; 0 means all equal."""

    summary: str
    latency_ms: float
    latency_spread: float = 0.0
    bandwidth_mbit: float | None = None  # per link; None: no limit
    bandwidth_spread: float = 0.0
    uplink_mbit: float | None = None  # per node, shared by the messages that it sends at the same time
    uplink_spread: float = 0.0


LINKS = {
    "lan": LinkProfile("one building: 0.5 ms, 1,000 Mbit/s per node", 0.5, uplink_mbit=1000.0),
    "wan": LinkProfile(
        "distant sites: about 40 ms and 100 Mbit/s per link",
        40.0,
        latency_spread=0.6,
        bandwidth_mbit=100.0,
        bandwidth_spread=0.5,
    ),
    "home": LinkProfile(
        "households: about 25 ms, an uplink of about 20 Mbit/s",
        25.0,
        latency_spread=0.5,
        uplink_mbit=20.0,
        uplink_spread=0.7,
    ),
    "mobile": LinkProfile(
        "mobile phones: about 60 ms, an uplink of about 8 Mbit/s, some far less",
        60.0,
        latency_spread=0.6,
        uplink_mbit=8.0,
        uplink_spread=1.0,
    ),
}


class SpeedProfile(NamedTuple):
    """Compute speeds around a median of 1."""

    summary: str
    spread: float


SPEEDS = {
    "uniform": SpeedProfile("all equal", 0.0),
    "computers": SpeedProfile("computers of different ages: the slower third below 0.9, one in forty below 0.55", 0.3),
    "phones": SpeedProfile("phones of all kinds: the slower third below 0.8, one in forty below 0.3", 0.6),
}
