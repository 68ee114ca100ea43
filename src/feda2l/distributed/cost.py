"""Cost model of a round on several ranks: seconds, bytes on links, memory. Measured speeds times counted work.

The busiest of R ranks has n nodes with P values and d neighbours each, S local steps in all, and a halo of h rows:

    seconds = S step / workers                                   local training
            + P (n (1 + d) + 3 h) mix                            mixing; both sides copy the halo rows
            + P n signal                                         divergence, stability, mean model
            + P (4 h + 24 (R - 1) / R) / bandwidth               the halo; the all-reduce of the mean model
            + TALKS latency                                      synchronisations of all ranks
    memory  = 4 P (states n + 2 h + min(n, h d))                 rows, the halo, send buffers, rows mixed with the halo

`Pace` and `Interconnect` describe a machine. `RankShare` follows from the graph and the placement.
"""

from collections.abc import Sequence
from typing import NamedTuple

from feda2l.distributed.placement import place
from feda2l.topology import Topology

FLOAT = 4  # bytes per value
MEAN = 12  # bytes per value that are reduced for the mean model: the maximum (float32) and the sum (float64)
TALKS = 8  # synchronisations of all ranks per round: errors, ends, digests, sums, records, decision


class MachineSpeed(NamedTuple):
    """The speed of a machine: seconds that one process with one worker needs."""

    step: float  # per local step of one node
    mix: float  # per value of one neighbour's row
    signal: float  # per value of one node's row, for all measurements


class Interconnect(NamedTuple):
    """The link between ranks, measured by `torchrun -m feda2l.distributed.measure`."""

    bandwidth: float  # bytes per second
    latency: float  # seconds of a small message to all ranks


class RankShare(NamedTuple):
    """The share of a network that the busiest rank has."""

    ranks: int
    nodes: float
    received: float  # neighbours per node
    halo: float  # rows that arrive from other ranks per round

    @classmethod
    def of(cls, graph: Topology, steps: Sequence[int], ranks: int) -> "RankShare":
        """Return the share under the placement that `place` computes."""
        placement = place(graph, steps, ranks)
        received = sum(len(neighbours) for phase in graph.period for neighbours in phase) / (
            len(graph.period) * graph.nodes
        )
        return cls(ranks, max(map(len, placement.ids)), received, placement.crossing / ranks)

    @classmethod
    def one_peer_exponential(cls, nodes: int, ranks: int) -> "RankShare":
        """Return the share for blocks of consecutive ids: min(h, n) rows enter each rank of n nodes at hop h.

        >>> from feda2l.topology import build
        >>> RankShare.one_peer_exponential(64, 4) == RankShare.of(build("one_peer_exponential", 64), [1] * 64, 4)
        True
        """
        per_rank = nodes / ranks
        hops = [1 << j for j in range((nodes - 1).bit_length())]
        return cls(ranks, per_rank, 1.0, sum(min(hop, per_rank) for hop in hops) / len(hops) if ranks > 1 else 0.0)

    @classmethod
    def k_regular(cls, nodes: int, k: int, ranks: int) -> "RankShare":
        """Return the worst case: a random graph has no blocks, so 1 - 1 / R of all neighbours are on other ranks."""
        per_rank = nodes / ranks
        return cls(ranks, per_rank, float(k), min(per_rank * k, nodes) * (1 - 1 / ranks))


class Cost(NamedTuple):
    """The cost of a round for the busiest rank."""

    train: float
    mix: float
    measure: float
    exchange: float
    sent: float  # bytes sent
    memory: float  # bytes of the rows held

    @property
    def seconds(self) -> float:
        return self.train + self.mix + self.measure + self.exchange


def cost(
    share: RankShare,
    values: int,
    steps: float,
    pace: MachineSpeed,
    link: Interconnect,
    *,
    workers: int = 1,
    states: int = 3,
) -> Cost:
    """Return the cost of a round for a rank with this share of a network (equations: see the module).

    Args:
        share: The nodes, neighbours and halo of the rank.
        values: Values per row: the parameters, padded.
        steps: Local steps per node and round.
        pace: The machine's speed.
        link: The link between ranks.
        workers: Worker processes per rank.
        states: Rows kept per node: base and trained state, optimizer state and algorithm state.
    """
    nodes, halo, ranks = share.nodes, share.halo, share.ranks
    reduced = 2 * MEAN * values * (ranks - 1) / ranks
    sent = FLOAT * values * halo + reduced
    return Cost(
        train=nodes * steps * pace.step / workers,
        mix=(nodes * (1 + share.received) + 3 * halo) * values * pace.mix,
        measure=nodes * values * pace.signal,
        exchange=sent / link.bandwidth + TALKS * link.latency if ranks > 1 else 0.0,
        sent=sent,
        memory=FLOAT * values * (nodes * states + 2 * halo + min(nodes, halo * max(share.received, 1))),
    )
