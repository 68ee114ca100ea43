"""A run's specification: one frozen model, TOML on disk; what it does not know, it refuses."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from feda2l.algorithms import ALGORITHMS, Algorithm
from feda2l.data import CATALOG
from feda2l.data.catalog import is_series
from feda2l.errors import FedA2LError
from feda2l.experiment.reading import Source, explain, read_toml, with_sets
from feda2l.imports import import_object
from feda2l.layers import Granularity
from feda2l.models import MODELS
from feda2l.names import look_up
from feda2l.network.profiles import LINKS, SPEEDS
from feda2l.rates import RULES, Rule
from feda2l.rates.feda2l import DEEP, FedA2LRule
from feda2l.topology import TOPOLOGIES

Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, strict=True)]
T = TypeVar("T")


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


class Section(BaseModel):
    """A table of the spec; what it does not know, it refuses."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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


def section_of(field: FieldInfo) -> type[Section] | None:
    """The section that a field of the spec holds, also one that may be left out; None of a plain key."""
    kinds = get_args(field.annotation) or (field.annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


class NamedSection(Section):
    """A table whose further keys depend on its `name`; they are the fields of the dataclass of that name."""

    model_config = ConfigDict(frozen=True, extra="allow")

    def parameters(self, section: str, table: Mapping[str, type[T]], base: type[T]) -> T:
        """The object of that name from a table, or a user's own by import path, with this table's keys."""
        name: str = self.name  # type: ignore[attr-defined]
        kind = _own(name, section, base) if ":" in name else look_up(name, table, f"{section}.name")
        try:
            return TypeAdapter(kind).validate_python(self.model_extra or {})
        except ValidationError as error:
            raise _Nested(section, error, [*type(self).model_fields, *_parameters(kind)]) from error


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
    precision: Literal["fp32", "tf32", "bf16"] = Field(default="fp32", description="of a GPU's products")
    deterministic: bool = Field(default=False, description="on a GPU; the CPU always is")
    workers: int | None = Field(default=None, ge=0, description="processes; default one a core, 0: none", examples=[2])
    checkpoint_seconds: NotNegative = Field(default=60.0, description="time between checkpoints")


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


class Spec(Section):
    """A whole run. Every key has a default, so a file holds only what differs."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="names the run's folder")
    seed: int = Field(default=1, ge=0, description="of the start and the batches")
    rounds: Count = Field(default=100, description="communication rounds")
    faults: str | None = Field(
        default=None,
        description="a fault plan: who crashes, hangs or is not heard, and when",
        examples=["faults.toml"],
    )
    data: DataSpec = Field(default_factory=DataSpec)
    model: ModelSpec = Field(default_factory=ModelSpec)
    topology: TopologySpec = Field(default_factory=TopologySpec)
    algorithm: AlgorithmSpec = Field(default_factory=AlgorithmSpec)
    rates: RatesSpec = Field(default_factory=RatesSpec)
    training: TrainingSpec = Field(default_factory=TrainingSpec)
    evaluation: EvaluationSpec = Field(default_factory=EvaluationSpec)
    network: NetworkSpec | None = None
    runtime: RuntimeSpec = Field(default_factory=RuntimeSpec)
    _source: Source = PrivateAttr(default_factory=Source)

    @model_validator(mode="before")
    @classmethod
    def _fit_data(cls, values: Any) -> Any:
        """Unless told: data that name their nodes are dealt to these; a series is split in time, a node a site, and
        trained in the batches of its protocol."""
        data = values.get("data", {}) if isinstance(values, Mapping) else {}
        name = data.get("name") if isinstance(data, Mapping) else None
        if name == "csv" and data.get("node") is not None:
            values = {**values, "data": {"partition": "natural", **data}}
        if not (is_series(name) or (name == "csv" and data.get("target") is None)):
            return values
        training = values.get("training", {})
        fitted: dict[str, Any] = {"data": {"partition": "natural", "train_fraction": 0.8, **data}}
        if isinstance(training, Mapping):
            fitted["training"] = {"batch_size": 32, "drop_last": False, **training}
        return {**values, **fitted}

    @classmethod
    def parse(cls, values: Mapping[str, Any], source: str = "spec", sets: Sequence[str] = ()) -> "Spec":
        """A spec from plain values and `key=value` overrides; every mistake in it is named at once."""
        values, given = with_sets(values, sets)
        origin = Source(source, given)
        try:
            spec = cls.model_validate(values)
            spec._source = origin
            return spec
        except _Nested as nested:
            problems = explain(nested.error, origin, cls, nested.section, nested.known)
        except ValidationError as error:
            problems = explain(error, origin, cls)
        except FedA2LError as error:
            problems = [origin.before(str(error))]
        raise FedA2LError("\n".join(problems), see="spec")

    @classmethod
    def load(cls, path: str | Path, sets: Sequence[str] = ()) -> "Spec":
        """A spec from a TOML file."""
        return cls.parse(read_toml(path), str(path), sets)

    def resolved(
        self,
        *,
        layers: int,
        model: str,
        loss: str | None = None,
        nodes: int | None = None,
        start_sha256: str | None = None,
    ) -> "Spec":
        """The same spec with every default filled in that depends on the data, the model or the rounds."""
        rates = self.rates.model_dump() | {"horizon": self.rates.horizon or self.rounds}
        training, topology = self.training.model_dump(), self.topology.model_dump()
        for section, values in (("training", training), ("topology", topology)):
            given = getattr(self, section).model_fields_set
            own = self.algorithm.algorithm.defaults.get(section, {})
            values |= {key: value for key, value in own.items() if key not in given}
        rule = self.rates.rule
        if isinstance(rule, FedA2LRule):
            rule = rule.resolved(layers, model=model, data=self.data.name)
            if rule.preset == "reference" and layers > DEEP and "momentum" not in self.training.model_fields_set:
                training["momentum"] = 0.0
        rates |= {key: getattr(rule, key) for key in _parameters(type(rule))}
        algorithm = self.algorithm.model_dump()
        algorithm |= {
            key: getattr(self.algorithm.algorithm, key) for key in _parameters(type(self.algorithm.algorithm))
        }
        values = self.model_dump() | {
            "rates": rates,
            "training": training,
            "topology": topology,
            "algorithm": algorithm,
        }
        values["model"] |= {"name": model, "loss": loss or self.model.loss, "start_sha256": start_sha256}
        values["data"] |= {"nodes": nodes or self.data.nodes}
        return Spec.model_validate(values)

    @contextmanager
    def at_fault(self) -> Iterator[None]:
        """Mistakes that show only when the spec meets its data and model are put down to where it was given."""
        try:
            yield
        except FedA2LError as error:
            raise type(error)(self._source.before(str(error)), see=error.see) from error

    def to_toml(self) -> str:
        """The spec as a TOML file that parses back to it; keys without a value are left out."""
        return tomli_w.dumps(_plain(self.model_dump(exclude_none=True)))


def _parameters(kind: Any) -> list[str]:
    """The parameters of a rule or an algorithm: the fields of its dataclass."""
    return [field.name for field in dataclasses.fields(kind)]


def _own(path: str, section: str, base: type[T]) -> type[T]:
    """A user's own rule or algorithm by import path."""
    kind = import_object(path, f"{section}.name")
    if not (isinstance(kind, type) and issubclass(kind, base)):
        found = "a class" if isinstance(kind, type) else f"a {type(kind).__name__}"
        wanted = f"{base.__module__.removesuffix('.base')}.{base.__name__}"
        raise FedA2LError(f'{section}.name = "{path}" is {found}, but not a subclass of {wanted}', see="own-code")
    if "__dataclass_fields__" not in vars(kind):
        raise FedA2LError(
            f'{section}.name = "{path}" is no dataclass of its own, so its parameters would not be seen; '
            "put @dataclass(frozen=True, kw_only=True) above it",
            see="own-code",
        )
    return kind


class _Nested(Exception):
    """A ValidationError inside a named section, on its way past pydantic."""

    def __init__(self, section: str, error: ValidationError, known: list[str]) -> None:
        super().__init__(str(error))
        self.section, self.error, self.known = section, error, known


def _plain(value: Any) -> Any:
    """Tuples as lists, None left out: what TOML can write."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    return list(value) if isinstance(value, tuple) else value
