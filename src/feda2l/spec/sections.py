"""The tables of a spec, key by key: defaults, bounds and what each key means."""

from typing import Annotated, Any, Literal, Self

from pydantic import PlainValidator, PrivateAttr, model_validator

from feda2l.algorithms import ALGORITHMS, Algorithm
from feda2l.data import CATALOG
from feda2l.data.catalog import is_series
from feda2l.errors import FedA2LError
from feda2l.layers import Granularity
from feda2l.models import MODELS
from feda2l.names import look_up
from feda2l.network.profiles import LINKS, SPEEDS
from feda2l.rates import RULES, Rule
from feda2l.spec.schema_base import Count, NamedSection, NotNegative, Positive, Section, Share, option
from feda2l.topology import TOPOLOGIES


class DataSpec(Section):
    """What is learned from, and how it is dealt to the nodes."""

    name: str = option("digits", 'data set, see `feda2l list datasets`; folder, csv or "package.module:function"')
    path: str | None = option(None, "of folder and csv: where the data lie", example="pictures")
    target: str | None = option(None, "of csv: the column of the class; without it, a series", example="kind")
    node: str | None = option(None, "of csv: the column that says whose row it is", example="site")
    columns: tuple[str, ...] | None = option(
        None, "of csv: what is learned from; default the rest", example=["width", "height"]
    )
    test_share: Share = option(0.2, "of folder and csv without a test part: what is held out")
    input_length: Count = option(96, "of series: rows that a forecast is made from")
    horizon: Count = option(96, "of series: rows that are forecast")
    stride: Count = option(1, "of series: rows between the starts of two windows")
    nodes: Count = option(10, "number of nodes")
    partition: Literal["iid", "dirichlet", "pathological", "shards", "natural", "time", "cluster"] = option(
        "dirichlet", "how samples are dealt to nodes; of series: natural"
    )
    alpha: Positive = option(0.1, "of dirichlet and cluster: smaller is more skewed")
    clusters: Count = option(10, "of cluster: kinds of windows")
    classes_per_node: Count = option(2, "of pathological")
    shards_per_node: Count = option(2, "of shards")
    partition_seed: int = option(1, "the paper keeps one partition for all runs", ge=0)
    train_fraction: Share = option(0.75, "share of a node's samples that it trains on; of series: .8 of its time")
    min_size: Count | None = option(
        None, "fewest samples of a node; default batch_size / (1 - train_fraction)", example=40
    )

    @model_validator(mode="after")
    def _known(self) -> Self:
        if ":" not in self.name:
            look_up(self.name, dict.fromkeys((*CATALOG, "folder", "csv")), "data.name")
        return self

    @property
    def forecasts(self) -> bool:
        """Is it a series?"""
        return is_series(self.name) or (self.name == "csv" and self.target is None)


class ModelSpec(Section):
    """What is trained."""

    name: str | None = option(None, 'model, or "package.module:Class"; default fits the data set', example="mlp")
    init: Literal["common", "per_node"] = option("common", "one start for all nodes, or one each")
    start: str | None = option(
        None,
        "pretrained weights that all nodes start from: a safetensors file of a state_dict",
        example="pretrained.safetensors",
    )
    start_sha256: str | None = option(None, "of the start; filled in, and checked where it is given", example=64 * "0")
    fresh: tuple[str, ...] | None = option(
        None, "layers (names or patterns) that are drawn anew and not read from the start", example=["classifier"]
    )
    freeze: tuple[str, ...] | None = option(
        None, "layers (names or patterns) that keep their start: neither trained nor exchanged", example=["conv*"]
    )
    loss: str | None = option(
        None,
        'cross_entropy (classes), mse (numbers), mae or "package.module:function" of (outputs, targets)',
        example="cross_entropy",
    )

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.name and ":" not in self.name:
            look_up(self.name, MODELS, "model.name")
        if self.start is None and (self.fresh is not None or self.start_sha256 is not None):
            key = "fresh" if self.start_sha256 is None else "start_sha256"
            raise FedA2LError(f"model.{key} is about model.start, which is not given")
        if self.start is not None and self.init == "per_node":
            raise FedA2LError('model.start is one start for all nodes: leave model.init = "per_node" out')
        return self


class TopologySpec(Section):
    """Who talks to whom, and how much each voice weighs."""

    name: str = option("full", "graph, see `feda2l list topologies`")
    weights: Literal["samples", "uniform", "metropolis"] = option("samples", "of the average")
    k: int = option(7, "of k_regular and random_out")
    p: float = option(0.3, "of erdos_renyi: probability of an edge")
    seed: int = option(1, "of random graphs", ge=0)
    file: str | None = option(None, "of file: an edge list or an adjacency matrix", example="edges.csv")

    @model_validator(mode="after")
    def _known(self) -> Self:
        look_up(self.name, TOPOLOGIES, "topology.name")
        return self


class AlgorithmSpec(NamedSection):
    """The base algorithm; its own parameters stand beside its name."""

    name: str = option("fedavg", 'see `feda2l list algorithms`, or "package.module:Class"')
    buffers: Literal["average", "local", "recalibrate"] = option(
        "average", "BatchNorm statistics: mixed like parameters, kept, or re-estimated after mixing"
    )
    _algorithm: Algorithm = PrivateAttr()

    @model_validator(mode="after")
    def _build(self) -> Self:
        self._algorithm = self.parameters("algorithm", ALGORITHMS, Algorithm)
        return self

    @property
    def algorithm(self) -> Algorithm:
        return self._algorithm


class RatesSpec(NamedSection):
    """The rate rule; its own parameters stand beside its name."""

    name: str = option("feda2l", 'see `feda2l list rates`, or "package.module:Class"')
    base: Positive = option(0.01, "eta0, the base rate")
    horizon: Count | None = option(None, "of schedules with an end; default: rounds", example=500)
    granularity: Granularity = option("module", "what one layer is (ablation)")
    _rule: Rule = PrivateAttr()

    @model_validator(mode="after")
    def _build(self) -> Self:
        self._rule = self.parameters("rates", RULES, Rule)
        return self

    @property
    def rule(self) -> Rule:
        return self._rule


class TrainingSpec(Section):
    """Local training between two exchanges."""

    epochs: Count = option(1, "local epochs a round")
    batch_size: Count = option(10, "samples a step")
    optimizer: Literal["sgd", "adam", "adamw"] = option("sgd", "sgd, adam or adamw")
    momentum: float = option(0.9, "of sgd", ge=0, lt=1)
    weight_decay: NotNegative = option(0.0, "decoupled with adamw")
    drop_last: bool = option(True, "drop a last incomplete batch")
    momentum_state: Literal["keep", "reset", "average"] = option(
        "keep", "what happens to the optimizer's state at each mixing"
    )


class EvaluationSpec(Section):
    """What is measured, when and against which target."""

    every: Count = option(1, "rounds between evaluations; the last round is always evaluated")
    on: Literal["global", "local", "both"] = option("global", "test set, or the node's unused part")
    target: Positive | None = option(
        None, "accuracy (of numbers: at most this MSE) whose first round is reported", example=0.9
    )
    smoothing: Count = option(10, "window of the trailing mean for rounds to target")
    theory_every: Count | None = option(
        None, "rounds between estimates of the convergence bounds' quantities, from round 1; default: none", example=10
    )


class RuntimeSpec(Section):
    """Where and how it runs; nothing here changes the result of a run that keeps the same-bytes promise."""

    device: Literal["auto", "cpu", "cuda"] = option("auto", "auto: a GPU where there is one")
    engine: Literal["auto", "rows", "batched"] = option(
        "auto", "auto keeps the same-bytes promise; batched trains all nodes in one kernel"
    )
    precision: Literal["fp32", "tf32", "bf16"] = option("fp32", "of products; tf32: a GPU's")
    deterministic: bool = option(False, "on a GPU; the CPU always is")
    workers: int | None = option(None, "processes; default one a core, 0: none", example=2, ge=0)
    checkpoint_seconds: NotNegative = option(
        60.0, "time between checkpoints, which take a twentieth of the time at most; 0: after every round"
    )


def _speed(value: Any) -> float | str | tuple[float, ...]:
    return value if isinstance(value, str) else _per_node(value, "network.speed")


def _uplink(value: Any) -> float | tuple[float, ...] | None:
    return None if value is None else _per_node(value, "network.uplink_mbit")


def _per_node(value: Any, key: str) -> float | tuple[float, ...]:
    """A number above 0, or a list of such."""
    for one in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(one, int | float) or isinstance(one, bool) or not 0 < one < float("inf"):
            raise FedA2LError(f"{key} = {one!r}: must be a number above 0, or a list with one for each node")
    return tuple(map(float, value)) if isinstance(value, list | tuple) else float(value)


class NetworkSpec(Section):
    """What the simulated network is like. Keys that are about time give the run simulated seconds."""

    participation: Share = option(1.0, "share of the nodes that take part, drawn every round")
    min_nodes: Count = option(2, "at least so many take part")
    compute_ms: NotNegative | None = option(
        None, "milliseconds that the gradient of one sample takes at speed 1; unless told none", example=1.0
    )
    speed: Annotated[float | str | tuple[float, ...], PlainValidator(_speed)] = option(
        1.0, "of the nodes: one number, one each, or uniform, computers or phones"
    )
    links: str | None = option(None, "lan, wan, home or mobile: latencies and bandwidths are drawn", example="home")
    latency_ms: NotNegative | None = option(None, "of every link, in place of what links says", example=50.0)
    bandwidth_mbit: Positive | None = option(None, "of every link; unless told nothing limits it", example=10.0)
    uplink_mbit: Annotated[float | tuple[float, ...] | None, PlainValidator(_uplink)] = option(
        None, "of a node, shared by the messages that it sends: one number, or one each", example=5.0
    )
    file: str | None = option(None, "a CSV file of links: from,to,latency_ms,mbit", example="links.csv")
    seed: int = option(1, "of what is drawn for nodes and links", ge=0)

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.links is not None:
            look_up(self.links, LINKS, "network.links")
        if isinstance(self.speed, str):
            look_up(self.speed, SPEEDS, "network.speed")
        if self.speed != 1 and self.compute_ms is None:
            raise FedA2LError(
                "network.speed says how fast nodes compute, but nothing what that takes; set network.compute_ms too"
            )
        for key in ("links", "latency_ms", "bandwidth_mbit"):
            if self.file is not None and getattr(self, key) is not None:
                raise FedA2LError(f"network.{key} and network.file both say what links are like; leave one of them out")
        return self

    @property
    def timed(self) -> bool:
        """Does anything take time?"""
        costs = (self.compute_ms, self.links, self.latency_ms, self.bandwidth_mbit, self.uplink_mbit, self.file)
        return any(cost is not None for cost in costs)
