"""Simulated time: when each node would have ended a round on a given network. No clock of a machine is read."""

from collections.abc import Collection
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feda2l.network.links import Floats, Ids, Links, LinkTime
from feda2l.topology import Topology
from feda2l.topology.edges import Phase


class _Edges(NamedTuple):
    """Who hears whom in one phase of a graph, an entry an edge, and what each costs."""

    listeners: Ids
    senders: Ids
    cost: LinkTime

    @classmethod
    def of(cls, phase: Phase, links: Links) -> "_Edges":
        listeners = np.repeat(np.arange(len(phase)), [len(near) for near in phase])
        senders = np.fromiter(chain.from_iterable(phase), np.int64, len(listeners))
        return cls(listeners, senders, links.cost(senders, listeners))

    def some(self, chosen: NDArray[np.bool_]) -> "_Edges":
        latency, per_byte = self.cost
        return _Edges(self.listeners[chosen], self.senders[chosen], LinkTime(latency[chosen], per_byte[chosen]))


class Clock:
    """When each node begins the coming round, in seconds; nobody waits but for those it hears.

    In a round node i trains until c_i = t_i + work_i. Its message to j is out at c_i + s_ij and there at
    c_i + s_ij + latency_ij, with

        s_ij = bytes x max(1 / bandwidth_ij, m_i / uplink_i)

    where m_i is how many messages it sends: they share its uplink. A node begins the next round when its own messages
    are out, so that no link carries two rounds at once, and all that it hears is there. An algorithm that mixes several
    times a round exchanges as often. Mixing, adapting and evaluating take no time; downlinks are as wide as needed.

    Who rests in a round neither works nor sends. It follows the network's time all the same: it is told, without a
    model, when those whom it would have heard are through (c_i + latency_ij).

    A round is a max and a sum over the graph's edges; there is no matrix of nodes x nodes.
    """

    def __init__(self, topology: Topology, work: Floats, links: Links, uplinks: Floats) -> None:
        self.topology, self.work, self.uplinks = topology, work, uplinks
        self.now: Tensor = torch.zeros(topology.nodes, dtype=torch.float64)  # in place: a checkpoint restores it
        self._phases = [_Edges.of(phase, links) for phase in topology.period]

    @property
    def seconds(self) -> float:
        """When the last node has completed the round: then the network is at it."""
        return float(self.now.max())

    def round(self, round: int, message: int, exchanges: int = 1, present: Collection[int] | None = None) -> None:
        """Work, then so many exchanges of a message of so many bytes, of those who are present (else of all)."""
        there = np.ones(self.topology.nodes, dtype=bool)
        if present is not None:
            there[:] = False
            there[list(present)] = True
        self.spend(there.astype(np.float64))
        for _ in range(exchanges):
            self.exchange(round, message, there)

    def spend(self, rounds: Floats) -> None:
        """Let each node work as long as so many rounds of training take it."""
        self._time[:] += rounds * self.work

    def exchange(self, round: int, message: int, there: NDArray[np.bool_] | None = None) -> None:
        """Let each node send, and wait for what it hears."""
        edges = self._phases[self.topology.phase(round)]
        if there is None:
            there = np.ones(self.topology.nodes, dtype=bool)
        elif not there.all():
            edges = edges.some(there[edges.senders])
        listeners, senders, (latency, per_byte) = edges
        carries = there[listeners]  # a model, and not only word of it
        sent = np.bincount(senders[carries], minlength=self.topology.nodes)
        per_byte = np.maximum(per_byte, (sent * self.uplinks)[senders])
        out = self._time[senders] + message * carries * per_byte
        np.maximum.at(self._time, senders, out)
        np.maximum.at(self._time, listeners, out + latency)

    @property
    def _time(self) -> Floats:
        """The same numbers, for NumPy."""
        view: Floats = self.now.numpy()
        return view
