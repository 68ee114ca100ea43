"""Runs at any depth, in run folders or in bundles: what each holds, and what has to be left out and why."""

import json
import os
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from feda2l.errors import FedA2LError
from feda2l.old_names import current_spec
from feda2l.records.bundle import bundle_above, check_has_manifest, open_bundle
from feda2l.records.folder_locks import is_locked, locked_folders
from feda2l.records.run_folder import RunFolder
from feda2l.report.run_records import ENDED, BundledRecords, FolderRecords, RunRecords, summary_of
from feda2l.studies.cells import STAGES

# keys that do not change a run's numbers; precision is the only key of [runtime] that does
IRRELEVANT = (
    "name",
    "evaluation.theory_every",
    "runtime.device",
    "runtime.engine",
    "runtime.deterministic",
    "runtime.workers",
)
TRIALS = "left out, the trials that a study's settings were chosen by"
SHOWN = 6  # paths named for one reason; the rest is counted


@dataclass(frozen=True)
class FoundRun:
    """A run that came to an end, as its records tell it; no file is trusted to be of this version.

    The path of a run in a bundle is that of the bundle and the run's path within it.
    """

    path: Path
    spec: Mapping[str, Any]
    summary: Mapping[str, Any]
    records: RunRecords

    @cached_property
    def keys(self) -> dict[str, Any]:
        """The spec's values by dotted key."""
        return flatten(self.spec)

    @cached_property
    def decides(self) -> frozenset[tuple[str, str]]:
        """What decides its numbers: two runs with this in common are one run twice."""
        ignored = (*IRRELEVANT, "runtime.checkpoint_seconds")
        return frozenset((key, repr(value)) for key, value in self.keys.items() if key not in ignored)

    @property
    def name(self) -> str:
        return str(self.keys.get("name", self.path.name))

    @property
    def seed(self) -> int:
        return int(self.keys.get("seed", 1))

    @property
    def rounds(self) -> int:
        """How many rounds it was meant to have: a run that did not reach its target took more than these."""
        return int(self.keys.get("rounds", self.summary.get("rounds", 0)))

    @property
    def non_finite(self) -> bool:
        return self.summary.get("status") == "non_finite"

    @cached_property
    def metric(self) -> str:
        """What it is scored by; older summaries do not say it."""
        known = ("accuracy", "mse")
        return str(self.summary.get("metric") or next((name for name in known if name in self.summary), "accuracy"))

    @property
    def falls(self) -> bool:
        """Is less better?"""
        return self.metric == "mse"

    @property
    def target(self) -> float | None:
        target = self.keys.get("evaluation.target")
        return None if target is None else float(target)

    @cached_property
    def naive(self) -> dict[str, float]:
        """The MSE of each forecast that needs no training; empty where nothing is forecast."""
        return {name: float(errors["mse"]) for name, errors in self.summary.get("naive", {}).items()}

    @property
    def window(self) -> int:
        """Of the trailing mean before a target counts as reached; errors are not smoothed (spec B.7)."""
        return 1 if self.falls else int(self.keys.get("evaluation.smoothing", 10))

    @cached_property
    def environment(self) -> dict[str, Any]:
        """What it ran on; empty where the file is missing or damaged, which no number depends on."""
        try:
            facts: dict[str, Any] = json.loads(self.records.text("environment"))
            return facts
        except (OSError, ValueError):
            return {}

    @property
    def machine(self) -> str:
        """What trained it, by name: a GPU, or a CPU and how many cores it had."""
        device = str(self.environment.get("device", "?"))
        if device != "cpu":
            return device
        return f"{self.environment.get('processor', 'CPU')} ({self.environment.get('cores', '?')} cores)"


@dataclass
class Notes:
    """What is left out or to be known, by reason: a report never drops a run without a word."""

    reasons: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, reason: str, what: object) -> None:
        self.reasons[reason].append(str(what))

    def lines(self) -> list[str]:
        """A line a reason, with the first few it is about."""
        lines = []
        for reason, things in self.reasons.items():
            more = f" and {len(things) - SHOWN} more" if len(things) > SHOWN else ""
            lines.append(f"{reason}: {', '.join(things[:SHOWN])}{more}")
        return lines


def find_runs(folders: Sequence[Path], notes: Notes) -> list[FoundRun]:
    """Every finished or diverged run below the folders, one of each; the notes name the others.

    Raises:
        FedA2LError: There is none, or a bundle is damaged.
    """
    runs = find_any_runs(folders, notes)
    if not runs:
        where = ", ".join(map(str, folders))
        why = "\n".join(f"  {line}" for line in notes.lines())
        raise FedA2LError(
            f"{where}: no finished run (a folder with spec.toml and summary.json)" + (f"\n{why}" if why else ""),
            see="no-run",
        )
    return runs


def find_any_runs(folders: Sequence[Path], notes: Notes) -> list[FoundRun]:
    """The same; empty where there is none."""
    found: dict[Path, FoundRun] = {}
    for folder in folders:
        if not folder.is_dir() and bundle_above(folder) is None:
            raise FedA2LError(f"{folder}: is not a folder, and no bundle holds a run there", see="no-run")
        for path, records in sorted(_all_records(folder, notes), key=lambda pair: pair[0]):
            run = _read(path, records, notes)
            if run is not None:
                found.setdefault(path.resolve(), run)
    runs = _one_of_each(list(found.values()), notes)
    return sorted(runs, key=lambda run: (run.path.parent, run.name, run.seed))


def flatten(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """
    >>> flatten({"seed": 1, "data": {"name": "digits"}})
    {'seed': 1, 'data.name': 'digits'}
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{before}{key}.")
        else:
            flat[before + key] = tuple(value) if isinstance(value, list) else value
    return flat


def _all_records(folder: Path, notes: Notes) -> Iterator[tuple[Path, RunRecords]]:
    """The records of every run below a folder, with the run's path."""
    if not folder.is_dir():
        yield from _bundled(folder, notes)
        return
    for name, below, files in os.walk(folder):
        parent = Path(name)
        if bundle_above(parent) is not None:
            below.clear()
            yield from _bundled(parent, notes)
            continue
        check_has_manifest(parent)
        if STAGES in below and "study.toml" in files:
            below.remove(STAGES)
            notes.add(TRIALS, parent / STAGES)
        below.sort()
        if "spec.toml" in files:
            below.clear()  # a run has no runs in it
            yield parent, FolderRecords(parent)
        elif "error.json" in files:
            notes.add("left out, failed before its start", f"{parent} ({_error(parent)})")


def _bundled(path: Path, notes: Notes) -> Iterator[tuple[Path, RunRecords]]:
    """The runs of a bundle whose path within it is this one or lies below it; all, if the path is the bundle's."""
    found = bundle_above(path)
    assert found is not None
    folder, within = found
    bundle = open_bundle(folder)
    names = [name for name in bundle.names if not within or (name + "/").startswith(within + "/")]
    trials = [name for name in names if bundle.study is not None and name.startswith(STAGES + "/") and not within]
    if trials:
        notes.add(TRIALS, folder / STAGES)
    for name in sorted(set(names) - set(trials)):
        if "spec" in bundle.texts(name):
            yield folder / name, BundledRecords(bundle, name)


def _read(path: Path, records: RunRecords, notes: Notes) -> FoundRun | None:
    folder = RunFolder(path)
    try:
        spec = current_spec(tomllib.loads(records.text("spec")))
    except (OSError, ValueError) as error:
        notes.add("left out, spec.toml cannot be read", f"{path} ({_first_line(error)})")
        return None
    try:
        summary = summary_of(records.text("summary"))
    except FileNotFoundError:
        locked = is_locked(path, locked_folders())
        reason = "left out, still running" if locked else "left out, stopped before its end (resume it with --resume)"
        rounds = f"{_lines(folder.rounds)} of {spec.get('rounds', '?')} rounds"
        if (path / "error.json").exists():
            reason, rounds = "left out, failed", f"{rounds}: {_error(path)}"
        notes.add(reason, f"{path} ({rounds})")
        return None
    except (OSError, ValueError) as error:
        notes.add("left out, summary.json is damaged", f"{path} ({_first_line(error)})")
        return None
    if summary["status"] not in ENDED:
        notes.add(f"left out, {summary['status']}", path)
        return None
    run = FoundRun(path, spec, summary, records)
    if run.non_finite:
        where = summary.get("non_finite", {})
        notes.add(
            "non-finite; counted as a run that did not reach the target", f"{path} (round {where.get('round', '?')})"
        )
    return run


def _one_of_each(runs: Iterable[FoundRun], notes: Notes) -> list[FoundRun]:
    """Of several records of one run, keep a finished one: one with its own times first, then the newest."""
    same: dict[Any, list[FoundRun]] = defaultdict(list)
    for run in runs:
        same[run.decides].append(run)
    kept = []
    for copies in same.values():
        # only a run that had the machine to itself has times of its own
        copies.sort(key=lambda run: (not run.non_finite, run.summary.get("pack") == 1, run.records.written))
        kept.append(copies[-1])
        for copy in copies[:-1]:
            notes.add("left out, another record of the same run is used", f"{copy.path} (kept {copies[-1].path})")
    return kept


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def _error(path: Path) -> str:
    """Why a study's run failed, in a line."""
    try:
        return str(json.loads((path / "error.json").read_bytes())["error"]).splitlines()[0]
    except (OSError, ValueError, KeyError, IndexError):
        return "error.json is damaged"


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
