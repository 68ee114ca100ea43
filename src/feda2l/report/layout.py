"""Lay out runs as tables: which keys of their specs make rows, columns, blocks and separate tables."""

import functools
import tomllib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feda2l.algorithms import ALGORITHMS
from feda2l.errors import FedA2LError
from feda2l.rates import RULES
from feda2l.report.find_runs import IRRELEVANT, FoundRun, Notes, flatten
from feda2l.spec.spec import Spec

# keys that other keys depend on come first; a later key gets a column only if it separates runs further
FIRST = (
    "data.name",
    "model.name",
    "algorithm.name",
    "topology.name",
    "data.nodes",
    "data.alpha",
    "rates.name",
    "rates.preset",
    "rounds",
)
LAST = ("evaluation.target",)
APART = ("data.name", "evaluation.target", "evaluation.on", "evaluation.smoothing", "evaluation.every", "rounds")


@dataclass(frozen=True)
class StudyRuns:
    """Runs that belong together, and the `[report]` section of their study."""

    name: str
    runs: list[FoundRun]
    wishes: Mapping[str, object]


@dataclass(frozen=True)
class TableLayout:
    """The keys of each direction; the runs of a table differ only in keys of its rows, columns and blocks."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    blocks: tuple[str, ...]
    tables: tuple[str, ...]


def studies_of(runs: Sequence[FoundRun], top: Iterable[Path]) -> list[StudyRuns]:
    """Group runs by the study whose folder contains them; a study may be spread over several folders."""
    ends = {folder.resolve().parent for folder in top}
    groups: dict[str, list[FoundRun]] = defaultdict(list)
    wishes: dict[str, Mapping[str, object]] = {}
    above = functools.cache(functools.partial(_study_above, ends=ends))
    for run in runs:
        name, own = above(run.path.resolve().parent)
        groups[name].append(run)
        wishes.setdefault(name, own)
    return [StudyRuns(name, own, wishes[name]) for name, own in groups.items()]


def lay_out(runs: Sequence[FoundRun], wishes: Mapping[str, object], notes: Notes) -> TableLayout:
    """Rows and columns as the study sets them; by default rate rules are rows, algorithms blocks, the rest columns."""
    rows, columns = texts_in(wishes, "rows"), texts_in(wishes, "columns")
    left = _without(varying_keys(runs, notes), *rows, *columns)
    if not rows:
        rows = _starting("rates.", left) or _starting("algorithm.", left) or _without(left, *APART) or ("rates.name",)
        left = _without(left, *rows)
    rest = _without(left, *APART)
    blocks = rest if columns else _starting("algorithm.", rest)
    return TableLayout(rows, columns or _without(rest, *blocks), blocks, _without(left, *rest))


def _without(keys: Iterable[str], *others: str) -> tuple[str, ...]:
    return tuple(key for key in keys if key not in others)


def _starting(start: str, keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(key for key in keys if key.startswith(start))


def varying_keys(runs: Sequence[FoundRun], notes: Notes) -> list[str]:
    """The keys in which runs differ, without keys that follow from others, such as the parameters of a rule."""
    every = set[str]().union(*(run.keys for run in runs))
    # a control is paired with the run of its own seed, so this key differs with the seed only
    ignored = {"seed", "name", "rates.paired", "runtime.checkpoint_seconds", *IRRELEVANT}
    pairs = {(run.seed, run.keys.get("data.partition_seed")) for run in runs}
    if len(pairs) == len(dict(pairs)):  # one partition seed for each seed
        ignored.add("data.partition_seed")
    middle = sorted(every - set(FIRST) - set(LAST) - ignored, key=lambda key: (key.split(".")[0] != "rates", key))
    chosen: list[str] = []
    parts = 1
    for key in (*FIRST, *middle, *LAST):
        if len(set(map(functools.partial(_value, key=key), runs))) == 1:
            continue
        count = len({tuple(_value(run, name) for name in (*chosen, key)) for run in runs})
        if count > parts:
            chosen.append(key)
            parts = count
        elif key.startswith(("training.", "data.", "topology.", "model.init", "algorithm.buffers")):
            notes.add(
                "settings that change together, so their effects cannot be separated",
                f"{key} changes with {' and '.join(_determining(key, chosen, runs))}",
            )
    return chosen


def _determining(key: str, chosen: Sequence[str], runs: Sequence[FoundRun]) -> list[str]:
    """The first of the chosen keys whose value alone determines that of `key`; all of them if none does."""
    for name in chosen:
        values = {_value(run, name) for run in runs}
        if len(values) == len({(_value(run, name), _value(run, key)) for run in runs}):
            return [name]
    return list(chosen)


def _value(run: FoundRun, key: str) -> str:
    """The value of a key; a record older than the key has its default."""
    return repr(run.keys.get(key, default_settings().get(key)))


@functools.cache
def default_settings() -> dict[str, Any]:
    """The defaults of the sections whose keys are the same for all runs, by dotted key."""
    every = Spec().model_dump(exclude_none=True)
    shared = {section: every[section] for section in ("data", "topology", "training", "evaluation", "runtime")}
    return flatten(shared) | {"rates.window_form": "sample"}  # runs made before this key existed are like today's


def label(run: FoundRun, keys: Iterable[str], usual: Mapping[str, object] | None = None) -> str:
    """Describe the keys of a run, for example `feda2l, window 5`; usual values are left out."""
    there = [key for key in keys if key in run.keys]
    told = [key for key in there if usual is None or key not in usual or run.keys[key] != usual[key]]
    return ", ".join(_word(key, run.keys[key]) for key in told) or ("default" if there else "all")


def usual_values(runs: Iterable[FoundRun], keys: Sequence[str]) -> dict[str, Any]:
    """The most common value of each of several numbers; a row is named by the values that differ from it."""
    numbers = [key for key in keys if not key.endswith("name")]
    if len(numbers) < 2:
        return {}
    counts = {key: Counter(run.keys[key] for run in runs if key in run.keys) for key in numbers}
    return {key: count.most_common(1)[0][0] for key, count in counts.items() if count}


def order(run: FoundRun, keys: Iterable[str]) -> tuple[Hashable, ...]:
    """Sort rules and algorithms as `feda2l list` does, numbers by size and other values by letter."""
    listed = {"rates.name": list(RULES), "algorithm.name": list(ALGORITHMS)}
    places: list[Hashable] = []
    for key in keys:
        value = run.keys.get(key)
        if key in listed and value in listed[key]:
            places.append((0, listed[key].index(value), ""))
        elif isinstance(value, int | float):
            places.append((1, value, ""))
        else:
            places.append((2 if value is not None else 0, 0, str(value)))
    return tuple(places)


def _word(key: str, value: object) -> str:
    section, _, last = key.rpartition(".")
    if last == "name":
        return str(value)
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f"base rate {shown}" if key == "rates.base" else f"{last.replace('_', ' ') if section else last} {shown}"


def texts_in(wishes: Mapping[str, object], what: str) -> tuple[str, ...]:
    """The texts under one key of a study's `[report]`."""
    texts = wishes.get(what, ())
    return (texts,) if isinstance(texts, str) else tuple(map(str, texts)) if isinstance(texts, list | tuple) else ()


def _study_above(folder: Path, ends: set[Path]) -> tuple[str, Mapping[str, object]]:
    """The study that this folder is in, not above the folders given to the report."""
    for place in (folder, *folder.parents):
        file = place / "study.toml"
        if file.exists():
            try:
                content = tomllib.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise FedA2LError(f"{file}: cannot be read: {error}") from error
            wishes = content.get("report", {})
            return str(content.get("name", place.name)), wishes if isinstance(wishes, Mapping) else {}
        if place in ends:
            break
    return "", {}
