"""Assign nodes to ranks: equal numbers of local steps per rank, and few rows to send."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feda2l.errors import FedA2LError
from feda2l.topology import Topology
from feda2l.topology.edges import Phase

Ids = NDArray[np.int64]


class Placement(NamedTuple):
    """The nodes of each rank, ascending, and the mean number of rows sent between ranks per round."""

    ids: list[Ids]
    crossing: float

    @property
    def owner(self) -> Ids:
        """Return the rank of each node."""
        owner = np.empty(sum(map(len, self.ids)), dtype=np.int64)
        for rank, ids in enumerate(self.ids):
            owner[ids] = rank
        return owner


def place(graph: Topology, steps: Sequence[int], ranks: int) -> Placement:
    """Split the nodes into one block per rank with about equal numbers of local steps.

    Two orders are tried: by id, which suits rings, grids and full graphs, and reverse Cuthill-McKee, which puts
    neighbours close together in other graphs. The order that sends fewer rows is used.

    >>> from feda2l.topology import build
    >>> [ids.tolist() for ids in place(build("ring", 5), [4, 1, 1, 1, 1], 2).ids]
    [[0], [1, 2, 3, 4]]
    """
    if ranks > graph.nodes:
        raise FedA2LError(
            f"data.nodes = {graph.nodes} on {ranks} ranks: each rank needs at least one node; start fewer ranks "
            f"(torchrun --nproc-per-node)",
            see="torchrun",
        )
    orders = [np.arange(graph.nodes)]
    if 1 < ranks < graph.nodes and graph.name != "full":
        orders.append(_clustered_order(graph))
    return min(
        (_cut(graph, order, np.asarray(steps), ranks) for order in orders), key=lambda placement: placement.crossing
    )


def _cut(graph: Topology, order: Ids, steps: Ids, ranks: int) -> Placement:
    done = np.cumsum(steps[order]) - steps[order] / 2  # the midpoint of each node's steps
    edges = np.searchsorted(done, steps.sum() * np.arange(1, ranks) / ranks)
    cuts = [0]
    for rank, edge in enumerate(edges, start=1):
        cuts.append(int(np.clip(edge, cuts[-1] + 1, len(order) - (ranks - rank))))  # every rank gets at least one node
    ids = [np.sort(block) for block in np.split(order, cuts[1:])]
    placement = Placement(ids, 0.0)
    return placement._replace(crossing=crossing_rows(graph, placement.owner))


def crossing_rows(graph: Topology, owner: Ids) -> float:
    """Return the mean number of rows sent per round. Each row is sent once to every rank with a receiver."""
    nodes, total = graph.nodes, 0
    for phase in graph.period:
        receiver, received = _edges(phase)
        across = owner[receiver] != owner[received]
        total += len(np.unique(owner[receiver[across]] * nodes + received[across]))
    return total / len(graph.period)


def _clustered_order(graph: Topology) -> Ids:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    links = csr_array((graph.nodes,) * 2, dtype=np.int32)
    for phase in graph.period:
        receiver, received = _edges(phase)
        links = links + csr_array((np.ones(len(received), np.int32), (receiver, received)), shape=links.shape)
    order: Ids = reverse_cuthill_mckee((links + links.T).tocsr(), symmetric_mode=True).astype(np.int64)
    return order


def _edges(phase: Phase) -> tuple[Ids, Ids]:
    """Return all edges of a phase as (receivers, senders)."""
    receiver = np.repeat(np.arange(len(phase)), [len(neighbours) for neighbours in phase])
    return receiver, np.fromiter((j for neighbours in phase for j in neighbours), np.int64, len(receiver))
