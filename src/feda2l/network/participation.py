"""Partial participation: the nodes that take part are drawn anew in every round."""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache

from feda2l.faults.plan import Return
from feda2l.network.links import network_error
from feda2l.randomness import numpy_generator


@dataclass(frozen=True)
class Participation:
    """In each round `count` nodes take part, drawn from (seed, round). The others rest and keep their models.

    A schedule uses it like a fault plan: it says which nodes are absent. A resting node loses nothing, so it does not
    adopt its neighbours' messages when it takes part again.

    >>> some = Participation(nodes=10, count=3, seed=1)
    >>> [len(some.drawn(round)) for round in (1, 2)], some.drawn(1) == some.drawn(2)
    ([3, 3], False)
    """

    nodes: int
    count: int
    seed: int
    returns = False

    @classmethod
    def of(cls, share: float, least: int, nodes: int, seed: int) -> "Participation | None":
        """Let max(least, round(share * nodes)) nodes take part per round; return None if those are all nodes."""
        if share == 1:
            return None
        if least > nodes:
            raise network_error(f"network.min_nodes = {least} is more than data.nodes = {nodes}")
        count = max(least, round(share * nodes))
        return None if count == nodes else cls(nodes, count, seed)

    def drawn(self, round: int) -> frozenset[int]:
        """Return the nodes that take part in this round."""
        return _drawn(self.nodes, self.count, self.seed, round)

    def condition_key(self, round: int) -> Hashable:
        return round

    def is_absent(self, node: int, round: int) -> bool:
        return round > 0 and node not in self.drawn(round)

    def receives(self, node: int, sender: int, round: int) -> bool:
        return not self.is_absent(node, round) and self.reaches(sender, node, round)

    def reaches(self, sender: int, listener: int, round: int) -> bool:
        return not self.is_absent(sender, round)

    def rejects(self, node: int, sender: int, round: int) -> bool:
        return False

    def rejoins(self, node: int, round: int) -> Return | None:
        return None


@lru_cache(maxsize=16)  # each round is queried once per node
def _drawn(nodes: int, count: int, seed: int, round: int) -> frozenset[int]:
    generator = numpy_generator(seed, round=round, purpose="participation")
    return frozenset(generator.permutation(nodes)[:count].tolist())
