"""From a spec to a simulation: data dealt to nodes, a model, a graph, a rate rule; every mistake is found here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from feda2l.algorithms import Task
from feda2l.data import Images, find, partition
from feda2l.errors import FedA2LError
from feda2l.experiment.engines import choose_engine
from feda2l.experiment.spec import Spec
from feda2l.imports import import_object
from feda2l.layers import Layer, find_layers
from feda2l.models import build
from feda2l.randomness import derive_seed
from feda2l.rates import Setting
from feda2l.round.train import Loss, Samples, Training
from feda2l.simulate.engine import Engine, Member
from feda2l.simulate.population import CPU, Population, averaged_buffers
from feda2l.simulate.simulation import Simulation
from feda2l.topology import Mixing, Topology, build_mixing
from feda2l.topology import build as build_topology


@dataclass(frozen=True)
class Loaded:
    """A data set with its samples on the device that trains, wrapped once, so that packed runs share them."""

    images: Images
    train: Samples
    test: Samples
    device: torch.device = CPU

    @classmethod
    def of(cls, images: Images, device: torch.device = CPU) -> "Loaded":
        return cls(
            images,
            Samples(images.train_x.to(device), images.train_y.to(device), images.normalise),
            Samples(images.test_x.to(device), images.test_y.to(device), images.normalise),
            device,
        )


@dataclass(frozen=True)
class Assembled:
    """A run ready to join a pack: its resolved spec, its simulation and a model to start from."""

    spec: Spec
    simulation: Simulation
    model: nn.Module
    images: Images
    device: torch.device


def assemble(spec: Spec, data: Loaded) -> Assembled:
    """Everything a run needs, or a clear error before any training starts."""
    model = new_model(spec, classes=data.images.classes, input=data.images.input)
    layers = find_layers(model, spec.rates.granularity)
    spec = spec.resolved(layers=len(layers), model=spec.model.name or find(spec.data.name).model)
    loss = _loss(spec)
    _try_out(spec, model, loss, data)
    algorithm = spec.algorithm.algorithm
    optimizer = spec.training.optimizer
    momentum = spec.training.momentum if optimizer == "sgd" else 0.0
    classes = not data.images.train_y.is_floating_point()
    algorithm.check(Task(classes, optimizer, momentum, spec.runtime.precision))
    shards, local = deal(spec, data.images)
    samples = [len(shard) for shard in shards]
    topology = spec.topology
    graph = build_topology(
        topology.name, spec.data.nodes, k=topology.k, p=topology.p, seed=topology.seed, file=topology.file
    )
    training = Training(
        data.train,
        loss,
        spec.training.optimizer,
        spec.training.weight_decay,
        spec.training.batch_size,
        spec.training.epochs,
        spec.training.drop_last,
        spec.seed,
        algorithm,
    )
    mixing = _mixing(spec, graph, samples)
    simulation = Simulation(
        name=spec.name,
        rounds=spec.rounds,
        member=Member(training, shards, local, data.test, data.images.classes, data.images.affine(data.device)),
        layers=layers,
        mixing=mixing,
        rule=spec.rates.rule,
        setting=_setting(spec, layers, model, mixing, [training.steps(len(shard)) for shard in shards]),
        momentum=spec.training.momentum,
        momentum_state=spec.training.momentum_state,
        buffers=spec.algorithm.buffers,
        averaged=averaged_buffers(model),
        every=spec.evaluation.every,
        on=spec.evaluation.on,
    )
    return Assembled(spec, simulation, model, data.images, data.device)


def populate(runs: Sequence[Assembled]) -> Engine:
    """The engine that fits the model, over the pack's population with every row at its start."""
    first = runs[0]
    rows = sum(run.simulation.nodes for run in runs)
    state = sorted({name for run in runs for name in run.simulation.algorithm.memory})
    optimizer = first.spec.training.optimizer
    population = Population(first.model, rows, len(runs), optimizer, state=state, device=first.device)
    start = 0
    for number, run in enumerate(runs):
        run.simulation.join(population, start, number)
        for node in range(run.simulation.nodes):
            model, images = run.model, run.images
            if run.spec.model.init == "per_node" and node:
                model = new_model(run.spec, classes=images.classes, input=images.input, node=node)
            population.place(start + node, model)
        start += run.simulation.nodes
    return choose_engine(runs, population)


def pack_key(spec: Spec) -> tuple[Any, ...]:
    """Runs with equal keys can train as one population."""
    name = spec.model.name or ""
    # a user's model may hold what is drawn at its start and never trained (frozen layers): one seed a pack
    seed = spec.seed if ":" in name else None
    runtime = spec.runtime.model_dump(exclude={"checkpoint_seconds"})
    return spec.data.name, name, seed, spec.training.optimizer, *runtime.values()


def new_model(spec: Spec, *, classes: int, input: tuple[int, ...], node: int = 0) -> nn.Module:
    """The model with the initial values of a node; node 0's is the common start."""
    name = spec.model.name or find(spec.data.name).model
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(spec.seed, node=node, purpose="init"))
        return build(name, classes=classes, input=input)


def deal(spec: Spec, images: Images) -> tuple[list[Tensor], list[Tensor]]:
    """The samples of each node: what it trains on, and the rest."""
    parts = partition_of(spec, images)
    fraction, size = spec.data.train_fraction, spec.training.batch_size
    pairs = [
        partition.split(part, train_fraction=fraction, seed=spec.data.partition_seed, node=node)
        for node, part in enumerate(parts)
    ]
    smallest = min(range(len(pairs)), key=lambda node: len(pairs[node][0]))
    shard = len(pairs[smallest][0])
    if shard < (size if spec.training.drop_last else 1):
        raise FedA2LError(
            f"training.batch_size = {size}: node {smallest} has only {shard} training samples, less than one batch; "
            f"choose a batch_size of at most {max(shard, 1)}, fewer data.nodes, a larger data.alpha or "
            "training.drop_last = false"
        )
    asks = [f'evaluation.on = "{spec.evaluation.on}"'] if spec.evaluation.on != "global" else []
    asks += [f'algorithm.name = "{spec.algorithm.name}"'] if spec.algorithm.algorithm.searches else []
    if asks and not all(len(rest) for _, rest in pairs):
        raise FedA2LError(
            f"{asks[0]} needs samples that a node does not train on; data.train_fraction = {fraction} leaves none"
        )
    return [torch.from_numpy(own) for own, _ in pairs], [torch.from_numpy(rest) for _, rest in pairs]


def partition_of(spec: Spec, images: Images) -> list[NDArray[np.int64]]:
    """Which samples each node holds, before the split into train and rest."""
    data, batch = spec.data, spec.training.batch_size
    # the released code's minimum: the part that is not trained on holds at least one batch
    derived = batch if data.train_fraction == 1 else int(batch / (1 - data.train_fraction))
    least = derived if data.min_size is None else data.min_size
    labels, nodes, seed = images.train_y, data.nodes, data.partition_seed
    try:
        match data.partition:
            case "iid":
                return partition.iid(labels, nodes=nodes, seed=seed, min_size=least)
            case "dirichlet":
                return partition.dirichlet(labels, nodes=nodes, alpha=data.alpha, seed=seed, min_size=least)
            case "pathological":
                return partition.pathological(
                    labels, nodes=nodes, classes_per_node=data.classes_per_node, seed=seed, min_size=least
                )
            case "shards":
                return partition.shards(
                    labels, nodes=nodes, shards_per_node=data.shards_per_node, seed=seed, min_size=least
                )
            case "natural":
                if images.groups is None:
                    raise FedA2LError(
                        f'data.partition = "natural": {data.name} does not say which node a sample belongs to; '
                        "choose iid, dirichlet, pathological or shards"
                    )
                return partition.natural(images.groups, nodes=nodes, min_size=least)
    except FedA2LError as error:
        if data.min_size is not None or "min_size" not in str(error):
            raise
        raise FedA2LError(
            f"{error}\nthe minimum of {least} samples comes from training.batch_size = {batch} and "
            f"data.train_fraction = {data.train_fraction}; a smaller batch_size or data.min_size lowers it"
        ) from error


def _setting(spec: Spec, layers: list[Layer], model: nn.Module, mixing: Mixing, steps: list[int]) -> Setting:
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    nodes = range(spec.data.nodes)
    return Setting(
        base=spec.rates.base,
        layers=tuple(layer.name for layer in layers),
        nodes=tuple(nodes),
        horizon=spec.rates.horizon or spec.rounds,
        momentum=spec.training.momentum if spec.training.optimizer == "sgd" else 0.0,
        seed=spec.seed,
        steps=tuple(steps),
        near_steps=tuple(tuple(steps[j] for j in mixing.row(node)[0]) for node in nodes),
        sizes=tuple(sum(sizes[tensor] for tensor in layer.tensors) for layer in layers),
    )


def _mixing(spec: Spec, graph: Topology, samples: list[int]) -> Mixing:
    """The weights of the average; a graph or weights on which the algorithm is not defined are refused."""
    wanted, weights = spec.algorithm.algorithm.mixing, spec.topology.weights
    strict = wanted in ("doubly_stochastic", "symmetric")
    name, where = f'algorithm.name = "{spec.algorithm.name}"', f'topology.name = "{spec.topology.name}"'
    if not (strict and graph.directed and weights == "metropolis"):
        mixing = build_mixing(graph, weights, samples, push=wanted == "push")
        if not strict or (mixing.symmetric() if wanted == "symmetric" else mixing.doubly_stochastic()):
            return mixing
    needs = "every node to be heard as much as it hears" if wanted == "doubly_stochastic" else "symmetric weights"
    if not graph.directed:
        raise FedA2LError(
            f'{name} needs {needs}, which topology.weights = "{weights}" does not bring on {where}; '
            'use topology.weights = "metropolis"'
        )
    equal = ', topology.weights = "uniform" where all degrees are equal' if wanted == "doubly_stochastic" else ""
    raise FedA2LError(
        f'{name} needs {needs} and {where} is directed; use an undirected graph{equal} or algorithm.name = "push_sum"'
    )


def _loss(spec: Spec) -> Loss:
    if spec.model.loss == "cross_entropy":
        return F.cross_entropy
    if ":" not in spec.model.loss:
        raise FedA2LError(f'model.loss = "{spec.model.loss}": must be cross_entropy or "package.module:function"')
    loss: Loss = import_object(spec.model.loss, "model.loss")
    return loss


def _try_out(spec: Spec, model: nn.Module, loss: Loss, data: Loaded) -> None:
    """Two samples through the model and the loss, so that a mismatch is an error now and not in a worker."""
    x, y = data.images.normalise(data.images.train_x[:2]), data.images.train_y[:2]
    try:
        outputs = model.eval()(x)
        value = loss(outputs, y)
    except Exception as error:
        raise FedA2LError(
            f"model.name = {spec.model.name!r} with model.loss = {spec.model.loss!r} does not take "
            f"{spec.data.name}'s pictures of {list(x.shape[1:])}: {error}"
        ) from error
    if not isinstance(outputs, Tensor) or outputs.shape != (2, data.images.classes):
        found = list(outputs.shape) if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
        raise FedA2LError(
            f"model.name = {spec.model.name!r}: its output for 2 pictures is {found}, not [2, {data.images.classes}]"
        )
    if not isinstance(value, Tensor) or value.dim() or not value.requires_grad:
        raise FedA2LError(
            f"model.loss = {spec.model.loss!r}: must give one number, as a tensor that depends on the model's outputs"
        )
    if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
        raise FedA2LError(f"model.name = {spec.model.name!r}: its parameters must be float32")
