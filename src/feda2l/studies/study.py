"""A study: many runs in one TOML file, from a base spec, axes (every combination is run) and named variants."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from feda2l.errors import FedA2LError
from feda2l.names import look_up
from feda2l.spec.schema_base import Count, Section, Share, option
from feda2l.spec.spec import STUDY_KEYS, Spec
from feda2l.studies.cells import StudyCell, expand, target_of
from feda2l.studies.primary_tests import parse_primary_test
from feda2l.studies.protocols import READINGS, Reading
from feda2l.toml_files import TomlSource, explain, parse_set, read_toml, with_sets

Table = dict[str, Any]
Seed = Annotated[int, Field(ge=0, strict=True)]


class ReportSection(Section):
    """How the report lays out the runs. `rows` and `columns` are keys of a spec; by default the report chooses them."""

    rows: str | None = option(None, "what a row stands for")
    columns: tuple[str, ...] = option((), "what the columns stand for")
    primary: tuple[str, ...] = option((), 'tests registered before the runs: "CELL against CELL: MEASURE"')

    @field_validator("primary")
    @classmethod
    def _readable(cls, tests: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(map(parse_primary_test, tests))) < len(tests):
            raise ValueError("a test is registered twice")
        return tests


class TuneSection(Section):
    """A first stage: every cell is run with each value and scored on data that no node trains on; the best is used."""

    key: str = option("rates.base", "what is tuned")
    values: tuple[Any, ...] = option((0.03, 0.01, 0.003, 0.001), "same for all cells", min_length=1)
    rounds: Count | None = option(None, "of every trial; default a fifth of the run's")
    seed: Seed = option(1000, "of the trials; none of the study's own")
    by: Literal["accuracy", "train_loss"] | None = option(
        None, "default accuracy; of series, which leave nothing untrained, train_loss"
    )


class TargetSection(Section):
    """The target from a separate run: a share of its best smoothed value, fixed before the other cells run."""

    cell: str = Field(description="the cell that it is taken from; with variants, each variant's own")
    share: Share = option(0.95, "of the best accuracy; an MSE is divided by it")
    seed: Seed = option(1001, "of that run; none of the study's own")


class Study(Section):
    """A whole study, as in its file."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="names the study's folder")
    title: str = option("", "one line for people")
    seeds: tuple[Seed, ...] = option((1,), "a list, or a number n for seeds 1 to n")
    reading: Reading | None = option(None, "a whole protocol: paper, reference or fair")
    timing: bool = option(False, "one run at a time, so that its seconds are its own")
    keep_checkpoints: bool = option(True, "of finished runs; without, their records stay")
    base: Table = Field(default_factory=dict, description="a spec that all runs share")
    axes: dict[str, list[Any]] = Field(default_factory=dict, description="key of a spec -> values; all combinations")
    variants: dict[str, Table] = Field(default_factory=dict, description="partial specs, combined with the axes")
    extra: dict[str, Table] = Field(default_factory=dict, description="partial specs that are cells by themselves")
    report: ReportSection = Field(default_factory=ReportSection)
    tune: TuneSection | None = None
    target_from: TargetSection | None = None
    _source: TomlSource = PrivateAttr(default_factory=TomlSource)
    _overrides: tuple[str, ...] = PrivateAttr(default=())

    @field_validator("seeds", mode="before")
    @classmethod
    def _count(cls, seeds: Any) -> Any:
        if isinstance(seeds, int) and not isinstance(seeds, bool):
            if seeds < 1:
                raise ValueError("at least one seed is needed")
            return tuple(range(1, seeds + 1))
        return seeds

    @field_validator("seeds")
    @classmethod
    def _some(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if not seeds:
            raise ValueError("at least one seed is needed")
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed is given twice")
        return seeds

    @field_validator("axes", mode="before")
    @classmethod
    def _flat(cls, axes: Any) -> Any:
        """Accept `rates.name = [...]` as well as `"rates.name" = [...]`."""
        return dict(_leaves(axes)) if isinstance(axes, Mapping) else axes

    @field_validator("axes")
    @classmethod
    def _not_empty(cls, axes: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for key, values in axes.items():
            if not values:
                raise ValueError(f"{key} has no value; give it at least one")
        return axes

    @field_validator("base", "variants", "extra")
    @classmethod
    def _tables(cls, tables: Table) -> Table:
        """A section of a spec must be a table here too."""
        sections = [key for key, own in Spec.model_fields.items() if own.default_factory is not None]
        for table in (tables, *(value for value in tables.values() if isinstance(value, Mapping))):
            for key in sections:
                if key in table and not isinstance(table[key], Mapping):
                    raise ValueError(f"{key} is a section, not {table[key]!r}")
        return tables

    @model_validator(mode="after")
    def _separate(self) -> Self:
        for name, stage in (("tune", self.tuning), ("target_from", self.target_from)):
            if stage is not None and stage.seed in self.seeds:
                raise FedA2LError(
                    f"{name}.seed = {stage.seed} is one of the study's own seeds; choose another", see="spec"
                )
        return self

    @classmethod
    def parse(cls, values: Mapping[str, Any], source: str = "study", sets: Sequence[str] = ()) -> "Study":
        """A study from plain values and `key=value` overrides, which are keys of a study, or of a spec for all runs."""
        own = [text for text in sets if parse_set(text)[0].split(".")[0] in cls.model_fields]
        overrides = [text for text in sets if text not in own]
        merged, given = with_sets(copy.deepcopy(dict(values)), own)
        origin = TomlSource(source, given)
        try:
            study = cls.model_validate(merged)
            study = cls.model_validate(_overridden(study.model_dump(exclude_none=True), overrides))
            study._source, study._overrides = origin, tuple(overrides)
        except ValidationError as error:
            raise FedA2LError("\n".join(explain(error, origin, cls)), see="spec") from error
        except FedA2LError as error:
            raise FedA2LError(origin.before(str(error)), see="spec") from error
        study._check_primary_tests(study.cells)  # errors in cells are raised before anything runs
        return study

    @classmethod
    def load(cls, name: str | Path, sets: Sequence[str] = ()) -> "Study":
        """A study from a TOML file, or a shipped study by name."""
        path = Path(name)
        if path.suffix != ".toml" and not path.is_file():
            path = look_up(str(name), shipped(), "study")
        values = read_toml(path)
        of_a_spec = [key for key in values if key in Spec.model_fields and key not in cls.model_fields]
        if of_a_spec and not any(key in values for key in STUDY_KEYS):
            raise FedA2LError(f"this is a spec of one run; use: feda2l run {path}", file=path, see="spec")
        return cls.parse(values, str(path), sets)

    @cached_property
    def cells(self) -> list[StudyCell]:
        """Every cell; each seed of it is one run."""
        tuning = self.tuning.key if self.tuning else None
        cells = expand(self, self._source.name, tuning, self._overrides)
        if wanted := self.target_from:
            for cell in cells:
                if target_of(cell, cells, wanted.cell) is None:
                    known = ", ".join(other.name for other in cells)
                    raise FedA2LError(
                        f"{self._source.name}: target_from.cell = {wanted.cell!r}: {cell.name} has no such cell "
                        f"to take its target from; there are {known}",
                        see="spec",
                    )
        return cells

    def _check_primary_tests(self, cells: Sequence[StudyCell]) -> None:
        known = [cell.name for cell in cells]
        for test in map(parse_primary_test, self.report.primary):
            for name in (test.first, test.second):
                if name not in known:
                    raise FedA2LError(
                        f"{self._source.name}: [report] primary: the study has no cell {name!r}; "
                        f"its cells are {', '.join(known)}",
                        see="compare",
                    )

    @property
    def tuning(self) -> TuneSection | None:
        """The first stage that the study or its reading asks for."""
        return self.tune or (TuneSection() if self.reading and READINGS[self.reading].tuned else None)

    def to_toml(self) -> str:
        """The study as a TOML file that parses back to it."""
        return tomli_w.dumps(_plain(self.model_dump(exclude_none=True)))


def shipped() -> dict[str, Path]:
    """The shipped studies by name."""
    folder = Path(str(files("feda2l").joinpath("studies", "shipped")))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def _leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _overridden(study: Table, overrides: Sequence[str]) -> Table:
    """Set the key of a spec in the base, and in every variant that has its own value for it."""
    for text in overrides:
        key, _ = parse_set(text)
        if key == "seed":
            raise FedA2LError(f"--set {text}: a study has seeds; use --seeds or --set seeds=[...]", see="spec")
        if key in study["axes"]:
            raise FedA2LError(
                f"--set {text}: {key} is an axis of the study; use --set 'axes.{key}=[...]' or --only", see="spec"
            )
        study["base"], _ = with_sets(study["base"], [text])
        section, _, inner = key.partition(".")
        for tables in (study["variants"], study["extra"]):
            for name, table in tables.items():
                if section in table and (not inner or inner in table[section]):
                    tables[name], _ = with_sets(table, [text])
    return study


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
