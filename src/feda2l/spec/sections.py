"""The tables of a spec, key by key: defaults, bounds and what each key means."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, PrivateAttr, model_validator

from feda2l.algorithms import ALGORITHMS, Algorithm
from feda2l.data import CATALOG
from feda2l.data.catalog import is_series
from feda2l.errors import FedA2LError
from feda2l.layers import Granularity
from feda2l.models import MODELS
from feda2l.names import look_up
from feda2l.network.profiles import LINKS, SPEEDS
from feda2l.rates import RULES, Rule
from feda2l.spec.schema_base import Count, NamedSection, NotNegative, Positive, Section, Share
from feda2l.topology import TOPOLOGIES


class DataSpec(Section):
    """What is learned from, and how it is dealt to the nodes."""

    name: str = Field(
        default="digits", description='data set, see `feda2l list datasets`; folder, csv or "package.module:function"'
    )
    path: str | None = Field(default=None, description="of folder and csv: where the data lie", examples=["pictures"])
    target: str | None = Field(
        default=None, description="of csv: the column of the class; without it, a series", examples=["kind"]
    )
    node: str | None = Field(
        default=None, description="of csv: the column that says whose row it is", examples=["site"]
    )
    columns: tuple[str, ...] | None = Field(
        default=None, description="of csv: what is learned from; default the rest", examples=[["width", "height"]]
    )
    test_share: Share = Field(default=0.2, description="of folder and csv without a test part: what is held out")
    input_length: Count = Field(default=96, description="of series: rows that a forecast is made from")
    horizon: Count = Field(default=96, description="of series: rows that are forecast")
    stride: Count = Field(default=1, description="of series: rows between the starts of two windows")
    nodes: Count = Field(default=10, description="number of nodes")
    partition: Literal["iid", "dirichlet", "pathological", "shards", "natural", "time", "cluster"] = Field(
        default="dirichlet", description="how samples are dealt to nodes; of series: natural"
    )
    alpha: Positive = Field(default=0.1, description="of dirichlet and cluster: smaller is more skewed")
    clusters: Count = Field(default=10, description="of cluster: kinds of windows")
    classes_per_node: Count = Field(default=2, description="of pathological")
    shards_per_node: Count = Field(default=2, description="of shards")
    partition_seed: int = Field(default=1, ge=0, description="the paper keeps one partition for all runs")
    train_fraction: Share = Field(
        default=0.75, description="share of a node's samples that it trains on; of series: .8 of its time"
    )
    min_size: Count | None = Field(
        default=None,
        description="fewest samples of a node; default batch_size / (1 - train_fraction)",
        examples=[40],
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

    name: str | None = Field(
        default=None, description='model, or "package.module:Class"; default fits the data set', examples=["mlp"]
    )
    init: Literal["common", "per_node"] = Field(default="common", description="one start for all nodes, or one each")
    start: str | None = Field(
        default=None,
        description="pretrained weights that all nodes start from: a safetensors file of a state_dict",
        examples=["pretrained.safetensors"],
    )
    start_sha256: str | None = Field(
        default=None, description="of the start; filled in, and checked where it is given", examples=[64 * "0"]
    )
    fresh: tuple[str, ...] | None = Field(
        default=None,
        description="layers (names or patterns) that are drawn anew and not read from the start",
        examples=[["classifier"]],
    )
    freeze: tuple[str, ...] | None = Field(
        default=None,
        description="layers (names or patterns) that keep their start: neither trained nor exchanged",
        examples=[["conv*"]],
    )
    loss: str | None = Field(
        default=None,
        description='cross_entropy (classes), mse (numbers), mae or "package.module:function" of (outputs, targets)',
        examples=["cross_entropy"],
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

    name: str = Field(default="full", description="graph, see `feda2l list topologies`")
    weights: Literal["samples", "uniform", "metropolis"] = Field(default="samples", description="of the average")
    k: int = Field(default=7, description="of k_regular and random_out")
    p: float = Field(default=0.3, description="of erdos_renyi: probability of an edge")
    seed: int = Field(default=1, ge=0, description="of random graphs")
    file: str | None = Field(
        default=None, description="of file: an edge list or an adjacency matrix", examples=["edges.csv"]
    )

    @model_validator(mode="after")
    def _known(self) -> Self:
        look_up(self.name, TOPOLOGIES, "topology.name")
        return self


class AlgorithmSpec(NamedSection):
    """The base algorithm; its own parameters stand beside its name."""

    name: str = Field(default="fedavg", description='see `feda2l list algorithms`, or "package.module:Class"')
    buffers: Literal["average", "local", "recalibrate"] = Field(
        default="average", description="BatchNorm statistics: mixed like parameters, kept, or re-estimated after mixing"
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

    name: str = Field(default="feda2l", description='see `feda2l list rates`, or "package.module:Class"')
    base: Positive = Field(default=0.01, description="eta0, the base rate")
    horizon: Count | None = Field(default=None, description="of schedules with an end; default: rounds", examples=[500])
    granularity: Granularity = Field(default="module", description="what one layer is (ablation)")
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

    epochs: Count = Field(default=1, description="local epochs a round")
    batch_size: Count = Field(default=10, description="samples a step")
    optimizer: Literal["sgd", "adam", "adamw"] = Field(default="sgd", description="sgd, adam or adamw")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="of sgd")
    weight_decay: NotNegative = Field(default=0.0, description="decoupled with adamw")
    drop_last: bool = Field(default=True, description="drop a last incomplete batch")
    momentum_state: Literal["keep", "reset", "average"] = Field(
        default="keep", description="what happens to the optimizer's state at each mixing"
    )


class EvaluationSpec(Section):
    """What is measured, when and against which target."""

    every: Count = Field(default=1, description="rounds between evaluations; the last round is always evaluated")
    on: Literal["global", "local", "both"] = Field(default="global", description="test set, or the node's unused part")
    target: Positive | None = Field(
        default=None,
        description="accuracy (of numbers: at most this MSE) whose first round is reported",
        examples=[0.9],
    )
    smoothing: Count = Field(default=10, description="window of the trailing mean for rounds to target")


class RuntimeSpec(Section):
    """Where and how it runs; nothing here changes the result of a run that keeps the same-bytes promise."""

    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto: a GPU where there is one")
    engine: Literal["auto", "rows", "batched"] = Field(
        default="auto", description="auto keeps the same-bytes promise; batched trains all nodes in one kernel"
    )
    precision: Literal["fp32", "tf32", "bf16"] = Field(default="fp32", description="of products; tf32: a GPU's")
    deterministic: bool = Field(default=False, description="on a GPU; the CPU always is")
    workers: int | None = Field(default=None, ge=0, description="processes; default one a core, 0: none", examples=[2])
    checkpoint_seconds: NotNegative = Field(
        default=60.0,
        description="time between checkpoints, which take a twentieth of the time at most; 0: after every round",
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

    participation: Share = Field(default=1.0, description="share of the nodes that take part, drawn every round")
    min_nodes: Count = Field(default=2, description="at least so many take part")
    compute_ms: NotNegative | None = Field(
        default=None,
        description="milliseconds that the gradient of one sample takes at speed 1; unless told none",
        examples=[1.0],
    )
    speed: Annotated[float | str | tuple[float, ...], PlainValidator(_speed)] = Field(
        default=1.0, description="of the nodes: one number, one each, or uniform, computers or phones"
    )
    links: str | None = Field(
        default=None,
        description="lan, wan, home or mobile: latencies and bandwidths are drawn",
        examples=["home"],
    )
    latency_ms: NotNegative | None = Field(
        default=None,
        description="of every link, in place of what links says",
        examples=[50.0],
    )
    bandwidth_mbit: Positive | None = Field(
        default=None,
        description="of every link; unless told nothing limits it",
        examples=[10.0],
    )
    uplink_mbit: Annotated[float | tuple[float, ...] | None, PlainValidator(_uplink)] = Field(
        default=None,
        description="of a node, shared by the messages that it sends: one number, or one each",
        examples=[5.0],
    )
    file: str | None = Field(
        default=None,
        description="a CSV file of links: from,to,latency_ms,mbit",
        examples=["links.csv"],
    )
    seed: int = Field(default=1, ge=0, description="of what is drawn for nodes and links")

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
