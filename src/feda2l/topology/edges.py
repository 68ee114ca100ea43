"""Edges as neighbour lists, and who can be reached along them."""

from collections.abc import Iterable, Sequence

Phase = tuple[tuple[int, ...], ...]
"""The ascending in-neighbours of every node in one round."""

Period = tuple[Phase, ...]
"""One phase for a fixed graph, several for one that varies in time."""


def received(nodes: int, arcs: Iterable[tuple[int, int]]) -> Phase:
    """From pairs (i, j), i hears j, to neighbours; repeated pairs and loops (a ring of two) fall away."""
    rows: list[set[int]] = [set() for _ in range(nodes)]
    for i, j in arcs:
        rows[i].add(j)
    return tuple(tuple(sorted(near - {i})) for i, near in enumerate(rows))


def undirected(nodes: int, edges: Iterable[tuple[int, int]]) -> Period:
    """One phase in which both ends of each edge hear each other."""
    return (received(nodes, (arc for i, j in edges for arc in ((i, j), (j, i)))),)


def reverse(rows: Sequence[Iterable[int]]) -> Phase:
    """Each edge turned round: from whom I hear to who hears me."""
    speaks: list[list[int]] = [[] for _ in rows]
    for i, near in enumerate(rows):
        for j in near:
            speaks[j].append(i)
    return tuple(map(tuple, speaks))


def connected(period: Period) -> bool:
    """Node 0 reaches all along the edges, and against them."""
    return _reaches_all(period) and _reaches_all(tuple(map(reverse, period)))


def _reaches_all(period: Period) -> bool:
    seen, frontier = {0}, [0]
    while frontier:
        node = frontier.pop()
        fresh = {j for phase in period for j in phase[node]} - seen
        seen |= fresh
        frontier.extend(fresh)
    return len(seen) == len(period[0])
