"""The cells of a study: every combination of its axes with every variant, and the extra cells, each with a name."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from feda2l.errors import FedA2LError
from feda2l.spec.spec import Spec
from feda2l.studies.protocols import READINGS, read_as

if TYPE_CHECKING:
    from feda2l.studies.study import Study

Table = dict[str, Any]
STAGES = "stages"  # the folder beside the cells' that holds the trials of the first stages


@dataclass(frozen=True)
class StudyCell:
    """One setting of a study; each seed of it is one run."""

    name: str
    values: Table  # a partial spec, including what the reading adds
    source: str  # the file and the cell, for messages
    variant: str | None = None
    axes: Table = field(default_factory=dict)
    block: str = ""  # for a reading with several blocks
    tuned: bool = False  # whether a first stage finds one of its keys
    partition_varies: bool = False  # with the seed
    paired: str | None = None  # the cell whose run of the same seed it follows, and whose tuned key it takes

    def spec(self, seed: int, *, name: str | None = None, **changes: Any) -> Spec:
        """The spec of a run; `changes` are dotted keys."""
        return Spec.parse(self._values(seed, name, changes), self.source)

    def check(self, seed: int, overrides: Sequence[str]) -> Spec:
        """The spec of a run; an error names the file, cell or override that caused it."""
        return Spec.parse(self._values(seed, None, {}), self.source, overrides)

    def _values(self, seed: int, name: str | None, changes: Mapping[str, Any]) -> Table:
        values = self.values
        if self.partition_varies:
            values = merged({"data": {"partition_seed": seed}}, values)
        for key, value in {"name": name or f"{self.name}-{seed}", "seed": seed, **changes}.items():
            values = merged(values, nested(key, value))
        return values


def expand(study: "Study", source: str, tuned: str | None, overrides: Sequence[str] = ()) -> list[StudyCell]:
    """Every cell of a study in the order of its file; an invalid or repeated one is an error."""
    cells = _unique(list(_read_cells(study, source, tuned)))
    specs = [cell.check(study.seeds[0], overrides) for cell in cells]
    # a search finds the base rate, whatever it is
    searched = [tuned == "rates.base" and spec.algorithm.algorithm.rate_search is not None for spec in specs]
    cells = [replace(cell, tuned=cell.tuned and not own) for cell, own in zip(cells, searched, strict=True)]
    _refuse_twins(cells, specs, source)
    return [_paired(cell, cells) for cell in cells]


def _read_cells(study: "Study", source: str, tuned: str | None) -> Iterator[StudyCell]:
    """Every cell under the study's reading; names may repeat."""
    partition_varies = study.reading is not None and READINGS[study.reading].partition_varies
    for variant, axes, own in _combinations(study):
        given = merged(study.base, own)
        label = "-".join(filter(None, (variant, *itertools.starmap(_word, axes.items())))) or study.name
        # the study's own [tune] is for what its base gives, the reading's only for what the study leaves open
        is_tuned = tuned is not None and not has(own if study.tune else given, tuned)
        varies = partition_varies and not has(given, "data.partition_seed")
        for block, values in read_as(study.reading, given):
            name = f"{label}-{block}" if block else label
            where = f"{source}, cell {name}"
            yield StudyCell(name, values, where, variant, axes, block, tuned=is_tuned, partition_varies=varies)


def target_of(cell: StudyCell, cells: Sequence[StudyCell], name: str) -> StudyCell | None:
    """The cell that `target_from` names for a cell: that of the same variant, otherwise the one with that name."""
    names = ((cell.variant, name, cell.block), (cell.variant, name), (name, cell.block), (name,))
    by_name = {cell.name: cell for cell in cells}
    return next((by_name[own] for own in ("-".join(filter(None, parts)) for parts in names) if own in by_name), None)


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> Table:
    """Merge two tables; values of `more` win."""
    result = dict(base)
    for key, value in more.items():
        before = result.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[key] = merged(before, value) if both else value  # type: ignore[arg-type]
    return result


def nested(key: str, value: Any) -> Table:
    """`{"a": {"b": value}}` for the key `a.b`."""
    for part in reversed(key.split(".")):
        value = {part: value}
    table: Table = value
    return table


def has(table: Mapping[str, Any], key: str) -> bool:
    """Whether a table has the dotted key."""
    section, _, rest = key.partition(".")
    inside = table.get(section)
    return section in table and (not rest or (isinstance(inside, Mapping) and has(inside, rest)))


def _combinations(study: "Study") -> Iterator[tuple[str | None, Table, Table]]:
    """The name of a variant, the values of the axes, and both as a partial spec; the extra cells come last."""
    variants: list[tuple[str | None, Table]] = [*study.variants.items()] or [(None, {})]
    if study.axes or study.variants or not study.extra:
        for variant, partial in variants:
            for values in itertools.product(*study.axes.values()):
                axes = dict(zip(study.axes, values, strict=True))
                own = partial
                for key, value in axes.items():
                    own = merged(own, nested(key, value))
                yield variant, axes, own
    for name, partial in study.extra.items():
        yield name, {}, partial


def _word(key: str, value: Any) -> str:
    """An axis value as part of a name: a string as it is, any other value after the last part of its key."""
    text = str(value) if isinstance(value, str) else f"{key.split('.')[-1]}-{str(value).lower()}"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "x"


def _unique(cells: list[StudyCell]) -> list[StudyCell]:
    """Make the names unique, as each is a folder: a repeated name gets a number."""
    seen: Counter[str] = Counter({STAGES: 1})
    result = []
    for cell in cells:
        seen[cell.name] += 1
        number = seen[cell.name]
        result.append(cell if number == 1 else replace(cell, name=f"{cell.name}-{number}"))
    return result


def _refuse_twins(cells: list[StudyCell], specs: list[Spec], source: str) -> None:
    """Raise an error if two cells would run the same spec."""
    known: dict[str, str] = {}
    for cell, spec in zip(cells, specs, strict=True):
        plain = spec.model_dump(exclude={"name"})
        for section in ("rates", "algorithm"):
            plain[section] = {key: plain[section][key] for key in type(getattr(spec, section)).model_fields}
        facts = repr((plain, spec.rates.rule, spec.algorithm.algorithm))
        if facts in known:
            raise FedA2LError(f"{source}: the cells {known[facts]} and {cell.name} are the same; leave one out")
        known[facts] = cell.name


def _paired(cell: StudyCell, cells: Sequence[StudyCell]) -> StudyCell:
    """`rates.paired` may name a cell, or a variant under the same axes, in place of a folder."""
    name = cell.values.get("rates", {}).get("paired")
    if not name:
        return cell
    same = (other for other in cells if other.variant == name and (other.axes, other.block) == (cell.axes, cell.block))
    found = next((other for other in cells if other.name == name), next(same, None))
    return cell if found is None or found is cell else replace(cell, paired=found.name, tuned=False)
