"""A run's specification: one frozen model, stored as TOML; unknown keys are errors."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, PrivateAttr, ValidationError, model_validator

from feda2l.algorithms import Composed
from feda2l.data.catalog import is_series
from feda2l.errors import FedA2LError
from feda2l.old_names import current_spec
from feda2l.plain_values import PlainDict, PlainMapping
from feda2l.rates.feda2l import DEEP, FedA2LRule
from feda2l.spec.schema_base import Count, Nested, Section, option, parameters_of
from feda2l.spec.sections import (
    AlgorithmSpec,
    DataSpec,
    EvaluationSpec,
    ModelSpec,
    NetworkSpec,
    RatesSpec,
    RuntimeSpec,
    TopologySpec,
    TrainingSpec,
)
from feda2l.toml_files import TomlSource, explain, read_toml, with_sets

# tables that only the file of a study has
STUDY_KEYS = ("base", "axes", "variants", "extra")


class Spec(Section):
    """A complete run. Every key has a default, so a file holds only the keys that differ."""

    name: str = option("run", "name of the run and of its folder", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    seed: int = option(1, "seed of the initial model and the batches", ge=0)
    rounds: Count = option(100, "communication rounds")
    faults: str | None = option(
        None, "a fault plan: which nodes crash, hang or cannot be reached, and when", example="faults.toml"
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
    _source: TomlSource = PrivateAttr(default_factory=TomlSource)

    @model_validator(mode="before")
    @classmethod
    def _fit_data(cls, values: Any) -> Any:
        """Set defaults that depend on the data.

        Data that name their nodes are assigned to these nodes. A time series is split by time, with one node per site,
        and trained in the batches of its protocol.
        """
        data = values.get("data", {}) if isinstance(values, Mapping) else {}
        name = data.get("name") if isinstance(data, Mapping) else None
        if name == "csv" and data.get("node_column") is not None:
            values = {**values, "data": {"partition": "natural", **data}}
        if not (is_series(name) or (name == "csv" and data.get("target_column") is None)):
            return values
        training = values.get("training", {})
        fitted: PlainDict = {"data": {"partition": "natural", "train_fraction": 0.8, **data}}
        if isinstance(training, Mapping):
            fitted["training"] = {"batch_size": 32, "drop_last": False, **training}
        return {**values, **fitted}

    @classmethod
    def parse(cls, values: PlainMapping, source: str = "spec", sets: Sequence[str] = ()) -> "Spec":
        """Make a spec from plain values and `key=value` overrides; one error names every mistake."""
        values, given = with_sets(values, sets)
        origin = TomlSource(source, given)
        try:
            spec = cls.model_validate(values)
            spec._source = origin
            return spec
        except Nested as nested:
            problems = explain(nested.error, origin, cls, nested.section, nested.known)
        except ValidationError as error:
            problems = explain(error, origin, cls)
        except FedA2LError as error:
            problems = [origin.before(str(error))]
        raise FedA2LError("\n".join(problems), see="spec")

    @classmethod
    def load(cls, path: str | Path, sets: Sequence[str] = ()) -> "Spec":
        """Read a spec from a TOML file."""
        values = read_toml(path)
        if any(key in values for key in STUDY_KEYS):
            raise FedA2LError(f"this is a study of many runs; use: feda2l study {path}", file=path, see="spec")
        return cls.parse(values, str(path), sets)

    @classmethod
    def load_saved(cls, path: Path) -> "Spec":
        """Read the spec of a run folder, which may have the keys of an older version."""
        return cls.parse(current_spec(read_toml(path)), str(path))

    def resolved(
        self,
        *,
        layers: int,
        model: str,
        loss: str | None = None,
        nodes: int | None = None,
        initial_weights_sha256: str | None = None,
    ) -> "Spec":
        """Return the spec with every default filled in that depends on the data, the model or the rounds."""
        values = self.model_dump()
        for section in ("training", "topology"):
            values[section] |= self._algorithm_defaults(section)
        rule = self.rates.rule
        if isinstance(rule, FedA2LRule):
            rule = rule.resolved(layers, model=model, data=self.data.name)
            if rule.preset == "reference" and layers > DEEP and "momentum" not in self.training.model_fields_set:
                values["training"]["momentum"] = 0.0
        values["rates"] |= {"horizon": self.rates.horizon or self.rounds} | _parameters(rule)
        values["algorithm"] |= _parameters(self.algorithm.algorithm)
        values["model"] |= {
            "name": model,
            "loss": loss or self.model.loss,
            "initial_weights_sha256": initial_weights_sha256,
        }
        values["data"] |= {"nodes": nodes or self.data.nodes}
        return Spec.model_validate(values)

    def _algorithm_defaults(self, section: str) -> PlainDict:
        """Return the algorithm's defaults for a section, without the keys that the user gave."""
        given = getattr(self, section).model_fields_set
        defaults = self.algorithm.algorithm.defaults.get(section, {})
        return {key: value for key, value in defaults.items() if key not in given}

    @contextmanager
    def at_fault(self) -> Iterator[None]:
        """Add the spec's file to the message of an error that appears only with its data or model."""
        try:
            yield
        except FedA2LError as error:
            raise type(error)(self._source.before(str(error)), see=error.see) from error

    def to_toml(self) -> str:
        """Return the spec as TOML that parses back to it; keys without a value are left out."""
        return tomli_w.dumps(_plain(self.model_dump(exclude_none=True)))


def _parameters(of: object) -> PlainDict:
    if isinstance(of, Composed):
        tables = {name: _parameters(part) for name, part in of.parts}
        # TOML has no None, and a saved spec must equal the one that it came from
        return {
            name: {key: value for key, value in table.items() if value is not None}
            for name, table in tables.items()
            if table
        }
    return {key: getattr(of, key) for key in parameters_of(type(of))}


def _plain(value: Any) -> Any:
    """Convert to what TOML can hold: tuples become lists, and None is left out."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    return list(value) if isinstance(value, tuple) else value
