"""The tables of a spec, key by key: defaults, bounds and meaning."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import PlainValidator, PrivateAttr, field_validator, model_validator

from feda2l.algorithms import ALGORITHMS, PARTS, Algorithm, Composed, errors_of_part, part_names
from feda2l.data import CATALOG
from feda2l.data.catalog import is_series
from feda2l.errors import FedA2LError
from feda2l.layers import Granularity
from feda2l.models import MODELS
from feda2l.names import look_up, nearest
from feda2l.network.profiles import LINKS, SPEEDS
from feda2l.rates import RULES, Rule
from feda2l.spec.schema_base import (
    Count,
    NamedSection,
    NotNegative,
    Positive,
    Section,
    Share,
    built,
    kind_of,
    option,
    parameters_of,
)
from feda2l.topology import TOPOLOGIES

KNOWN = ALGORITHMS | PARTS


class DataSpec(Section):
    """The data, and how it is assigned to the nodes."""

    name: str = option("digits", 'data set, see `feda2l list datasets`; folder, csv or "package.module:function"')
    path: str | None = option(None, "for folder and csv: the path of the data", example="pictures")
    target_column: str | None = option(
        None, "for csv: the column of the class; without it the table is a time series", example="kind"
    )
    node_column: str | None = option(None, "for csv: the column that names the node of each row", example="site")
    feature_columns: tuple[str, ...] | None = option(
        None, "for csv: the input columns; default: all others", example=["width", "height"]
    )
    test_fraction: Share = option(0.2, "for folder and csv without a test part: the share that is held out")
    input_length: Count = option(96, "for series: rows of a forecast's input")
    horizon: Count = option(96, "for series: rows of a forecast")
    stride: Count = option(1, "for series: rows between the starts of two windows")
    nodes: Count = option(10, "number of nodes")
    partition: Literal["iid", "dirichlet", "pathological", "shards", "natural", "time", "cluster"] = option(
        "dirichlet", "how samples are assigned to nodes; default for series: natural"
    )
    alpha: Positive = option(0.1, "for dirichlet and cluster: a smaller value gives more skewed nodes")
    clusters: Count = option(10, "for cluster: number of clusters of windows")
    classes_per_node: Count = option(2, "for pathological: classes of each node")
    shards_per_node: Count = option(2, "for shards: shards of each node")
    partition_seed: int = option(1, "seed of the partition; the paper keeps one partition for all runs", ge=0)
    train_fraction: Share = option(
        0.75, "share of a node's samples that it trains on; default for series: 0.8 of its time"
    )
    min_size: Count | None = option(
        None, "smallest number of samples of a node; default: batch_size / (1 - train_fraction)", example=40
    )

    @model_validator(mode="after")
    def _known(self) -> Self:
        if ":" not in self.name:
            look_up(self.name, dict.fromkeys((*CATALOG, "folder", "csv")), "data.name")
        return self

    @property
    def forecasts(self) -> bool:
        """Whether the data are a time series."""
        return is_series(self.name) or (self.name == "csv" and self.target_column is None)


class ModelSpec(Section):
    """The model."""

    name: str | None = option(
        None, 'model, or "package.module:Class"; the default depends on the data set', example="mlp"
    )
    init: Literal["common", "per_node"] = option("common", "the same initial model for all nodes, or one per node")
    initial_weights: str | None = option(
        None,
        "pretrained weights that all nodes start from: a safetensors file of a state_dict",
        example="pretrained.safetensors",
    )
    initial_weights_sha256: str | None = option(
        None, "sha256 of model.initial_weights: recorded by the run, and checked if it is given", example=64 * "0"
    )
    reinitialize: tuple[str, ...] | None = option(
        None,
        "layers (names or patterns) that are initialized at random and not read from the start",
        example=["classifier"],
    )
    freeze: tuple[str, ...] | None = option(
        None, "layers (names or patterns) that are neither trained nor exchanged", example=["conv*"]
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
        if self.initial_weights is None and (self.reinitialize is not None or self.initial_weights_sha256 is not None):
            key = "reinitialize" if self.initial_weights_sha256 is None else "initial_weights_sha256"
            raise FedA2LError(f"model.{key} needs model.initial_weights, which is not given")
        if self.initial_weights is not None and self.init == "per_node":
            raise FedA2LError('model.initial_weights gives all nodes the same start: remove model.init = "per_node"')
        return self


class TopologySpec(Section):
    """Which nodes exchange models, and the weights of the average."""

    name: str = option("full", "graph, see `feda2l list topologies`")
    weights: Literal["samples", "uniform", "metropolis"] = option("samples", "weights of the average")
    k: int = option(7, "for k_regular and random_out: number of neighbours")
    p: float = option(0.3, "for erdos_renyi: probability of an edge")
    seed: int = option(1, "seed of random graphs", ge=0)
    file: str | None = option(None, "for file: an edge list or an adjacency matrix", example="edges.csv")

    @model_validator(mode="after")
    def _known(self) -> Self:
        look_up(self.name, TOPOLOGIES, "topology.name")
        return self


class AlgorithmSpec(NamedSection):
    """The base algorithm; its parameters are further keys of this table."""

    name: str = option("fedavg", 'see `feda2l list algorithms`, "package.module:Class", or parts joined by "+"')
    buffers: Literal["average", "local", "recalibrate"] = option(
        "average", "BatchNorm statistics: averaged like parameters, kept local, or re-estimated after mixing"
    )
    _algorithm: Algorithm = PrivateAttr()

    @field_validator("name", mode="before")
    @classmethod
    def _joined(cls, name: Any) -> Any:
        """Write several parts, listed or joined, as one name without spaces."""
        if isinstance(name, list | tuple) and name and all(isinstance(part, str) for part in name):
            name = "+".join(name)
        return "+".join(part_names(name)) if isinstance(name, str) else name

    @model_validator(mode="after")
    def _build(self) -> Self:
        names = part_names(self.name)
        self._algorithm = self._composed(names) if len(names) > 1 else self.parameters("algorithm", KNOWN, Algorithm)
        return self

    def _composed(self, names: list[str]) -> Algorithm:
        """Build the parts from the tables that bear their names."""
        tables = self.model_extra or {}
        if len(set(names)) < len(names):
            raise FedA2LError(f'algorithm.name = "{self.name}" names a part twice', see="spec")
        parts = []
        for name in names:
            kind, values = kind_of(name, "algorithm", KNOWN, Algorithm), tables.get(name, {})
            if not isinstance(values, Mapping):
                raise FedA2LError(f"algorithm.{name} must be a table: the parameters of this part", see="spec")
            with errors_of_part(name):
                parts.append((name, built(kind, f"algorithm.{name}", values, parameters_of(kind))))
        for key in tables.keys() - set(names):
            known = nearest(key, [*type(self).model_fields, *names])
            raise FedA2LError(
                f'algorithm.{key} is no part of algorithm.name = "{self.name}"; {known}. Parameters of a part are set '
                "as algorithm.PART.KEY",
                see="spec",
            )
        return Composed(parts=tuple(parts))

    @property
    def algorithm(self) -> Algorithm:
        return self._algorithm


class RatesSpec(NamedSection):
    """The rate rule; its parameters are further keys of this table."""

    name: str = option("feda2l", 'see `feda2l list rates`, or "package.module:Class"')
    base: Positive = option(0.01, "eta0, the base rate")
    horizon: Count | None = option(None, "length in rounds of schedules that have an end; default: rounds", example=500)
    granularity: Granularity = option("module", "unit that counts as one layer (ablation)")
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

    epochs: Count = option(1, "local epochs per round")
    batch_size: Count = option(10, "samples per step")
    optimizer: Literal["sgd", "adam", "adamw"] = option("sgd", "sgd, adam or adamw")
    momentum: float = option(0.9, "momentum of sgd", ge=0, lt=1)
    weight_decay: NotNegative = option(0.0, "decoupled with adamw")
    drop_last: bool = option(True, "drop an incomplete last batch")
    momentum_state: Literal["keep", "reset", "average"] = option(
        "keep", "what happens to the optimizer state at each mixing"
    )


class EvaluationSpec(Section):
    """Evaluation: how often, on which samples and with which target."""

    every: Count = option(1, "rounds between evaluations; the last round is always evaluated")
    on: Literal["global", "local", "both"] = option(
        "global", "global: the test set; local: the samples that the node does not train on"
    )
    target: Positive | None = option(None, "accuracy to reach (regression: MSE to reach)", example=0.9)
    smoothing: Count = option(10, "evaluations in the trailing mean that is compared with the target")
    theory_every: Count | None = option(
        None, "rounds between estimates of the convergence bounds' quantities, from round 1; default: none", example=10
    )


class RuntimeSpec(Section):
    """Where and how the run is computed; nothing here changes a result that is guaranteed to have the same bytes."""

    device: Literal["auto", "cpu", "cuda"] = option("auto", "auto: a GPU if there is one")
    engine: Literal["auto", "rows", "batched"] = option(
        "auto", "auto: same seed, same bytes on a CPU; batched: all nodes in one kernel"
    )
    precision: Literal["fp32", "tf32", "bf16"] = option("fp32", "precision of matrix products; tf32 only on a GPU")
    deterministic: bool = option(False, "deterministic kernels on a GPU; a CPU is always deterministic")
    workers: int | None = option(None, "worker processes; default: one per core; 0: none", example=2, ge=0)
    checkpoint_seconds: NotNegative = option(
        60.0, "time between checkpoints, which take at most 5 % of the run; 0: after every round"
    )


def _speed(value: Any) -> float | str | tuple[float, ...]:
    return value if isinstance(value, str) else _per_node(value, "network.speed")


def _uplink(value: Any) -> float | tuple[float, ...] | None:
    return None if value is None else _per_node(value, "network.uplink_mbit")


def _per_node(value: Any, key: str) -> float | tuple[float, ...]:
    """Validate a number above 0, or a list of such numbers."""
    for one in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(one, int | float) or isinstance(one, bool) or not 0 < one < float("inf"):
            raise FedA2LError(f"{key} = {one!r}: must be a number above 0, or a list with one for each node")
    return tuple(map(float, value)) if isinstance(value, list | tuple) else float(value)


class NetworkSpec(Section):
    """The simulated network. A key about time gives the run simulated seconds."""

    participation: Share = option(1.0, "share of the nodes that take part, drawn in every round")
    min_nodes: Count = option(2, "smallest number of nodes that take part")
    compute_ms: NotNegative | None = option(
        None, "milliseconds for the gradient of one sample at speed 1; default: 0", example=1.0
    )
    speed: Annotated[float | str | tuple[float, ...], PlainValidator(_speed)] = option(
        1.0, "speed of the nodes: one number, one per node, or uniform, computers or phones"
    )
    links: str | None = option(
        None, "lan, wan, home or mobile: random latencies and bandwidths of this kind", example="home"
    )
    latency_ms: NotNegative | None = option(None, "latency of every link; overrides links", example=50.0)
    bandwidth_mbit: Positive | None = option(None, "bandwidth of every link; default: unlimited", example=10.0)
    uplink_mbit: Annotated[float | tuple[float, ...] | None, PlainValidator(_uplink)] = option(
        None, "bandwidth of a node, shared by the messages that it sends: one number, or one per node", example=5.0
    )
    file: str | None = option(None, "a CSV file of links: from,to,latency_ms,mbit", example="links.csv")
    seed: int = option(1, "seed of the random nodes and links", ge=0)

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.links is not None:
            look_up(self.links, LINKS, "network.links")
        if isinstance(self.speed, str):
            look_up(self.speed, SPEEDS, "network.speed")
        if self.speed != 1 and self.compute_ms is None:
            raise FedA2LError(
                "network.speed has no effect without the time of one gradient; set network.compute_ms too"
            )
        for key in ("links", "latency_ms", "bandwidth_mbit"):
            if self.file is not None and getattr(self, key) is not None:
                raise FedA2LError(f"network.{key} and network.file both define the links; remove one of them")
        return self

    @property
    def timed(self) -> bool:
        """Whether anything takes simulated time."""
        costs = (self.compute_ms, self.links, self.latency_ms, self.bandwidth_mbit, self.uplink_mbit, self.file)
        return any(cost is not None for cost in costs)
