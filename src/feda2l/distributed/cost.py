"""What a round costs on ranks: seconds, bytes on links, memory. Measured constants times counted work.

Of R ranks the busiest has n nodes, each of P values and d neighbours, S local steps in all, and a halo of h rows:

    seconds = S step / workers                                   local training
            + P (n (1 + d) + 3 h) mix                            mixing; halo rows are copied on both sides
            + P n signal                                         signals, comparison, mean model
            + P (4 h + 24 (R - 1) / R) / bandwidth               the halo; the mean model's sums, to all and back
            + TALKS latency                                      times that all wait for all
    memory  = 4 P (states n + 2 h + min(n, h d))                 rows, the halo, what is sent, what is mixed with it

`Pace` and `Link` are a machine's; `Share` follows from the graph and the placement.
"""

from collections.abc import Sequence
from typing import NamedTuple

from feda2l.distributed.placement import place
from feda2l.topology import Topology

FLOAT = 4  # bytes of a value
MEAN = 12  # bytes a value that are summed for the mean model: the largest (float32) and the sum (float64)
TALKS = 8  # times a round that all ranks wait for all: errors, ends, digests, sums, records, decision


class MachineSpeed(NamedTuple):
    """A machine's speed: seconds of one process with one worker."""

    step: float  # a local step of a node
    mix: float  # a value of one neighbour's row
    signal: float  # a value of a node's row, for all that is measured of it


class Link(NamedTuple):
    """Between ranks; `torchrun -m feda2l.distributed.measure` tells."""

    bandwidth: float  # bytes a second
    latency: float  # seconds of a small message to all


class Share(NamedTuple):
    """What the busiest of some ranks has of a network."""

    ranks: int
    nodes: float
    received: float  # neighbours a node
    halo: float  # rows that arrive from other ranks in a round

    @classmethod
    def of(cls, graph: Topology, steps: Sequence[int], ranks: int) -> "Share":
        """As `place` deals it."""
        placement = place(graph, steps, ranks)
        received = sum(len(near) for phase in graph.period for near in phase) / (len(graph.period) * graph.nodes)
        return cls(ranks, max(map(len, placement.ids)), received, placement.crossing / ranks)

    @classmethod
    def one_peer_exponential(cls, nodes: int, ranks: int) -> "Share":
        """Blocks of neighbouring ids: of hop h, h rows cross into each rank, or all of its own number if it is longer.

        >>> from feda2l.topology import build
        >>> Share.one_peer_exponential(64, 4) == Share.of(build("one_peer_exponential", 64), [1] * 64, 4)
        True
        """
        own = nodes / ranks
        hops = [1 << j for j in range((nodes - 1).bit_length())]
        return cls(ranks, own, 1.0, sum(min(hop, own) for hop in hops) / len(hops) if ranks > 1 else 0.0)

    @classmethod
    def k_regular(cls, nodes: int, k: int, ranks: int) -> "Share":
        """At worst: a random graph has no blocks, so a share of 1 - 1 / R of all neighbours is elsewhere."""
        own = nodes / ranks
        return cls(ranks, own, float(k), min(own * k, nodes) * (1 - 1 / ranks))


class Cost(NamedTuple):
    """Of a round, for the busiest rank."""

    train: float
    mix: float
    measure: float
    exchange: float
    sent: float  # bytes that it sends
    memory: float  # bytes of the rows that it holds

    @property
    def seconds(self) -> float:
        return self.train + self.mix + self.measure + self.exchange


def cost(
    share: Share, values: int, steps: float, pace: MachineSpeed, link: Link, *, workers: int = 1, states: int = 3
) -> Cost:
    """What a round costs a rank with this share of a network.

    `values` are those of a row (the parameters, padded), `steps` a node's local steps, `states` the rows that are kept
    of it: base, trained, and the optimiser's and the algorithm's memory.
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
