"""Edges as neighbour lists, and the nodes that can be reached along them."""

from collections.abc import Iterable, Sequence

Phase = tuple[tuple[int, ...], ...]
"""The ascending in-neighbours of every node in one round."""

Period = tuple[Phase, ...]
"""One phase for a fixed graph, several for a graph that changes over the rounds."""


def received(nodes: int, arcs: Iterable[tuple[int, int]]) -> Phase:
    """Convert pairs (i, j), where i receives from j, to neighbour lists; repeated pairs and self-loops are dropped."""
    rows: list[set[int]] = [set() for _ in range(nodes)]
    for i, j in arcs:
        rows[i].add(j)
    return tuple(tuple(sorted(neighbours - {i})) for i, neighbours in enumerate(rows))


def undirected(nodes: int, edges: Iterable[tuple[int, int]]) -> Period:
    """Build one phase in which both ends of every edge receive from each other."""
    return (received(nodes, (arc for i, j in edges for arc in ((i, j), (j, i)))),)


def reverse(rows: Sequence[Iterable[int]]) -> Phase:
    """Reverse every edge: from the senders of each node to its receivers."""
    speaks: list[list[int]] = [[] for _ in rows]
    for i, neighbours in enumerate(rows):
        for j in neighbours:
            speaks[j].append(i)
    return tuple(map(tuple, speaks))


def connected(period: Period) -> bool:
    """Return whether node 0 reaches all nodes along the edges and against them."""
    return _reaches_all(period) and _reaches_all(tuple(map(reverse, period)))


def _reaches_all(period: Period) -> bool:
    seen, frontier = {0}, [0]
    while frontier:
        node = frontier.pop()
        fresh = {j for phase in period for j in phase[node]} - seen
        seen |= fresh
        frontier.extend(fresh)
    return len(seen) == len(period[0])
