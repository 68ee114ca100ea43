"""Turn a spec into a run: assigned samples, a model, a graph, a rate rule. All errors in a spec are raised here."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feda2l.algorithms import Algorithm, Task
from feda2l.data.samples import Dataset
from feda2l.engines.engine import Engine
from feda2l.errors import FedA2LError
from feda2l.faults.plan import FaultPlan
from feda2l.faults.schedule import PresenceSchedule
from feda2l.imports import import_object
from feda2l.layers import Layer, find_layers
from feda2l.models import build
from feda2l.models.pretrained import freeze, load_start
from feda2l.network import Clock, Participation
from feda2l.network.links import DrawnLinks, ListedLinks
from feda2l.network.node_properties import speeds, uplinks
from feda2l.network.profiles import LINKS, LinkProfile
from feda2l.randomness import derive_seed
from feda2l.rates import Setting
from feda2l.round.exchange import Exchange
from feda2l.round.population import Population, averaged_buffers
from feda2l.round.run import LiveRun, RunData, RunPlan
from feda2l.round.train import Loss, Training
from feda2l.runs.assign_samples import assign_samples, count_nodes, local_tests
from feda2l.runs.choose_engine import choose_engine
from feda2l.runs.datasets import Loaded, data_key, default_model
from feda2l.simulate.exchange import AllNodes, SomeNodes
from feda2l.spec.sections import ModelSpec
from feda2l.spec.spec import Spec
from feda2l.topology import Mixing, Topology, build_mixing
from feda2l.topology import build as build_topology

BUILDING = threading.Lock()


@dataclass(frozen=True)
class Assembled:
    """A run that is ready to join a pack: its resolved spec, its plan, its exchange and its initial model."""

    spec: Spec
    live: LiveRun
    model: nn.Module
    dataset: Dataset
    device: torch.device
    faults: FaultPlan | None = None
    participation: bool = False  # True if only some of the nodes take part in each round


class NodeInNetwork(NamedTuple):
    """One node of a network whose other nodes run in other processes.

    `id` is the node's number, `nodes` the size of the network, `part` the index of its share of the data.
    """

    id: int
    nodes: int
    part: int


def assemble(spec: Spec, data: Loaded) -> Assembled:
    """Assemble a run of a whole network. Errors in the spec are raised here, before training starts."""
    spec, model, training = _resolve(spec, data)
    shards, local = assign_samples(spec, data.dataset)
    member = RunData(training, shards, local, data.test, data.dataset.classes, local_tests(spec, data.dataset))
    samples = [len(shard) for shard in shards]
    mixing = _mixing(spec, _graph(spec, spec.topology.name, len(shards)), samples)
    plan = _plan(spec, model, replace(member, ids=tuple(range(len(shards)))), mixing, len(shards))
    faults = FaultPlan.load(spec.faults, plan.nodes) if spec.faults else None
    partly, clock = _network(spec, mixing.topology, training, samples)
    if faults and (partly or clock):
        raise FedA2LError(
            "faults and [network] cannot be combined: the simulation does not model how long nodes wait for a failed "
            "neighbour; remove one of the two"
        )
    attendance = faults or partly
    exchange: Exchange = AllNodes(mixing, plan.samples, clock)
    if attendance:  # an empty plan is skipped, so that the run is identical to one without a plan
        schedule = PresenceSchedule(attendance, mixing, samples)
        exchange = SomeNodes(schedule, plan.samples, clock, resting=not faults)
    live = LiveRun(plan, exchange)
    return Assembled(spec, live, model, data.dataset, data.device, faults, participation=partly is not None)


def assemble_at(place: NodeInNetwork, spec: Spec, data: Loaded, exchange: Exchange) -> Assembled:
    """Assemble a run of one node whose neighbours run in other processes. `exchange` communicates with them.

    The exchange also determines the node's mixing weights, its faults and its time.
    """
    spec, model, training = _resolve(spec, data)
    shards, local = assign_samples(spec, data.dataset)
    tests, part = local_tests(spec, data.dataset), slice(place.part, place.part + 1)
    member = RunData(
        training, shards[part], local[part], data.test, data.dataset.classes, tests and tests[part], (place.id,)
    )
    mixing = build_mixing(_graph(spec, "isolated", 1), spec.topology.weights, [len(member.shards[0])])
    live = LiveRun(_plan(spec, model, member, mixing, place.nodes), exchange)
    return Assembled(spec, live, model, data.dataset, data.device)


def _resolve(spec: Spec, data: Loaded) -> tuple[Spec, nn.Module, Training]:
    """Return the spec with every default filled in, the initial model and the training settings, all checked."""
    dataset = data.dataset
    name = spec.model.name or default_model(spec.data, dataset)
    shape = ModelShape.of(dataset)
    model = new_model(name, spec.seed, shape)
    start = fine_tuned(model, spec.model)
    spec = spec.resolved(
        layers=len(find_layers(model, spec.rates.granularity)),
        model=name,
        nodes=count_nodes(spec, dataset),
        loss=spec.model.loss or shape.loss,
        initial_weights_sha256=start,
    )
    loss = _loss(spec, classes=dataset.classes is not None)
    _try_out(spec, model, loss, data)
    algorithm = spec.algorithm.algorithm
    optimizer = spec.training.optimizer
    momentum = spec.training.momentum if optimizer == "sgd" else 0.0
    algorithm.check(Task(dataset.classes or 0, optimizer, momentum, spec.runtime.precision))
    if dataset.classes is not None and (spec.evaluation.target or 0) > 1:
        raise FedA2LError(f"evaluation.target = {spec.evaluation.target:g}: an accuracy is at most 1")
    training = Training(
        data.train,
        loss,
        optimizer,
        spec.training.weight_decay,
        spec.training.batch_size,
        spec.training.epochs,
        spec.training.drop_last,
        spec.seed,
        algorithm,
    )
    return spec, model, training


def _graph(spec: Spec, name: str, nodes: int) -> Topology:
    topology = spec.topology
    return build_topology(name, nodes, k=topology.k, p=topology.p, seed=topology.seed, file=topology.file)


def _plan(spec: Spec, model: nn.Module, member: RunData, mixing: Mixing, network: int) -> RunPlan:
    layers = find_layers(model, spec.rates.granularity)
    steps = [member.training.steps(len(shard)) for shard in member.shards]
    return RunPlan(
        name=spec.name,
        rounds=spec.rounds,
        member=member,
        layers=layers,
        mixing=mixing,
        rule=spec.rates.rule,
        setting=_setting(spec, layers, model, mixing, member.ids, steps),
        momentum=spec.training.momentum,
        momentum_state=spec.training.momentum_state,
        buffers=spec.algorithm.buffers,
        averaged=averaged_buffers(model),
        every=spec.evaluation.every,
        on=spec.evaluation.on,
        network=network,
        theory_every=spec.evaluation.theory_every,
    )


def populate(runs: Sequence[Assembled]) -> Engine:
    """Create the pack's population, set every row to its initial values, and return the engine that suits the model."""
    first = runs[0]
    rows = sum(run.live.plan.nodes for run in runs)
    state = sorted({name for run in runs for name in run.live.plan.algorithm.state})
    optimizer = first.spec.training.optimizer
    population = Population(first.model, rows, len(runs), optimizer, state=state, device=first.device)
    start = 0
    for number, run in enumerate(runs):
        plan = run.live.plan
        run.live.join(population, start, number)
        for node, id in enumerate(plan.ids):
            model = run.model
            if run.spec.model.init == "per_node" and id:
                model = new_model(run.spec.model.name, run.spec.seed, ModelShape.of(run.dataset), node=id)
            population.place(start + node, model)
        start += plan.nodes
    return choose_engine(runs, population)


def pack_key(spec: Spec) -> tuple[object, ...]:
    """Return a key that is equal for runs that can train as one population."""
    name = spec.model.name or ""
    # frozen layers keep random initial values that depend on the seed, so such models share a pack only with one seed
    seed = spec.seed if ":" in name or spec.model.freeze else None
    runtime = spec.runtime.model_dump(exclude={"checkpoint_seconds"})
    tuned = spec.model.initial_weights, spec.model.reinitialize, spec.model.freeze
    return data_key(spec.data), name, seed, tuned, spec.training.optimizer, *runtime.values()


class ModelShape(NamedTuple):
    """The shapes a model is built for: its input, and the number of classes or the horizon that it predicts."""

    input: tuple[int, ...]
    classes: int | None
    horizon: int | None = None

    @classmethod
    def of(cls, dataset: Dataset) -> "ModelShape":
        if dataset.classes is not None:
            return cls(tuple(dataset.input), dataset.classes)
        numbers = dataset.train.targets(torch.tensor([0])).shape[1:]
        return cls(tuple(dataset.input), None, numbers[0] if numbers else None)

    @property
    def loss(self) -> str:
        return "mse" if self.classes is None else "cross_entropy"


def new_model(name: str | None, seed: int, shape: ModelShape, *, node: int = 0) -> nn.Module:
    """Build the model with a node's initial values. With a common start all nodes use those of node 0."""
    assert name is not None
    with BUILDING, torch.random.fork_rng(devices=[]):  # modules draw from the process's global generator
        torch.default_generator.manual_seed(derive_seed(seed, node=node, purpose="init"))
        return build(name, classes=shape.classes or 0, input=shape.input, horizon=shape.horizon)


def fine_tuned(model: nn.Module, spec: ModelSpec) -> str | None:
    """Load pretrained weights into a new model and freeze layers, in place. Return the sha256 of the weights file."""
    sha256 = None
    if spec.initial_weights is not None:
        sha256 = load_start(
            model, spec.initial_weights, fresh=spec.reinitialize or (), sha256=spec.initial_weights_sha256
        )
    freeze(model, spec.freeze or ())
    return sha256


def _setting(
    spec: Spec, layers: list[Layer], model: nn.Module, mixing: Mixing, ids: tuple[int, ...], steps: list[int]
) -> Setting:
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    return Setting(
        base=spec.rates.base,
        layers=tuple(layer.name for layer in layers),
        nodes=ids,
        horizon=spec.rates.horizon or spec.rounds,
        momentum=spec.training.momentum if spec.training.optimizer == "sgd" else 0.0,
        seed=spec.seed,
        steps=tuple(steps),
        neighbour_steps=tuple(tuple(steps[j] for j in mixing.row(node)[0]) for node in range(len(ids))),
        sizes=tuple(sum(sizes[tensor] for tensor in layer.tensors) for layer in layers),
    )


def _network(
    spec: Spec, graph: Topology, training: Training, samples: list[int]
) -> tuple[Participation | None, Clock | None]:
    """Return the participation draw (None if all nodes take part) and the clock (None if nothing takes time)."""
    network, nodes = spec.network, graph.nodes
    if network is None:
        return None, None
    partly = Participation.of(network.participation, network.min_nodes, nodes, spec.seed)
    if not network.timed:
        return partly, None
    profile = LINKS[network.links] if network.links else LinkProfile("no cost", 0.0)
    if network.latency_ms is not None:
        profile = profile._replace(latency_ms=network.latency_ms, latency_spread=0.0)
    if network.bandwidth_mbit is not None:
        profile = profile._replace(bandwidth_mbit=network.bandwidth_mbit, bandwidth_spread=0.0)
    links = ListedLinks.read(network.file, nodes) if network.file else DrawnLinks(profile, network.seed)
    gradients = np.array([training.gradients(count) for count in samples], dtype=np.float64)
    work = 1e-3 * (network.compute_ms or 0.0) * gradients / speeds(network.speed, nodes, network.seed)
    uplink = uplinks(network.uplink_mbit, profile, nodes, network.seed)
    return partly, Clock(graph, work, links, uplink)


NEEDS: dict[str, tuple[str, Callable[[Mixing], bool]]] = {
    "doubly_stochastic": ("doubly stochastic weights", Mixing.doubly_stochastic),
    "symmetric": ("symmetric weights", Mixing.symmetric),
    "full_or_symmetric": ("a full graph or symmetric weights", lambda W: W.equal_rows() or W.symmetric()),
}


def _check_stable(algorithm: Algorithm, mixing: Mixing) -> None:
    """Raise an error if the algorithm is unstable on this graph. Several mixing steps raise W to a power."""
    if algorithm.overrides("check_graph"):
        eigenvalues = [value**algorithm.gossip for value in mixing.eigenvalues()]
        algorithm.check_graph(eigenvalues, algorithm.outer_betas)


def _mixing(spec: Spec, graph: Topology, samples: list[int]) -> Mixing:
    """Return the mixing weights. Raise an error if the algorithm is not defined on this graph or these weights."""
    wanted, weights = spec.algorithm.algorithm.mixing, spec.topology.weights
    name, where = f'algorithm.name = "{spec.algorithm.name}"', f'topology.name = "{spec.topology.name}"'
    needs, fits = NEEDS.get(wanted, ("", None))
    if not (fits and graph.directed and weights == "metropolis"):
        mixing = build_mixing(graph, weights, samples, push=wanted == "push")
        if fits is None or fits(mixing):
            _check_stable(spec.algorithm.algorithm, mixing)
            return mixing
    if not graph.directed:
        raise FedA2LError(
            f'{name} needs {needs}, but topology.weights = "{weights}" does not give them on {where}; '
            'use topology.weights = "metropolis"',
            see="topology",
        )
    equal = ', topology.weights = "uniform" where all degrees are equal' if wanted == "doubly_stochastic" else ""
    raise FedA2LError(
        f'{name} needs {needs}, but {where} is directed; use an undirected graph{equal} or algorithm.name = "push_sum"',
        see="topology",
    )


LOSSES: dict[str, Loss] = {"cross_entropy": F.cross_entropy, "mse": F.mse_loss, "mae": F.l1_loss}


def _loss(spec: Spec, *, classes: bool) -> Loss:
    name = spec.model.loss
    assert name is not None
    if name in LOSSES:
        if classes != (name == "cross_entropy"):  # without this check the shapes may match and training is meaningless
            kind, fit = ("classes", "cross_entropy") if classes else ("numbers", "mse or mae")
            raise FedA2LError(
                f'model.loss = "{name}": the targets of {spec.data.name} are {kind}; use {fit}', see="own-code"
            )
        return LOSSES[name]
    if ":" not in name:
        raise FedA2LError(
            f'model.loss = "{name}": must be {", ".join(LOSSES)} or "package.module:function"', see="own-code"
        )
    loss: Loss = import_object(name, "model.loss")
    return loss


def _try_out(spec: Spec, model: nn.Module, loss: Loss, data: Loaded) -> None:
    """Pass two samples through the model and the loss, so that a mismatch is reported before the workers start."""
    two = torch.arange(min(2, len(data.dataset.train)))
    x, y = data.dataset.train.inputs(two), data.dataset.train.targets(two)
    classes, name = data.dataset.classes, spec.model.name
    wanted = y.shape if classes is None else (len(two), classes)
    try:
        outputs = model.eval()(x)
        value = loss(outputs, y) if isinstance(outputs, Tensor) and outputs.shape == wanted else None
    except Exception as error:
        raise FedA2LError(
            f"model.name = {name!r} with model.loss = {spec.model.loss!r} fails on {spec.data.name}'s samples of shape "
            f"{list(x.shape[1:])}: {error}",
            see="own-code",
        ) from error
    if not isinstance(outputs, Tensor) or outputs.shape != wanted:
        actual = f"shape {list(outputs.shape)}" if isinstance(outputs, Tensor) else f"type {type(outputs).__name__}"
        raise FedA2LError(
            f"model.name = {name!r}: its output for {len(two)} samples has {actual}, expected shape {list(wanted)}",
            see="own-code",
        )
    if not isinstance(value, Tensor) or value.dim() or not value.requires_grad:
        raise FedA2LError(
            f"model.loss = {spec.model.loss!r}: must return one number, a tensor that depends on the outputs",
            see="own-code",
        )
    if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
        raise FedA2LError(f"model.name = {name!r}: its parameters must be float32", see="own-code")
