"""A run whose nodes fail, or rest: who is away stands still, the others go on with whom they hear."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from feda2l.engines.population import Population
from feda2l.equations import Signals
from feda2l.faults.schedule import Comeback, Schedule
from feda2l.rates.base import Rates, Setting
from feda2l.rates.by_node import RatesByNode
from feda2l.round.aggregate import mix_published
from feda2l.simulate.simulation import Simulation
from feda2l.topology import Mixing


@dataclass
class FaultySimulation(Simulation):
    """A simulation under a fault plan.

    - A node that is away does not train, publish, mix or adapt: its row stays as it was after its last round.
    - Those who are there weigh whom they hear with `row_weights`.
    - A node that hears nobody though it has neighbours takes its own row alone, and its rate rule skips the round.
    - Who comes back starts from the weighted mean of its neighbours' last messages and keeps all else that is its own.
    """

    schedule: Schedule = field(kw_only=True)
    messages: dict[str, Tensor] = field(init=False, default_factory=dict)  # what each node published last, by name

    def start_rates(self, setting: Setting) -> Rates:
        return RatesByNode(self.rule, setting)

    @property
    def own_rates(self) -> RatesByNode:
        assert isinstance(self.rates, RatesByNode)
        return self.rates

    def join(self, population: Population, start: int, number: int) -> None:
        super().join(population, start, number)
        if self.schedule.plan.returns:
            self.messages = {"model": torch.zeros_like(population.base[self.rows])}
            if self.buffers == "average":
                for name in self.averaged:
                    self.messages[f"buffers.{name}"] = torch.zeros_like(population.buffers[name][self.rows])

    def present(self, round: int) -> tuple[int, ...]:
        return self.schedule.round(round).present

    def network_in(self, round: int) -> Mixing:
        return self.schedule.round(round).mixing

    @property
    def used_momentum(self) -> float:
        """Of a node that is there: a schedule of one that is away stands still."""
        own = self.own_rates.own[self.present(self.round + 1)[0]].momentum
        return self.momentum if own is None else own

    def rejoin(self) -> None:
        round, plan = self.round + 1, self.schedule.plan
        for node, comeback in self.schedule.comebacks(round).items():
            self._take_up(node, comeback)
        back = [node for node in self.present(round) if plan.away(node, round - 1)]
        self.own_rates.skip(round - 1, back)  # the rounds that it missed have passed: schedules follow the network's

    def mix(self) -> None:
        """As ever, with the network that is left; whatever that does to those who are away is undone."""
        absent = sorted(set(range(self.nodes)) - set(self.present(self.round + 1)))
        before = [(values, values[absent]) for values in self._states()] if absent else []
        super().mix()
        for values, rows in before:
            values[absent] = rows

    def keep(self, sent: dict[str, Tensor], mixing: Mixing) -> None:
        """What the others can still ask for: the message of the round's last exchange, of those who published one."""
        if not self.messages:
            return
        last = {"model": sent["model"]} | {
            name: self.population.buffers[name.removeprefix("buffers.")][self.rows]
            for name in self.messages
            if name != "model"
        }
        if self.algorithm.gossip > 1:
            last = mix_published(mixing, self.round + 1, last, self.algorithm.gossip - 1)
        there = list(self.present(self.round + 1))
        for name, values in last.items():
            self.messages[name][there] = values[there]

    def kept(self) -> dict[str, Tensor]:
        named = super().kept()
        named |= {f"message.{name}": values for name, values in self.messages.items() if name != "model"}
        if "model" in self.messages:
            slots = self.population.layout.slots
            named |= {f"message.{slot.name}": slot.view(self.messages["model"]) for slot in slots}
        return named

    def tick(self) -> None:
        if self.clock is not None:
            round = self.round + 1
            self.clock.round(round, self.message, self.algorithm.gossip, self.present(round))

    def adapt(self, sigma: Tensor) -> dict[str, Any]:
        """Only who mixed with somebody has something to observe; who is away has nothing to record."""
        population, rates = self.population, self.own_rates
        zeta = self.columns.stability(population.trained[self.rows], population.base[self.rows])
        self.round += 1
        found = self.schedule.round(self.round)
        there = list(found.present)
        before, multiplier = rates.rates, rates.multiplier.clone()
        rates.step(self.round, Signals(sigma, zeta, self.moved), [node for node in there if node not in found.alone])
        rates.skip(self.round, sorted(found.alone))
        self.note_multipliers(multiplier)
        layers = {"rate": before, "multiplier": multiplier, "sigma": sigma, "zeta": zeta}
        records: dict[str, Any] = {}
        for name, values in layers.items():
            records[name] = [[None] * len(self.layers)] * self.nodes
            for node, row in zip(there, values[there].tolist(), strict=True):
                if not (name == "zeta" and node in found.alone):  # nothing was aggregated
                    records[name][node] = row
        return records

    def bytes_sent(self) -> list[int]:
        """What arrives, broken messages included; nothing is sent to who is away, or cut off, or no longer waits."""
        each = self.message * self.algorithm.gossip
        return [count * each for count in self.schedule.round(self.round).sent]

    def mail(self) -> dict[str, list[int | None]]:
        found = self.schedule.round(self.round)
        there = set(found.present)

        def of_those_there(values: tuple[int, ...]) -> list[int | None]:
            return [value if node in there else None for node, value in enumerate(values)]

        return {"heard": of_those_there(found.heard), "rejected": of_those_there(found.rejected)}

    def _states(self) -> list[Tensor]:
        """All that mixing may change, [nodes, ...] each."""
        population = self.population
        shaped = [population.base, population.steps, *population.memory.values(), *population.buffers.values()]
        return [values[self.rows] for values in shaped] + [*self.state.values(), *self.notes.values()]

    def _take_up(self, node: int, comeback: Comeback) -> None:
        """The node's base, and its averaged statistics, become the weighted mean of messages."""
        population = self.population
        targets = {"model": population.base} | {f"buffers.{name}": v for name, v in population.buffers.items()}
        for name, rows in self.messages.items():
            targets[name][self.start + node] = _weighted_mean(rows, comeback)


@dataclass
class PartialSimulation(FaultySimulation):
    """A simulation in which only some nodes take part in a round; those who rest have a model that counts as any."""

    @property
    def counted(self) -> Sequence[int]:
        return range(self.nodes)


def _weighted_mean(rows: Tensor, comeback: Comeback) -> Tensor:
    """Term by term in ascending id, each product rounded and then each sum: the bits that every runtime has."""
    weights = comeback.weights.to(rows)
    total = rows[comeback.ids[0]] * weights[0]
    for id, weight in zip(comeback.ids[1:], weights[1:], strict=True):
        total += rows[id] * weight
    return total
