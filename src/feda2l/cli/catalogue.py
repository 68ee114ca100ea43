"""The tables of `feda2l list`, built from the registries in which the code itself looks up names."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from rich.table import Table

from feda2l.algorithms import ALGORITHMS, PARTS
from feda2l.data import CATALOG
from feda2l.models import MODELS
from feda2l.network.profiles import LINKS, SPEEDS
from feda2l.rates import RULES, Rule
from feda2l.rates.feda2l import FedA2LRule
from feda2l.spec.schema_base import NamedSection, parameters_of, section_of
from feda2l.spec.spec import Spec
from feda2l.studies.study import Study, shipped
from feda2l.topology import TOPOLOGIES

BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
OWN = '"package.module:Class"'


def catalogue(what: str) -> list[Table]:
    """The table of the given kind, or the tables of all kinds."""
    return [make() for name, make in TABLES.items() if what in ("all", name)]


def index() -> str:
    """What can be listed: one line per kind, with its count and the first names."""
    lines = [f"{kind:<10} {len(names):>4}  {', '.join(names[:3])}, ..." for kind, names in _names().items()]
    return "\n".join(["List one kind, for example: feda2l list rates (or everything: feda2l list all)", *lines])


def _names() -> dict[str, list[str]]:
    return {
        "algorithms": [*ALGORITHMS, *PARTS],
        "rates": [*RULES],
        "topologies": [*TOPOLOGIES],
        "datasets": [*CATALOG],
        "models": [*MODELS],
        "networks": [*LINKS, *SPEEDS],
        "studies": [*shipped()],
        "keys": [key for key, kind, *_ in _section_rows() if kind],
    }


def _algorithms() -> Table:
    rows = [(name, kind.summary, kind.citation, _parameters(kind)) for name, kind in ALGORITHMS.items()]
    custom = (OWN, "your own subclass of feda2l.algorithms.Algorithm", "docs/add-an-algorithm.md", "its fields")
    parts = [(name, f"part: {kind.summary}", kind.citation, _parameters(kind)) for name, kind in PARTS.items()]
    joined = ("NAME+NAME", "several of these as the parts of one", "docs/combine-algorithms.md", "NAME.KEY")
    return _make_table("algorithms", ("name", "what it is", "reference", "parameters"), [*rows, *parts, joined, custom])


def _rates() -> Table:
    rows = [(name, kind.summary, _rule_parameters(kind)) for name, kind in RULES.items()]
    custom = (OWN, "your own subclass of feda2l.rates.Rule", "its fields")
    return _make_table("rates", ("name", "what it is", "parameters"), [*rows, custom])


def _topologies() -> Table:
    return _make_table("topologies", ("name", "what it is"), [(name, text) for name, (_, text) in TOPOLOGIES.items()])


def _datasets() -> Table:
    rows = [(entry.name, entry.description, entry.model, entry.source) for entry in CATALOG.values()]
    return _make_table("datasets", ("name", "what it is", "model", "source"), rows)


def _models() -> Table:
    rows = [(name, (make.__doc__ or "").splitlines()[0]) for name, make in MODELS.items()]
    return _make_table("models", ("name", "what it is"), [*rows, (OWN, "your own torch.nn.Module")])


def _networks() -> Table:
    links = [(name, "network.links", profile.summary) for name, profile in LINKS.items()]
    speeds = [(name, "network.speed", profile.summary) for name, profile in SPEEDS.items()]
    return _make_table("networks", ("name", "key", "what it is"), [*links, *speeds])


TABLES: dict[str, Callable[[], Table]] = {
    "algorithms": _algorithms,
    "rates": _rates,
    "topologies": _topologies,
    "datasets": _datasets,
    "models": _models,
    "networks": _networks,
    "studies": lambda: _make_table("studies", ("name", "what it is", "runs", "rounds"), _studies()),
    "keys": lambda: _make_table("keys of a spec", ("key", "type", "default", "what it is"), _section_rows()),
}


def _make_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _studies() -> Iterable[tuple[str, str, str, str]]:
    for name, path in shipped().items():
        study = Study.load(path)
        rounds = sum(cell.spec(study.seeds[0]).rounds for cell in study.cells) * len(study.seeds)
        yield name, study.title, str(len(study.cells) * len(study.seeds)), f"{rounds:,}"


def _section_rows() -> Iterable[tuple[str, str, str, str]]:
    """Every key of a spec with its default; a resolved spec omits keys with an empty default."""
    for name, field in Spec.model_fields.items():
        if (section := section_of(field)) is None:
            yield _key(name, field)
            continue
        for key, inner in section.model_fields.items():
            yield _key(f"{name}.{key}", inner)
        if issubclass(section, NamedSection):
            yield f"{name}. ...", "", "", f"the parameters of the chosen name: feda2l list {name.rstrip('s')}s"


def _key(name: str, field: FieldInfo) -> tuple[str, str, str, str]:
    default = "" if field.default is None else str(field.default).lower() if field.annotation is bool else field.default
    return name, _type(field.annotation, field.metadata), str(default), field.description or ""


def _type(kind: Any, limits: Iterable[object] = ()) -> str:
    """The allowed values as text: `int, at least 1`, `sgd | adam | adamw`."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " | ".join(_type(part, limits) for part in parts if part is not NoneType)
    if origin is Literal:
        return " | ".join(map(str, parts))
    if origin is tuple:
        return f"list of {_type(parts[0])}"
    if hasattr(kind, "__metadata__"):  # Annotated inside a union
        return _type(kind.__origin__, [part for field in kind.__metadata__ for part in getattr(field, "metadata", [])])
    return ", ".join([kind.__name__, *_bounds(limits)])


def _bounds(limits: Iterable[object]) -> Iterator[str]:
    for limit in limits:
        for name, word in BOUNDS.items():
            if (bound := getattr(limit, name, None)) is not None:
                yield f"{word} {bound:g}"


def _parameters(kind: type) -> str:
    """The parameters with their defaults."""
    shown = {field.name: field.default for field in dataclasses.fields(kind)}
    return ", ".join(name if value is None else f"{name}={value}" for name, value in shown.items())


def _rule_parameters(kind: type[Rule]) -> str:
    """The parameters of a rule. A control has the parameters of FedA2L, so only its additional ones are listed."""
    if kind.role != "control":
        return _parameters(kind)
    added = set(parameters_of(kind)).difference(parameters_of(FedA2LRule))
    return ", ".join(["as feda2l", *sorted(added)])
