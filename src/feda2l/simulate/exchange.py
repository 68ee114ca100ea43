"""Exchange within one process: all nodes take part (`AllNodes`), or some are absent (`SomeNodes`)."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import final

import torch
from torch import Tensor

from feda2l.faults.schedule import PresenceSchedule, Rejoining
from feda2l.network import Clock
from feda2l.rates.base import Rates, Rule, Setting
from feda2l.rates.by_node import RatesByNode
from feda2l.round.exchange import STATISTICS, MessageCounts, NodeTensors, Received, mix_rows
from feda2l.round.run import LiveRun, RunPlan, RunState
from feda2l.topology import Mixing


class Published:
    """The rows published in this round, and the weights with which nodes mix them."""

    def __init__(self, samples: Tensor) -> None:
        self.samples = samples
        self.round = 0
        self.rows: NodeTensors = {}
        self.mixing: Mixing

    def publish(self, round: int, rows: NodeTensors, step: int, mixing: Mixing) -> None:
        """Set the rows of an exchange; the first exchange of a round sets the topology's weights."""
        self.round, self.rows = round, rows
        if step == 0:
            self.mixing = mixing

    def received(self, nodes: Sequence[int]) -> Iterator[Received]:
        for node in nodes:
            ids, _ = self.mixing.row(node, self.round)
            weights = self.mixing.given(node, self.round)
            yield Received(node, ids, weights, self.samples[list(ids)], partial(self._states, ids))

    def _states(self, ids: tuple[int, ...], name: str) -> Tensor:
        # no copy if all are wanted: copying all models would take most of a small network's mixing time
        return self.rows[name] if len(ids) == len(self.samples) else self.rows[name][list(ids)]

    def reweigh(self, weights: Mapping[int, Tensor]) -> None:
        nodes = range(self.mixing.topology.nodes)
        given = [weights[node] if node in weights else self.mixing.given(node, self.round) for node in nodes]
        self.mixing = self.mixing.reweighed(given, self.round)

    def mix(self, into: NodeTensors) -> NodeTensors:
        rows, self.rows = self.rows, {}  # frees the rows as soon as they are mixed
        return mix_rows(self.mixing, self.round, rows, into)


@final
class AllNodes:
    """All nodes are in this process and take part in every round."""

    def __init__(self, mixing: Mixing, samples: Tensor, clock: Clock | None = None) -> None:
        self.mixing, self.clock = mixing, clock
        self.published = Published(samples)
        self.received, self.reweigh, self.mix = self.published.received, self.published.reweigh, self.published.mix

    def start_rates(self, rule: Rule, setting: Setting) -> Rates:
        return rule.start(setting)

    def join(self, plan: RunPlan, state: RunState) -> None: ...

    def present(self, round: int) -> Sequence[int]:
        return range(self.mixing.topology.nodes)

    def counted(self, present: Sequence[int]) -> Sequence[int]:
        return present

    def begin(self, run: LiveRun, nodes: Sequence[int]) -> None: ...

    def publish(self, run: LiveRun, rows: NodeTensors, step: int) -> bool:
        self.published.publish(run.state.round + 1, rows, step, self.mixing)
        return True

    def mixed(self, round: int, nodes: Sequence[int]) -> Sequence[int]:
        return nodes

    def end(self, run: LiveRun, nodes: Sequence[int]) -> None:
        if self.clock is not None:
            self.clock.round(run.state.round + 1, run.message, run.plan.algorithm.gossip)

    def bytes_sent(self, run: LiveRun) -> list[int]:
        return bytes_sent(self.mixing, run)

    def message_counts(self, round: int) -> MessageCounts | None:
        return None

    def checkpoint_state(self) -> dict[str, Tensor]:
        return {} if self.clock is None else {"clock": self.clock.now}


@final
class SomeNodes:
    """Some nodes are absent in some rounds, because of a fault plan or partial participation.

    - An absent node does not train, publish, mix or adapt.
    - A present node weighs the nodes that it receives from with `row_weights`.
    - A node that has neighbours but receives nothing keeps its own state, and its rate rule skips the round.
    - A node that returns starts from the weighted mean of its neighbours' last messages and keeps its other state.

    With `resting` the models of absent nodes count in scores and means, because these nodes did not fail.
    """

    def __init__(
        self, schedule: PresenceSchedule, samples: Tensor, clock: Clock | None = None, *, resting: bool
    ) -> None:
        self.schedule, self.clock, self.resting = schedule, clock, resting
        self.published = Published(samples)
        self.received, self.reweigh, self.mix = self.published.received, self.published.reweigh, self.published.mix
        self.messages: dict[str, Tensor] = {}  # the last published rows of each node, by name

    def start_rates(self, rule: Rule, setting: Setting) -> Rates:
        self.rates = RatesByNode(rule, setting)
        return self.rates

    def join(self, plan: RunPlan, state: RunState) -> None:
        if self.schedule.plan.returns:
            self.slots = state.population.layout.slots
            self.messages = {"model": torch.zeros_like(state.base)}
            if plan.buffers == "average":
                buffers = state.buffers
                self.messages |= {f"{STATISTICS}{name}": torch.zeros_like(buffers[name]) for name in plan.averaged}

    def present(self, round: int) -> Sequence[int]:
        return self.schedule.round(round).present

    def counted(self, present: Sequence[int]) -> Sequence[int]:
        return range(self.schedule.nodes) if self.resting else present

    def begin(self, run: LiveRun, nodes: Sequence[int]) -> None:
        state, plan = run.state, self.schedule.plan
        round = state.round + 1
        for node, rejoining in self.schedule.rejoining_nodes(round).items():
            for name, rows in self.messages.items():
                values = state.base if name == "model" else state.buffers[name.removeprefix(STATISTICS)]
                values[node] = _weighted_mean(rows, rejoining)
        # rate schedules count the network's rounds, including those that a node missed
        self.rates.skip(round - 1, [node for node in nodes if plan.is_absent(node, round - 1)])

    def publish(self, run: LiveRun, rows: NodeTensors, step: int) -> bool:
        schedule = self.schedule.round(run.state.round + 1)
        self.published.publish(run.state.round + 1, rows, step, schedule.mixing)
        if step == run.plan.algorithm.gossip - 1:  # only the last exchange can be used by a node that returns
            nodes = list(schedule.present)
            for name, values in self.messages.items():
                values[nodes] = rows[name][nodes]
        return True

    def mixed(self, round: int, nodes: Sequence[int]) -> Sequence[int]:
        alone = self.schedule.round(round).alone
        return [node for node in nodes if node not in alone]

    def end(self, run: LiveRun, nodes: Sequence[int]) -> None:
        if self.clock is not None:
            self.clock.round(run.state.round + 1, run.message, run.plan.algorithm.gossip, nodes)

    def bytes_sent(self, run: LiveRun) -> list[int]:
        """Count the messages that arrive, broken ones included; none go to a node that is absent or unreachable."""
        size = run.message * run.plan.algorithm.gossip
        return [count * size for count in self.schedule.round(run.state.round).sent]

    def message_counts(self, round: int) -> MessageCounts | None:
        schedule = self.schedule.round(round)
        present = set(schedule.present)

        def of_present(values: tuple[int, ...]) -> list[int | None]:
            return [value if node in present else None for node, value in enumerate(values)]

        return MessageCounts(of_present(schedule.received), of_present(schedule.rejected))

    def checkpoint_state(self) -> dict[str, Tensor]:
        named = {} if self.clock is None else {"clock": self.clock.now}
        for name, values in self.messages.items():
            if name == "model":
                named |= {f"message.{slot.name}": slot.view(values) for slot in self.slots}
            else:
                named[f"message.{name}"] = values
        return named


def bytes_sent(mixing: Mixing, run: LiveRun) -> list[int]:
    """Count the bytes that each node of the network sends in a round: a message per exchange and neighbour.

    Counted are the algorithm's published rows, averaged statistics and averaged optimizer state. A rate rule adds
    nothing. Padding does not travel. Sample counts travel once and are not counted.
    """
    size = run.message * run.plan.algorithm.gossip
    return [count * size for count in mixing.messages(run.state.round).tolist()]


def _weighted_mean(rows: Tensor, rejoining: Rejoining) -> Tensor:
    """Compute a weighted mean term by term in ascending id; every runtime rounds it in this order."""
    weights = rejoining.weights.to(rows)
    total = rows[rejoining.ids[0]] * weights[0]
    for id, weight in zip(rejoining.ids[1:], weights[1:], strict=True):
        total += rows[id] * weight
    return total
