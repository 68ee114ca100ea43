"""Exchange between ranks: fetch the rows of other ranks that neighbour this rank's nodes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import final

from torch import Tensor

from feda2l.distributed.halo import Halo
from feda2l.network import Clock
from feda2l.rates.base import Rates, Rule, Setting
from feda2l.round.exchange import MessageCounts, NodeTensors, Received, mix_rows, published
from feda2l.round.run import LiveRun, RunPlan, RunState
from feda2l.simulate.exchange import bytes_sent


@final
class NodesOfRank:
    """The exchange for the nodes of one rank. All nodes take part in every round.

    `samples` and `clock` describe the whole network.
    """

    def __init__(self, halo: Halo, samples: Tensor, clock: Clock | None) -> None:
        self.halo, self.samples, self.clock = halo, samples, clock
        self.nodes = range(len(halo.ids))
        self.round = 0
        self.rows: NodeTensors = {}

    def start_rates(self, rule: Rule, setting: Setting) -> Rates:
        return rule.start(setting)

    def join(self, plan: RunPlan, state: RunState) -> None: ...

    def present(self, round: int) -> Sequence[int]:
        return self.nodes

    def counted(self, present: Sequence[int]) -> Sequence[int]:
        return present

    def begin(self, run: LiveRun, nodes: Sequence[int]) -> None: ...

    def publish(self, run: LiveRun, rows: NodeTensors, step: int) -> bool:
        self.round, self.rows = run.state.round + 1, rows
        return True

    def received(self, nodes: Sequence[int]) -> Iterator[Received]:
        """Fetch the rows at all ranks together, in the same order. `mix` reuses them."""
        received = {name: self.halo.receive(values, self.round) for name, values in published(self.rows).items()}
        for node in nodes:
            id = int(self.halo.ids[node])
            ids, _ = self.halo.mixing.row(id, self.round)
            weights = self.halo.mixing.given(id, self.round)
            yield Received(node, ids, weights, self.samples[list(ids)], partial(_rows, received, ids))

    def reweigh(self, weights: Mapping[int, Tensor]) -> None:
        self.halo.reweigh([weights[node] for node in self.nodes], self.round)

    def mix(self, into: NodeTensors) -> NodeTensors:
        mixed = mix_rows(self.halo, self.round, self.rows, into)
        self.rows = {}
        self.halo.forget()
        return mixed

    def mixed(self, round: int, nodes: Sequence[int]) -> Sequence[int]:
        return nodes

    def end(self, run: LiveRun, nodes: Sequence[int]) -> None:
        self.halo.end_round()
        if self.clock is not None:
            self.clock.round(run.state.round + 1, run.message, run.plan.algorithm.gossip)

    def bytes_sent(self, run: LiveRun) -> list[int]:
        return bytes_sent(self.halo.mixing, run)

    def message_counts(self, round: int) -> MessageCounts | None:
        return None

    def checkpoint_state(self) -> dict[str, Tensor]:
        return {} if self.clock is None else {"clock": self.clock.now}


def _rows(received: Mapping[str, Callable[[Sequence[int]], Tensor]], ids: Sequence[int], name: str) -> Tensor:
    """Return the published rows `name` of these nodes."""
    return received[name](ids)
