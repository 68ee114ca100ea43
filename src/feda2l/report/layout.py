"""How runs become tables: which keys of their specs make rows, columns, blocks and tables of their own."""

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

# keys that others often depend on come first: a key that tells no two runs apart after these has no column
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
    """Runs that belong together, and what their study's [report] asks for."""

    name: str
    runs: list[FoundRun]
    wishes: Mapping[str, Any]


@dataclass(frozen=True)
class TableLayout:
    """The keys of each direction; a table is for runs that differ in nothing but rows, columns and blocks."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    blocks: tuple[str, ...]
    tables: tuple[str, ...]


def studies_of(runs: Sequence[FoundRun], top: Iterable[Path]) -> list[StudyRuns]:
    """Runs by the study whose folder they lie in; those of one study in several folders are one."""
    ends = {folder.resolve().parent for folder in top}
    groups: dict[str, list[FoundRun]] = defaultdict(list)
    wishes: dict[str, Mapping[str, Any]] = {}
    above = functools.cache(functools.partial(_study_above, ends=ends))
    for run in runs:
        name, own = above(run.path.resolve().parent)
        groups[name].append(run)
        wishes.setdefault(name, own)
    return [StudyRuns(name, own, wishes[name]) for name, own in groups.items()]


def lay_out(runs: Sequence[FoundRun], wishes: Mapping[str, Any], notes: Notes) -> TableLayout:
    """Rows and columns as the study wishes them; else rate rules down, algorithms in blocks, the rest across."""
    rows, columns = _wished(wishes, "rows"), _wished(wishes, "columns")
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
    """The keys in which runs differ; a key that follows from others (a rule's parameters) is none of its own."""
    every = set[str]().union(*(run.keys for run in runs))
    # a control is paired with the run of its own seed, so that key differs with the seed and says no more
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
            notes.add("differs together with other keys, so its effect cannot be told from theirs", key)
    return chosen


def _value(run: FoundRun, key: str) -> str:
    """What a run has of a key; one that is older than the key has what is the default since."""
    return repr(run.keys.get(key, default_settings().get(key)))


@functools.cache
def default_settings() -> dict[str, Any]:
    """Of the sections whose keys are the same for all runs; what a rule or an algorithm asks for is its own."""
    every = Spec().model_dump(exclude_none=True)
    shared = {section: every[section] for section in ("data", "topology", "training", "evaluation", "runtime")}
    return flatten(shared) | {"rates.window_form": "sample"}  # runs made before this key existed are like today's


def label(run: FoundRun, keys: Iterable[str], usual: Mapping[str, Any] | None = None) -> str:
    """What the keys are in this run, in words: `feda2l, window 5`; what is as usual goes without saying."""
    there = [key for key in keys if key in run.keys]
    told = [key for key in there if usual is None or key not in usual or run.keys[key] != usual[key]]
    return ", ".join(_word(key, run.keys[key]) for key in told) or ("default" if there else "all")


def usual_values(runs: Iterable[FoundRun], keys: Sequence[str]) -> dict[str, Any]:
    """Of several numbers that make a row, the value most runs have of each: a row is called by what differs from it."""
    numbers = [key for key in keys if not key.endswith("name")]
    if len(numbers) < 2:
        return {}
    counts = {key: Counter(run.keys[key] for run in runs if key in run.keys) for key in numbers}
    return {key: count.most_common(1)[0][0] for key, count in counts.items() if count}


def order(run: FoundRun, keys: Iterable[str]) -> tuple[Hashable, ...]:
    """Rules and algorithms in the order of `feda2l list`, numbers by size, words by letter."""
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


def _word(key: str, value: Any) -> str:
    section, _, last = key.rpartition(".")
    if last == "name":
        return str(value)
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f"base rate {shown}" if key == "rates.base" else f"{last.replace('_', ' ') if section else last} {shown}"


def _wished(wishes: Mapping[str, Any], what: str) -> tuple[str, ...]:
    keys = wishes.get(what, ())
    return (keys,) if isinstance(keys, str) else tuple(keys)


def _study_above(folder: Path, ends: set[Path]) -> tuple[str, Mapping[str, Any]]:
    """The study whose folder this is or lies in, no higher than the folders the report was asked for."""
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
