"""The cost of a message on each link: drawn from a profile, equal for all links, or listed in a file."""

import csv
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from feda2l.errors import FedA2LError
from feda2l.network.draws import lognormal
from feda2l.network.profiles import LinkProfile

HEADER = ["from", "to", "latency_ms", "mbit"]
Ids = NDArray[np.int64]
Floats = NDArray[np.float64]
network_error = partial(FedA2LError, see="network")


class LinkTime(NamedTuple):
    """The cost of each link: latency in seconds, and seconds per byte."""

    latency: Floats
    per_byte: Floats


class Links(Protocol):
    """The links of a network, including links that the graph does not use."""

    def cost(self, senders: Ids, listeners: Ids) -> LinkTime:
        """Return the cost of the links from `senders` to `listeners` (arrays of equal length)."""
        ...


def seconds_per_byte(mbit: Floats) -> Floats:
    """Return 8e-6 / mbit: the seconds that one byte takes. An infinite bandwidth gives 0."""
    return 8e-6 / mbit


@dataclass(frozen=True)
class DrawnLinks:
    """Links drawn from a profile. A pair of nodes has one symmetric link, which does not depend on the graph."""

    profile: LinkProfile
    seed: int

    def cost(self, senders: Ids, listeners: Ids) -> LinkTime:
        low, high = np.minimum(senders, listeners), np.maximum(senders, listeners)
        profile = self.profile
        latency = profile.latency_ms * lognormal(self.seed, "latency", profile.latency_spread, low, high)
        if profile.bandwidth_mbit is None:
            return LinkTime(1e-3 * latency, np.zeros(len(low)))
        mbit = profile.bandwidth_mbit * lognormal(self.seed, "bandwidth", profile.bandwidth_spread, low, high)
        return LinkTime(1e-3 * latency, seconds_per_byte(mbit))


@dataclass(frozen=True)
class ListedLinks:
    """Links from a CSV file with lines `from,to,latency_ms,mbit`.

    A link that is listed in one direction only has the same cost in the other direction.
    """

    file: str
    nodes: int
    keys: Ids  # from * nodes + to, ascending
    values: Floats  # [links, 2]: latency_ms, mbit

    @classmethod
    def read(cls, file: str, nodes: int) -> "ListedLinks":
        """Read the links of a file. Raise FedA2LError with the line number if a line is invalid."""
        try:
            text = Path(file).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeError) as error:
            raise network_error(f"network.file = {file} cannot be read: {error}") from error
        costs: dict[int, tuple[float, float]] = {}
        back: dict[int, tuple[float, float]] = {}
        header: list[str] | None = None
        for number, line in enumerate(csv.reader(text.splitlines()), start=1):
            fields = [field.strip() for field in line]
            if not any(fields) or fields[0].startswith("#"):
                continue
            where = f"network.file = {file}, line {number}"
            if header is None:
                header = fields
                if fields != HEADER:
                    raise network_error(f'{where}: expected the header "{",".join(HEADER)}", got "{",".join(fields)}"')
                continue
            sender, listener, cost = _link(where, fields, nodes)
            if sender * nodes + listener in costs:
                raise network_error(f"{where}: the link from {sender} to {listener} is listed twice")
            costs[sender * nodes + listener] = back[listener * nodes + sender] = cost
        costs = back | costs
        keys = np.array(sorted(costs), dtype=np.int64)
        values = np.array([costs[key] for key in keys.tolist()], dtype=np.float64).reshape(-1, 2)
        return cls(file, nodes, keys, values)

    def cost(self, senders: Ids, listeners: Ids) -> LinkTime:
        requested = senders * self.nodes + listeners
        place = np.searchsorted(self.keys, requested)
        listed = np.zeros(len(requested), dtype=bool)
        inside = place < len(self.keys)
        listed[inside] = self.keys[place[inside]] == requested[inside]
        if not listed.all():
            missing = np.flatnonzero(~listed)
            first = int(missing[0])
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise network_error(
                f"network.file = {self.file}: the link from {senders[first]} to {listeners[first]}{more} of the graph "
                "is missing; add a line, or choose another topology"
            )
        latency, mbit = self.values[place].T
        return LinkTime(1e-3 * latency, seconds_per_byte(mbit))


def _link(where: str, fields: list[str], nodes: int) -> tuple[int, int, tuple[float, float]]:
    if len(fields) != len(HEADER):
        raise network_error(f"{where}: expected {len(HEADER)} fields ({','.join(HEADER)}), got {len(fields)}")
    ids = []
    for name, field in zip(HEADER[:2], fields[:2], strict=True):
        if not field.isdecimal() or int(field) >= nodes:
            raise network_error(f'{where}: {name} = "{field}": there is no such node; the nodes are 0 to {nodes - 1}')
        ids.append(int(field))
    if ids[0] == ids[1]:
        raise network_error(
            f"{where}: node {ids[0]} is linked to itself; remove the line, a node needs no message from itself"
        )
    latency = _number(fields[2])
    if latency is None or latency < 0:
        raise network_error(f'{where}: latency_ms = "{fields[2]}": must be 0 or more')
    mbit = _number(fields[3])
    if mbit is None or mbit <= 0:
        raise network_error(f'{where}: mbit = "{fields[3]}": must be above 0')
    return ids[0], ids[1], (latency, mbit)


def _number(field: str) -> float | None:
    try:
        value = float(field)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
