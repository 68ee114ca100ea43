"""Graphs: from which nodes each node receives in a round.

An edge j -> i means that i receives the state of j, so j is an in-neighbour of i. Graphs are stored as tuples of
neighbour ids. A sparse graph of 10,000 nodes stays small, because no N x N array is built.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from feda2l.names import look_up
from feda2l.randomness import derive_seed
from feda2l.topology.edges import Period, connected, received, reverse, undirected
from feda2l.topology.errors import topology_error
from feda2l.topology.file import read_arcs


@dataclass(frozen=True)
class Topology:
    """The in-neighbours of each node in each round of one period.

    `period[phase][node]` holds ascending ids without the node itself. `len(period) > 1` only for graphs that change
    over the rounds. `directed`: in some round a node receives from another node that does not receive from it.

    >>> build("ring", 5).neighbours(0)
    (1, 4)
    """

    name: str
    nodes: int
    period: Period
    directed: bool

    def phase(self, round: int) -> int:
        """Return the position of a round (1, 2, ...) in the period."""
        return (round - 1) % len(self.period)

    def neighbours(self, node: int, round: int = 1) -> tuple[int, ...]:
        """Return the nodes from which `node` receives in `round`."""
        return self.period[self.phase(round)][node]

    def edges(self, round: int = 1) -> int:
        """Count the edges of `round`: a pair counts once if undirected, once per direction if directed."""
        received = sum(map(len, self.period[self.phase(round)]))
        return received if self.directed else received // 2

    def connected(self) -> bool:
        """Return whether every node reaches every other along the edges of one period (strongly, if directed)."""
        return connected(self.period)


@dataclass(frozen=True)
class GraphOptions:
    """Parameters of the graph builders; each builder uses some of them."""

    nodes: int
    k: int
    p: float
    seed: int
    file: str | None


def build(name: str, nodes: int, *, k: int = 7, p: float = 0.3, seed: int = 1, file: str | None = None) -> Topology:
    """Build the graph called `name` (see `TOPOLOGIES`) over `nodes` nodes; it is connected unless it is `isolated`.

    Args:
        name: a key of `TOPOLOGIES`.
        nodes: the number of nodes. A single node has no neighbours in any graph.
        k: the degree of `k_regular` and the out-degree of `random_out`.
        p: the probability of an edge in `erdos_renyi`.
        seed: the seed of these three random graphs.
        file: the path of an edge list or a matrix, for `file`.
    """
    draw, _ = look_up(name, TOPOLOGIES, "topology.name")
    if nodes < 1:
        raise topology_error(f"data.nodes = {nodes}: a network needs at least 1 node")
    if nodes == 1 and name != "file":
        return Topology(name, 1, (((),),), directed=False)
    period = draw(GraphOptions(nodes, k, p, seed, file))
    if name != "isolated" and not connected(period):
        raise topology_error(
            f'topology.name = "{name}" gives a graph in which some nodes never hear from some others; '
            f'add edges, or use topology.name = "isolated" to train every node alone'
        )
    return Topology(name, nodes, period, directed=any(reverse(phase) != phase for phase in period))


# --- deterministic graphs ----------------------------------------------------------------------------------


def _full(o: GraphOptions) -> Period:
    everyone = tuple(range(o.nodes))
    return (tuple(everyone[:i] + everyone[i + 1 :] for i in everyone),)


def _ring(o: GraphOptions) -> Period:
    return undirected(o.nodes, ((i, (i + 1) % o.nodes) for i in range(o.nodes)))


def _star(o: GraphOptions) -> Period:
    return undirected(o.nodes, ((0, i) for i in range(1, o.nodes)))


def _tree(o: GraphOptions) -> Period:
    return undirected(o.nodes, ((i, (i - 1) // 2) for i in range(1, o.nodes)))


def _hypercube(o: GraphOptions) -> Period:
    size = o.nodes.bit_length() - 1
    if o.nodes != 1 << size:
        raise topology_error(
            f'data.nodes = {o.nodes} is not a power of two, as topology.name = "hypercube" needs; '
            f"use {1 << size} or {2 << size} nodes"
        )
    return undirected(o.nodes, ((i, i ^ 1 << j) for i in range(o.nodes) for j in range(size)))


def _grid(o: GraphOptions) -> Period:
    columns = _columns(o.nodes, "grid")
    right = ((i, i + 1) for i in range(o.nodes) if (i + 1) % columns)
    down = ((i, i + columns) for i in range(o.nodes - columns))
    return undirected(o.nodes, (*right, *down))


def _torus(o: GraphOptions) -> Period:
    columns = _columns(o.nodes, "torus")
    right = ((i, i - i % columns + (i + 1) % columns) for i in range(o.nodes))
    down = ((i, (i + columns) % o.nodes) for i in range(o.nodes))
    return undirected(o.nodes, (*right, *down))


def _columns(nodes: int, name: str) -> int:
    """Return the columns of the squarest rows x columns grid. A prime allows only 1 x n, a line, and is refused."""
    rows = next(r for r in range(math.isqrt(nodes), 0, -1) if nodes % r == 0)
    if rows == 1 and nodes > 3:
        raise topology_error(
            f'data.nodes = {nodes} is prime, so topology.name = "{name}" could only be a 1 x {nodes} line; '
            f'use {nodes - 1} or {nodes + 1} nodes, or topology.name = "ring"'
        )
    return nodes // rows


def _hops(nodes: int) -> list[int]:
    """Return 1, 2, 4, ... below `nodes`: ceil(log2(nodes)) numbers."""
    return [1 << j for j in range((nodes - 1).bit_length())]


def _exponential(o: GraphOptions) -> Period:
    return (tuple(tuple(sorted((i - hop) % o.nodes for hop in _hops(o.nodes))) for i in range(o.nodes)),)


def _one_peer_exponential(o: GraphOptions) -> Period:
    return tuple(tuple(((i - hop) % o.nodes,) for i in range(o.nodes)) for hop in _hops(o.nodes))


def _directed_ring(o: GraphOptions) -> Period:
    return (tuple(((i - 1) % o.nodes,) for i in range(o.nodes)),)


def _isolated(o: GraphOptions) -> Period:
    return (((),) * o.nodes,)


# --- random graphs -----------------------------------------------------------------------------------------


def _k_regular(o: GraphOptions) -> Period:
    from networkx import random_regular_graph

    _check_degree(o, "k_regular")
    if o.nodes * o.k % 2:
        raise topology_error(
            f"topology.k = {o.k} with data.nodes = {o.nodes}: nodes x k counts every edge twice and must be even; "
            f"use k = {o.k - 1 or 2}{f' or {o.k + 1}' if 1 < o.k < o.nodes - 1 else ''}, or one more node"
        )
    if o.k == 1 and o.nodes > 2:
        raise topology_error(f"topology.k = 1 links {o.nodes} nodes only in pairs; use k = 2 or more")

    def draw(seed: int) -> Period:
        if o.k == 2:  # connected means a random cycle, which drawing finds only once in about sqrt(nodes) tries
            order = np.random.default_rng(seed).permutation(o.nodes).tolist()
            return undirected(o.nodes, zip(order, order[1:] + order[:1], strict=True))
        if 2 * o.k < o.nodes:
            return undirected(o.nodes, random_regular_graph(o.k, o.nodes, seed=seed).edges)
        # networkx pairs stubs until no edge repeats, which rarely succeeds near the full graph; draw its complement
        absent = random_regular_graph(o.nodes - 1 - o.k, o.nodes, seed=seed)
        everyone = range(o.nodes)
        return (tuple(tuple(j for j in everyone if j != i and j not in absent[i]) for i in everyone),)

    return _redraw(o, draw, f"topology.k = {o.k}: use a larger k")


def _erdos_renyi(o: GraphOptions) -> Period:
    from networkx import fast_gnp_random_graph

    # P(connected) -> exp(-exp(-c)) at p = (ln n + c) / n (Erdos and Renyi, 1959): 95 % at c = 3
    likely = min(1.0, math.ceil(1000 * (math.log(o.nodes) + 3) / o.nodes) / 1000)
    if not 0 < o.p <= 1:
        raise topology_error(
            f"topology.p = {o.p} is not a probability above 0 and at most 1; "
            f"{o.nodes} nodes are likely connected from p = {likely:g} on"
        )
    return _redraw(
        o,
        lambda seed: undirected(o.nodes, fast_gnp_random_graph(o.nodes, o.p, seed=seed).edges),
        f"topology.p = {o.p}: {o.nodes} nodes are likely connected from p = {likely:g} on",
    )


def _random_out(o: GraphOptions) -> Period:
    _check_degree(o, "random_out")

    def draw(seed: int) -> Period:
        generator = np.random.default_rng(seed)
        others = (generator.choice(o.nodes - 1, size=o.k, replace=False) for _ in range(o.nodes))
        return (reverse([(picks + (picks >= i)).tolist() for i, picks in enumerate(others)]),)

    likely = min(o.nodes - 1, math.ceil(math.log(o.nodes) + 3))  # every node has a receiver: n exp(-k) is small
    return _redraw(o, draw, f"topology.k = {o.k}: {o.nodes} nodes are likely connected from k = {likely} on")


def _check_degree(o: GraphOptions, name: str) -> None:
    if not 1 <= o.k < o.nodes:
        raise topology_error(
            f'topology.k = {o.k}: each of the {o.nodes} nodes (data.nodes) of topology.name = "{name}" '
            f"has only {o.nodes - 1} others; use k from 1 to {o.nodes - 1}"
        )


def _redraw(o: GraphOptions, draw: Callable[[int], Period], hint: str) -> Period:
    """Return the first connected graph of a seeded sequence of draws."""
    draws = max(20, min(1000, 100_000 // o.nodes))  # about one second of tries
    for attempt in range(draws):
        period = draw(derive_seed(o.seed, round=attempt, purpose="topology"))
        if connected(period):
            return period
    raise topology_error(f"no connected graph in {draws} draws with {hint}")


def _file(o: GraphOptions) -> Period:
    if o.file is None:
        raise topology_error(
            'topology.file is missing: topology.name = "file" needs the path of an edge list or a matrix'
        )
    return (received(o.nodes, read_arcs(o.file, o.nodes)),)


TOPOLOGIES: dict[str, tuple[Callable[[GraphOptions], Period], str]] = {
    "full": (_full, "every node receives from every other node"),
    "ring": (_ring, "each node receives from the node before and the node after it"),
    "k_regular": (_k_regular, "random undirected graph in which every node has topology.k neighbours"),
    "star": (_star, "node 0 linked to all others"),
    "tree": (_tree, "binary heap: parent (i - 1) // 2 and up to two children"),
    "hypercube": (_hypercube, "links ids that differ in one bit; data.nodes must be a power of two"),
    "grid": (_grid, "rows x columns, as square as possible, up to four neighbours; no primes above 3"),
    "torus": (_torus, "the grid with opposite borders joined"),
    "exponential": (_exponential, "directed: node i receives from i - 1, i - 2, i - 4, ... (mod nodes)"),
    "one_peer_exponential": (
        _one_peer_exponential,
        "directed: one of the neighbours of `exponential` per round, in turn (time-varying)",
    ),
    "erdos_renyi": (_erdos_renyi, "random undirected graph: each pair is linked with probability topology.p"),
    "directed_ring": (_directed_ring, "directed: each node receives only from the node before it"),
    "random_out": (_random_out, "directed: every node sends to topology.k random others"),
    "file": (
        _file,
        "from topology.file: one edge 'i j' per line, or a 0/1 matrix whose row i marks the nodes that i receives from",
    ),
    "isolated": (_isolated, "no neighbours: every node trains alone"),
}
NAMES = tuple(TOPOLOGIES)
