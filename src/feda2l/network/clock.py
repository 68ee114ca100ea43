"""Simulated time: when each node would complete a round on a given network. The machine's clock is not used."""

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
    """The edges of one phase of a graph: receivers, senders and costs, one entry per edge."""

    listeners: Ids
    senders: Ids
    cost: LinkTime

    @classmethod
    def of(cls, phase: Phase, links: Links) -> "_Edges":
        listeners = np.repeat(np.arange(len(phase)), [len(neighbours) for neighbours in phase])
        senders = np.fromiter(chain.from_iterable(phase), np.int64, len(listeners))
        return cls(listeners, senders, links.cost(senders, listeners))

    def some(self, chosen: NDArray[np.bool_]) -> "_Edges":
        latency, per_byte = self.cost
        return _Edges(self.listeners[chosen], self.senders[chosen], LinkTime(latency[chosen], per_byte[chosen]))


class Clock:
    """The time, in seconds, at which each node starts its next round. A node waits only for its in-neighbours.

    Node i starts a round at t_i and trains until c_i = t_i + work_i. Its message to j leaves at c_i + s_ij and arrives
    at c_i + s_ij + latency_ij, with

        s_ij = bytes x max(1 / bandwidth_ij, m_i / uplink_i)

    where m_i is the number of messages that i sends; they share its uplink. A node starts the next round when all its
    messages have left and all messages to it have arrived. So no link carries messages of two rounds at once. An
    algorithm that mixes several times per round exchanges as often. Mixing, adapting and evaluating take no time.
    Downlinks have no limit.

    A node that rests in a round neither trains nor sends, but its time still advances. It gets a notice without a
    model when its in-neighbours have trained, at c_i + latency_ij.

    The cost of a round is one maximum and one sum over the edges; no nodes x nodes matrix is built.
    """

    def __init__(self, topology: Topology, work: Floats, links: Links, uplinks: Floats) -> None:
        self.topology, self.work, self.uplinks = topology, work, uplinks
        # changed in place, so that a checkpoint can restore it
        self.now: Tensor = torch.zeros(topology.nodes, dtype=torch.float64)
        self._phases = [_Edges.of(phase, links) for phase in topology.period]

    @property
    def seconds(self) -> float:
        """The time at which the last node has completed the round."""
        return float(self.now.max())

    def round(self, round: int, message: int, exchanges: int = 1, present: Collection[int] | None = None) -> None:
        """Advance the time by one round: training, then `exchanges` exchanges of a message of `message` bytes.

        `present` are the nodes that take part; None means all.
        """
        active = np.ones(self.topology.nodes, dtype=bool)
        if present is not None:
            active[:] = False
            active[list(present)] = True
        self.spend(active.astype(np.float64))
        for _ in range(exchanges):
            self.exchange(round, message, active)

    def spend(self, rounds: Floats) -> None:
        """Advance each node's time by `rounds` rounds of training."""
        self._time[:] += rounds * self.work

    def exchange(self, round: int, message: int, active: NDArray[np.bool_] | None = None) -> None:
        """Advance each node's time by one exchange: send to its out-neighbours, wait for its in-neighbours."""
        edges = self._phases[self.topology.phase(round)]
        if active is None:
            active = np.ones(self.topology.nodes, dtype=bool)
        elif not active.all():
            edges = edges.some(active[edges.senders])
        listeners, senders, (latency, per_byte) = edges
        carries = active[listeners]  # this edge carries a model and not only a notice
        sent = np.bincount(senders[carries], minlength=self.topology.nodes)
        per_byte = np.maximum(per_byte, (sent * self.uplinks)[senders])
        out = self._time[senders] + message * carries * per_byte
        np.maximum.at(self._time, senders, out)
        np.maximum.at(self._time, listeners, out + latency)

    @property
    def _time(self) -> Floats:
        """`now` as a NumPy array that shares its memory."""
        view: Floats = self.now.numpy()
        return view
