"""A run in progress: its settings (`RunPlan`), its state (`RunState`) and its exchange of states (`Exchange`)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from feda2l.algorithms import Algorithm, NodeStates
from feda2l.data.samples import Samples
from feda2l.layers import Layer
from feda2l.rates.base import Rates, Rule, Setting, SignalSettings
from feda2l.round.collectives import Collectives, OneProcess
from feda2l.round.exchange import OPTIMIZER, STATISTICS, Exchange, NodeTensors
from feda2l.round.population import Population, is_batch_count
from feda2l.round.signals import LayerReductions
from feda2l.round.train import Hyperparameters, Training
from feda2l.topology import Mixing

MomentumState = Literal["keep", "reset", "average"]
ERRORS = ("mse", "mae")  # of a sample: the mean squared and the mean absolute error over its numbers


@dataclass(frozen=True)
class RunData:
    """The part of a run that an engine needs: its training, its nodes' samples, its test set."""

    training: Training
    shards: list[Tensor]  # the training samples of each node
    local: list[Tensor]  # the samples of each node that it does not train on
    test: Samples
    classes: int | None  # None: regression
    tests: list[Tensor] | None = None  # the test samples of each node; None: every node uses the whole test set
    ids: tuple[int, ...] = ()  # the nodes' numbers in the network, which seed their draws; empty: 0, 1, 2, ...

    def id(self, node: int) -> int:
        """Return the number in the network of the run's `node`-th node."""
        return self.ids[node] if self.ids else node

    def logit_offset(self, node: int) -> Tensor | None:
        """Return what the algorithm adds to a node's outputs, [classes], from the label shares of its samples."""
        return None if self._logit_offsets is None else self._logit_offsets[node]

    @cached_property
    def _logit_offsets(self) -> list[Tensor] | None:
        # computed once: the label shares of a node do not change in a run
        algorithm = self.training.algorithm
        if not algorithm.overrides("logit_offset"):
            return None
        assert self.classes is not None
        labels = [self.training.samples.targets(shard).cpu() for shard in self.shards]
        return [algorithm.logit_offset(torch.bincount(one, minlength=self.classes) / len(one)) for one in labels]

    @property
    def tallied(self) -> int:
        """The number of sums that a score keeps beside the loss."""
        return len(ERRORS) if self.classes is None else self.classes


class TrainJob(NamedTuple):
    """Train one row: a node of a run, in a round, with these rates; `epochs` overrides `training.epochs`."""

    row: int
    run: int
    node: int
    round: int
    hyper: Hyperparameters
    epochs: int | None = None


@dataclass(frozen=True)
class RunPlan:
    """The settings of a run, which do not change while it runs."""

    name: str
    rounds: int
    member: RunData
    layers: list[Layer]
    mixing: Mixing
    rule: Rule
    setting: Setting
    momentum: float
    momentum_state: MomentumState
    buffers: Literal["average", "local", "recalibrate"]
    averaged: list[str]  # the statistics that `buffers = "average"` mixes, by name
    every: int  # rounds between two evaluations
    on: Literal["global", "local", "both"]
    network: int  # nodes of the whole network; more than `nodes` where some are in other processes
    theory_every: int | None = None  # rounds between estimates of the bounds' quantities

    @property
    def algorithm(self) -> Algorithm:
        return self.member.training.algorithm

    @property
    def nodes(self) -> int:
        """The number of nodes in this process."""
        return len(self.member.shards)

    @property
    def ids(self) -> tuple[int, ...]:
        """The number in the network of each node: 0, 1, 2, ... if the run is the whole network."""
        return tuple(self.member.id(node) for node in range(self.nodes))

    @property
    def samples(self) -> Tensor:
        """The number of training samples of each node."""
        return torch.tensor([len(shard) for shard in self.member.shards], dtype=torch.float64)

    @property
    def steps(self) -> list[int]:
        """The number of local steps of each node in a round."""
        return [self.member.training.steps(len(shard)) for shard in self.member.shards]

    def due_in(self, round: int) -> bool:
        """Return whether this round is evaluated."""
        return round % self.every == 0 or round == self.rounds

    def theory_due_in(self, round: int) -> bool:
        """Return whether the quantities of the convergence bounds are estimated in this round, as in round 1."""
        return self.theory_every is not None and (round - 1) % self.theory_every == 0


@dataclass
class RunState:
    """The state of a run. A checkpoint holds this and the exchange's state, and nothing else.

    The matrices belong to the population; every property returns this run's rows of one of them, [nodes, ...].
    `base` is B before a round and A after it; `trained` is T and is not kept between rounds.
    """

    population: Population
    rows: slice
    rates: Rates
    small_state: dict[str, Tensor]  # the algorithm's scalar state, by name
    algorithm_state_names: tuple[str, ...]  # names of the algorithm state with the shape of the parameters
    round: int = 0  # completed rounds

    @property
    def base(self) -> Tensor:
        return self.population.base[self.rows]

    @property
    def trained(self) -> Tensor:
        return self.population.trained[self.rows]

    @property
    def steps(self) -> Tensor:
        return self.population.steps[self.rows]

    @property
    def optimizer_state(self) -> dict[str, Tensor]:
        """The optimizer's state."""
        return {kind: values[self.rows] for kind, values in self.population.optimizer_state.items()}

    @property
    def algorithm_state(self) -> dict[str, Tensor]:
        """The algorithm state with the shape of the parameters."""
        return {name: self.population.algorithm_state[name][self.rows] for name in self.algorithm_state_names}

    @property
    def buffers(self) -> dict[str, Tensor]:
        return {name: values[self.rows] for name, values in self.population.buffers.items()}

    def models(self) -> list[Tensor]:
        """Return all that a node's outputs depend on: parameters and buffers.

        The number of batches that a node has seen is not included: it depends on the shard even where models are equal.
        """
        return [self.base, *(values for name, values in self.buffers.items() if not is_batch_count(name))]

    def reset_optimizer(self) -> None:
        for optimizer_state in self.optimizer_state.values():
            optimizer_state.zero_()
        self.steps.zero_()  # Adam corrects its averages by the number of steps

    def mixed(self) -> list[Tensor]:
        """Return all tensors that aggregation may change."""
        matrices = [self.base, self.steps, *self.optimizer_state.values(), *self.buffers.values()]
        return [*matrices, *self.algorithm_state.values(), *self.small_state.values()]


class NonFinite(NamedTuple):
    """Where a value of a run became infinite or NaN; `node` is the number in the network."""

    round: int
    node: int
    layer: str


class ModelComparison(NamedTuple):
    """How the models compare at the end of a round."""

    same: list[int]  # for each node, the first node that holds the same model
    agreed: bool  # whether all nodes that count hold one model


class LiveRun:
    """One run of a pack: its plan, its state and its exchange.

    `network_plan` is the plan of all nodes. It differs from `plan` if the nodes are on several processes, which
    `collectives` connects.
    """

    state: RunState  # from `join` on

    def __init__(
        self,
        plan: RunPlan,
        exchange: Exchange,
        *,
        network_plan: RunPlan | None = None,
        collectives: Collectives | None = None,
    ) -> None:
        self.plan, self.exchange = plan, exchange
        self.network_plan = plan if network_plan is None else network_plan
        self.collectives: Collectives = OneProcess() if collectives is None else collectives
        self.rates = exchange.start_rates(plan.rule, plan.setting)  # raises if the rule does not fit
        self.start = self.number = 0  # the first row, and the index in the pack
        self.non_finite: NonFinite | None = None
        self.class_accuracy: list[float | None] | None = None  # set when the last round is evaluated
        self.compared = ModelComparison([], agreed=False)

    def join(self, population: Population, start: int, number: int) -> None:
        """Take the rows of a population from `start` on, at round 0."""
        plan, layout, device = self.plan, population.layout, population.device
        self.start, self.number = start, number
        shares = plan.samples if plan.mixing.weights == "samples" else torch.ones_like(plan.samples)
        self.state = RunState(
            population,
            slice(start, start + plan.nodes),
            self.rates,
            plan.algorithm.small_state(shares, plan.network, len(plan.layers)),
            plan.algorithm.state,
        )
        self.reductions = LayerReductions(layout, plan.layers, plan.rule.measure, device)
        # the disagreement is over all parameters, whatever tensors the rule measures
        self.all_reductions = LayerReductions(layout, plan.layers, SignalSettings(), device)
        self.slots = layout.layer_of_slots(plan.layers)  # the layer of each tensor
        self.parameter_columns = layout.columns().to(device)  # without padding
        self.exchange.join(self.plan, self.state)

    def restart_rates(self, rates: Sequence[float]) -> None:
        """Restart the rate rule with one base rate per node, as a search found them."""
        setting = replace(self.plan.setting, base=1.0, factors=tuple(rates))
        self.state.rates = self.exchange.start_rates(self.plan.rule, setting)

    @property
    def active(self) -> bool:
        return self.non_finite is None and self.state.round < self.plan.rounds

    @property
    def present(self) -> Sequence[int]:
        """The nodes that took part in the last completed round; before round 1, all nodes."""
        return self.exchange.present(self.state.round) if self.state.round else range(self.plan.nodes)

    @property
    def counted(self) -> Sequence[int]:
        """The nodes whose models count in the scores, the mean model and the disagreement."""
        return self.exchange.counted(self.present)

    @property
    def message(self) -> int:
        """The bytes that a node sends to each neighbour in every exchange of a round."""
        plan, population = self.plan, self.state.population
        parameters, width = population.layout.parameters, population.layout.width
        optimizer_state = plan.momentum_state == "average" and (
            plan.momentum > 0 or len(population.optimizer_state) > 1
        )
        attached = parameters * len(population.optimizer_state) * optimizer_state
        if plan.buffers == "average":
            attached += sum(population.buffers[name][0].numel() for name in plan.averaged)
        return plan.algorithm.message_bytes(parameters, width) + 4 * attached

    def momentum(self, nodes: Sequence[int]) -> float:
        """Return the optimizer's momentum in the coming round, at nodes that take part in it."""
        of_rule = self.state.rates.momentum_of(nodes[0])
        return self.plan.momentum if of_rule is None else of_rule

    def jobs(self, nodes: Sequence[int] | None = None) -> list[TrainJob]:
        """Return the training jobs of the coming round, one for each of these nodes (default: all)."""
        nodes = range(self.plan.nodes) if nodes is None else nodes
        rates, momentum = self.state.rates.rates.tolist(), self.momentum(nodes)
        return [
            TrainJob(
                self.start + node,
                self.number,
                node,
                self.state.round + 1,
                Hyperparameters([rates[node][layer] for layer in self.slots], momentum),
            )
            for node in nodes
        ]

    def view(self, nodes: Sequence[int]) -> NodeStates:
        """Return the states of the nodes for the algorithm's hooks."""
        state, plan, layout = self.state, self.plan, self.state.population.layout
        return NodeStates(
            state.round + 1,
            plan.member.training.seed,
            plan.ids,
            state.base,
            state.trained,
            state.algorithm_state,
            state.small_state,
            state.rates.rates,
            torch.tensor(plan.steps, dtype=torch.float64),
            self.momentum(nodes),
            self.parameter_columns,
            self.all_reductions.movement,
            lambda values: layout.expand(values[:, self.slots].to(state.base)),
            plan.momentum_state,
        )

    def attached(self) -> NodeTensors:
        """Return what is sent with the published rows: averaged optimizer state and averaged statistics."""
        plan, state = self.plan, self.state
        attached: NodeTensors = {}
        if plan.momentum_state == "average":
            attached |= {f"{OPTIMIZER}{kind}": values for kind, values in state.optimizer_state.items()}
        return attached | self.statistics()

    def statistics(self) -> NodeTensors:
        """Return the running statistics that travel."""
        if self.plan.buffers != "average":
            return {}
        buffers = self.state.buffers
        return {f"{STATISTICS}{name}": buffers[name] for name in self.plan.averaged}
