"""One run of a pack: its rows of the population, who they talk to, and how their rates move."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from feda2l.algorithms import Algorithm, Neighbourhood, Own
from feda2l.engines.engine import Member, TrainJob
from feda2l.engines.population import Population, is_batch_count
from feda2l.equations import Signals
from feda2l.layers import Layer
from feda2l.network import Clock
from feda2l.rates.base import Measure, Rates, Rule, Setting
from feda2l.round.adapt import Columns
from feda2l.round.aggregate import MomentumState, aggregate, aggregate_in_place, mix_published, settle_memory
from feda2l.round.exchange import bytes_sent
from feda2l.round.train import Hyperparameters
from feda2l.simulate.exact_mean import exact_mean
from feda2l.topology import Mixing

T = TypeVar("T")
Hear = Callable[[str, Sequence[int]], Tensor]  # what was published under a name, of these nodes of the network


@dataclass(frozen=True)
class Divergence:
    """Where a run became infinite or not a number."""

    round: int
    node: int
    layer: str


@dataclass
class Simulation:
    """A run: what it was told, and how far it has come (`round` counts completed rounds)."""

    name: str
    rounds: int
    member: Member
    layers: list[Layer]
    mixing: Mixing
    rule: Rule
    setting: Setting
    momentum: float
    momentum_state: MomentumState
    buffers: Literal["average", "local", "recalibrate"]
    averaged: list[str]  # names of the statistics that `average` mixes
    every: int
    on: Literal["global", "local", "both"]
    network: int  # how many nodes the whole network has: as many as here, unless others are elsewhere
    clock: Clock | None = None  # of the whole network, where its time is simulated
    round: int = 0
    diverged: Divergence | None = None
    class_accuracy: list[float | None] | None = None  # of the last round, once it is evaluated
    notes: dict[str, Tensor] = field(init=False)  # the algorithm's small state
    rates: Rates = field(init=False)
    start: int = 0  # its first row, and its number in the pack: set when the pack is made
    number: int = 0
    population: Population = field(init=False)
    columns: Columns = field(init=False)
    all_columns: Columns = field(init=False)
    slots: list[int] = field(init=False)  # the layer of each tensor
    parameter_columns: Tensor = field(init=False)  # those that are not padding
    moved: Tensor | None = field(init=False)  # ||T - B|| of each layer, where the rule asks for it
    multiplier_range: tuple[float, float] = field(init=False)  # over nodes and layers, of the last round
    multiplier_change: float = field(init=False)  # the largest, to the coming round
    same: list[int] = field(init=False)  # for each node the first that holds the same model

    def __post_init__(self) -> None:
        self.rates = self.start_rates(self.setting)

    def start_rates(self, setting: Setting) -> Rates:
        return self.rule.start(setting)

    def join(self, population: Population, start: int, number: int) -> None:
        """Take rows `start`... of a population."""
        self.start, self.number = start, number
        self.population = population
        self.columns = Columns(population.layout, self.layers, self.rule.measure, population.device)
        # the disagreement is over all parameters, whatever the rule measures
        self.all_columns = Columns(population.layout, self.layers, Measure(), population.device)
        self.slots = population.layout.layer_of_slots(self.layers)
        self.parameter_columns = population.layout.columns().to(population.device)
        shares = self.samples if self.mixing.weights == "samples" else torch.ones_like(self.samples)
        self.notes = self.algorithm.note(shares, self.network, len(self.layers))

    def rebase(self, rates: list[float]) -> None:
        """Start the rate rule again from base rates that were found, one a node."""
        setting = replace(self.setting, base=1.0, factors=tuple(rates))
        self.rates = self.start_rates(setting)

    @property
    def algorithm(self) -> Algorithm:
        return self.member.training.algorithm

    @property
    def samples(self) -> Tensor:
        """How many samples each node trains on."""
        return torch.tensor([len(shard) for shard in self.member.shards], dtype=torch.float64)

    @property
    def state(self) -> dict[str, Tensor]:
        """The algorithm's parameter-shaped state: this run's rows of each matrix."""
        return {name: self.population.state[name][self.rows] for name in self.algorithm.memory}

    @property
    def nodes(self) -> int:
        return len(self.member.shards)

    @property
    def ids(self) -> tuple[int, ...]:
        """The network's number of each node: 0, 1, 2, ... where the run is the whole network."""
        return tuple(self.member.id(node) for node in range(self.nodes))

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.nodes)

    @property
    def active(self) -> bool:
        return self.diverged is None and self.round < self.rounds

    def present(self, round: int) -> Sequence[int]:
        """Who takes part in a round: everyone, unless there are faults or only some are drawn."""
        return range(self.nodes)

    @property
    def there(self) -> Sequence[int]:
        """Who took part in the round that was just completed; before the first, everyone."""
        return self.present(self.round) if self.round else range(self.nodes)

    @property
    def counted(self) -> Sequence[int]:
        """Whose models the scores, the mean model and the disagreement are of."""
        return self.there

    @property
    def agreed(self) -> bool:
        """Do all nodes that count hold the same model?"""
        return len({self.same[node] for node in self.counted}) == 1

    @property
    def due(self) -> bool:
        """Is the round that was just completed evaluated?"""
        return self.due_in(self.round)

    def due_in(self, round: int) -> bool:
        return round % self.every == 0 or round == self.rounds

    @property
    def message(self) -> int:
        """How many bytes a node sends to each neighbour every time the round mixes."""
        population = self.population
        parameters, width = population.layout.parameters, population.layout.width
        memory = self.momentum_state == "average" and (self.momentum > 0 or len(population.memory) > 1)
        beside = parameters * len(population.memory) * memory
        if self.buffers == "average":
            beside += sum(population.buffers[name][0].numel() for name in self.averaged)
        return self.algorithm.message_bytes(parameters, width) + 4 * beside

    def rejoin(self) -> None:
        """Before a round: bring back those that were away."""

    def jobs(self) -> list[TrainJob]:
        """The training of the coming round: one job a node that is there."""
        rates, momentum = self.rates.rates.tolist(), self.used_momentum
        return [
            TrainJob(
                self.start + node,
                self.number,
                node,
                self.round + 1,
                Hyperparameters([rates[node][layer] for layer in self.slots], momentum),
            )
            for node in self.present(self.round + 1)
        ]

    @property
    def used_momentum(self) -> float:
        """The optimiser's momentum in the coming round."""
        return self.momentum if self.rates.momentum is None else self.rates.momentum

    def divergence(self, losses: list[float]) -> Tensor:
        """sigma of the round that was just trained; a state that is not finite ends the run.

        The losses are of those that are there; the sigma of others means nothing.
        """
        base, trained = self.population.base[self.rows], self.population.trained[self.rows]
        sigma = self.columns.divergence(base, trained)
        self.moved = self.columns.movement(base, trained) if self.rule.measure.movement else None
        there = list(self.present(self.round + 1))
        broken = (~(sigma[there].isfinite() & torch.tensor(losses).isfinite().unsqueeze(1))).nonzero()
        if len(broken):
            place, layer = broken[0].tolist()
            self.diverged = Divergence(self.round + 1, there[place], self.layers[layer].name)
        return sigma

    def mix(self) -> None:
        """T -> A, and what travels beside the parameters."""
        population, round, algorithm = self.population, self.round + 1, self.algorithm
        base, trained = population.base[self.rows], population.trained[self.rows]
        own = self._own()
        sent = algorithm.publish(own)
        mixing = self._reweighed(sent) if algorithm.overrides("weigh") else self.network_in(round)
        self.keep(sent, mixing)
        if algorithm.averages_plainly:
            aggregate(mixing, round, trained, base)
        else:
            base.copy_(algorithm.accept(own, sent, mix_published(mixing, round, sent, algorithm.gossip)))
        for _ in range(algorithm.gossip):
            settle_memory(self.momentum_state, mixing, round, [m[self.rows] for m in population.memory.values()])
            if self.buffers == "average":
                aggregate_in_place(mixing, round, *(population.buffers[name][self.rows] for name in self.averaged))
        if self.momentum_state == "reset":
            population.steps[self.rows] = 0  # Adam corrects its averages by their age

    def network_in(self, round: int) -> Mixing:
        """Who hears whom in a round."""
        return self.mixing

    def hears(self, sent: dict[str, Tensor], mixing: Mixing) -> Hear:
        """What was published, by name and by the network's nodes."""
        # all of them are what is there: a copy of all models for each node is most of a small network's mixing
        return lambda name, ids: sent[name] if len(ids) == len(sent[name]) else sent[name][list(ids)]

    def samples_of_all(self) -> Tensor:
        """How many samples each of the network's nodes trains on."""
        return self.samples

    def of_all(self, own: list[T]) -> list[T]:
        """A value of each node here -> of each of the network's nodes; the same where all are here."""
        return own

    def keep(self, sent: dict[str, Tensor], mixing: Mixing) -> None:
        """Remember what was published, for those who come back later; nobody does where there are no faults."""

    def kept(self) -> dict[str, Tensor]:
        """What a checkpoint holds beside models, memory and rates, [nodes, ...] each."""
        return {} if self.clock is None else {"clock": self.clock.now}

    def _own(self) -> Own:
        population, training = self.population, self.member.training
        steps = [training.steps(len(shard)) for shard in self.member.shards]
        return Own(
            self.round + 1,
            training.seed,
            self.ids,
            population.base[self.rows],
            population.trained[self.rows],
            self.state,
            self.notes,
            self.rates.rates,
            torch.tensor(steps, dtype=torch.float64),
            self.used_momentum,
            self.parameter_columns,
            self.all_columns.movement,
            lambda values: population.layout.expand(values[:, self.slots].to(population.base)),
        )

    def _reweighed(self, sent: dict[str, Tensor]) -> Mixing:
        """The mixing with the weights that each node gives those it hears.

        Nodes that hear the same from the same state come to the same: on a full graph one computes for all.
        """
        round, samples, weights = self.round + 1, self.samples_of_all(), list[Tensor]()
        mixing, own_ids = self.network_in(round), self.ids
        hear = self.hears(sent, mixing)
        notes = [values.nan_to_num(nan=-torch.inf) for values in self.notes.values()]  # not a number equals nothing
        same = first_equal([self.population.base[self.rows], *notes])
        seen: dict[tuple[int, tuple[int, ...]], int] = {}
        for node in range(self.nodes):
            ids, _ = mixing.row(node, round)
            twin = seen.setdefault((same[node], ids), node)
            if twin != node:
                weights.append(weights[twin])
                for values in self.notes.values():
                    values[node] = values[twin]
                continue
            near = Neighbourhood(
                own_ids[node],
                ids,
                mixing.given(node, round),
                samples[list(ids)],
                self.population.base[self.start + node],
                {name: values[node] for name, values in self.notes.items()},
                partial(_of_those, hear, ids),
                self.all_columns.movement,
            )
            weights.append(self.algorithm.weigh(near))
        return mixing.reweighed(weights, round)

    def tick(self) -> None:
        """Let the round that was just mixed take its simulated time."""
        if self.clock is not None:
            self.clock.round(self.round + 1, self.message, self.algorithm.gossip)

    def adapt(self, sigma: Tensor) -> dict[str, Any]:
        """Measure zeta, set the next rates, complete the round; what there is to record of the layers."""
        population = self.population
        zeta = self.columns.stability(population.trained[self.rows], population.base[self.rows])
        self.round += 1
        rates, multiplier = self.rates.rates, self.rates.multiplier.clone()
        self.rates.step(self.round, Signals(sigma, zeta, self.moved))
        self.note_multipliers(multiplier)
        layers = {"rate": rates, "multiplier": multiplier, "sigma": sigma, "zeta": zeta}
        return {name: values.tolist() for name, values in layers.items()}

    def note_multipliers(self, trained_with: Tensor) -> None:
        """Remember the range of the round's multipliers and their largest change; of those who were there."""
        there = list(self.there)
        own = trained_with[there]
        self.multiplier_range = float(own.min()), float(own.max())
        self.multiplier_change = float((self.rates.multiplier[there] - own).abs().max())

    def bytes_sent(self) -> list[int]:
        sent: list[int] = bytes_sent(self.mixing, self.round, self.message * self.algorithm.gossip).tolist()
        return sent

    def mail(self) -> dict[str, list[int | None]]:
        """What else a round's record says of each node: of how many others it took the message, where some may fail."""
        return {}

    def compare(self) -> None:
        """Find which nodes hold the same model; where not all do, write the mean model where the engine finds it."""
        population = self.population
        self.find_same()
        if self.agreed:
            return
        population.mean[self.number] = self.mean(population.base)
        for name, values in population.buffers.items():
            population.mean_buffers[name][self.number] = self.mean(values)

    def find_same(self) -> None:
        """For each node the first that holds the same model."""
        self.same = first_equal(self.models())

    def models(self) -> list[Tensor]:
        """What a node's answers come from, [nodes, ...] each: parameters and buffers.

        Not how many batches it has seen: that differs with the size of its shard, also where models are equal.
        """
        read = [values for name, values in self.population.buffers.items() if not is_batch_count(name)]
        return [matrix[self.rows] for matrix in (self.population.base, *read)]

    def mean(self, matrix: Tensor) -> Tensor:
        """The mean over the nodes that count; of what is counted in whole numbers, the first one's."""
        own = self._of_those_counted(matrix)
        return exact_mean(own) if own.is_floating_point() else own[0]

    def disagreement(self) -> Tensor:
        """D of each layer: (1/N) sum_i ||theta_i - mean||^2 of the aggregated models; 0 where all are equal."""
        if self.agreed:
            return torch.zeros(len(self.layers), dtype=torch.float64)
        return self.all_columns.disagreement(
            self._of_those_counted(self.population.base), self.population.mean[self.number]
        )

    def _of_those_counted(self, matrix: Tensor) -> Tensor:
        rows, counted = matrix[self.rows], list(self.counted)
        return rows if len(counted) == self.nodes else rows[counted]


def first_equal(matrices: list[Tensor]) -> list[int]:
    """For each row of the first matrix the first row that is equal to it, there and in every other tensor."""
    width = matrices[0].shape[1]
    probe = matrices[0][:, :: max(1, width // 64)].cpu()  # a few columns tell most models apart
    found: dict[bytes, list[int]] = {}
    first = []
    for row in range(len(probe)):
        alike = found.setdefault(probe[row].numpy().tobytes(), [])
        same = next((other for other in alike if all(torch.equal(m[row], m[other]) for m in matrices)), None)
        if same is None:
            alike.append(row)
        first.append(row if same is None else same)
    return first


def _of_those(hear: Hear, ids: Sequence[int], name: str) -> Tensor:
    return hear(name, ids)
