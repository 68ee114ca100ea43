"""One run as the page shows it. Its folder is only read and never locked."""

import json
import tomllib
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from feda2l.old_names import current_spec
from feda2l.plain_values import PlainDict
from feda2l.records.bundle import TEXTS, bundle_above
from feda2l.records.folder_locks import LockedFolders
from feda2l.records.manifest import MANIFEST
from feda2l.records.run_folder import RunFolder
from feda2l.report.curves import Curve, Floats, read_curves
from feda2l.report.find_runs import FoundRun, Notes, find_runs
from feda2l.report.page_data import POINTS, edges_of, heat_of, numbers
from feda2l.report.run_records import ENDED, FolderRecords, summary_of
from feda2l.watch.heat import heat_of_rounds
from feda2l.watch.incoming_records import Arriving, RoundSeries, joined
from feda2l.watch.presence import Presence
from feda2l.watch.watched_node import WatchedNode

State = Literal["running", "waiting", "stopped", "failed", "non_finite", "finished"]
Seen = tuple[int, int, int] | None  # inode, size and modification time of a file; None if it does not exist


class WatchedRun:
    """One run: `refresh` reads its files, `row` returns its table row and curve, `detail` the view of one run."""

    def __init__(self, id: str, path: Path, study: str = "") -> None:
        self.id, self.study, self.folder = id, study, RunFolder(path)
        self.state: State = "waiting"
        self.message = ""  # reason of a failure, or a problem with the records
        self.run = FoundRun(path, {}, {}, FolderRecords(path))
        self.nodes: list[WatchedNode] = []  # nodes of a swarm
        self.rounds = RoundSeries()  # rounds read so far; empty for a completed run
        self._presence = Presence(self.folder)
        self._arriving: Arriving | None = None
        self._curve: Curve | None = None  # set when the run is complete
        self._files: dict[str, Seen] = {}

    def refresh(self, locked: LockedFolders) -> bool:
        """Read changed files. Return True if anything changed since the last call."""
        before = self.state, self.message
        changed = self._read_files()
        if changed or not self.run.summary:
            for node in self.nodes:
                changed |= node.refresh(locked)
        if self.run.summary:
            self._arriving = None
            self.state = "non_finite" if self.run.non_finite else "finished"
        else:
            changed |= self._read_rounds(locked)
        if changed:
            self.rounds = self._arrived()
        return changed or before != (self.state, self.message)

    @property
    def done(self) -> int:
        """Number of completed rounds."""
        return int(self.run.summary["rounds"]) if self.run.summary else len(self.rounds)

    def row(self) -> dict[str, object]:
        run, rounds = self.run, self.rounds
        name = run.name if self.id == "." else self.id
        return {
            "id": self.id,
            "name": name,
            "setting": ": ".join(
                filter(None, (self.study, f"{run.keys.get('data.name', '')}, {run.keys.get('model.name', '')}"))
            ),
            "method": _method(name, run.seed),
            "seed": run.seed,
            "state": self.state,
            "words": self.message,
            "round": self.done,
            "rounds": run.rounds,
            "metric": rounds.metric or run.metric,
            "target": run.target,
            "loss": self._loss(),
            "left": self._left(),
            **self._curves(),
            "swarm": [node.row() for node in self.nodes],
        }

    def _loss(self) -> float | None:
        """Return the training loss of the last round."""
        losses = self.rounds.loss[-1:] or [self.run.summary.get("final", {}).get("train_loss") or float("nan")]
        return numbers(losses)[0]

    def _left(self) -> float | None:
        """Return the estimated seconds until the end, or None if the run is not running."""
        every = [node.arriving for node in self.nodes] or ([self._arriving] if self._arriving else [])
        pace = max((arriving.pace or 0.0 for arriving in every), default=0.0)
        return pace * (self.run.rounds - self.done) if pace and self.state == "running" else None

    def _curves(self) -> dict[str, object]:
        """Return score and consensus distance over rounds, thinned, and the total bytes sent."""
        rounds, curve = self.rounds, self._curve
        score = np.array(rounds.score) if curve is None else curve.score
        distance = np.array(rounds.distance) if curve is None else curve.disagreement
        sent = np.array(rounds.sent) if curve is None else curve.bytes_sent
        at, distance_at = _thinned(score), _thinned(distance)
        return {
            "sent": float(np.nansum(sent)),
            "x": (at + 1).tolist(),
            "score": numbers(score[at]),
            "distance_x": (distance_at + 1).tolist(),
            "distance": numbers(distance[distance_at]),
        }

    def detail(self) -> dict[str, object]:
        rounds, curve = self.rounds, self._curve
        return {
            "id": self.id,
            "heat": heat_of(self.run) if self.run.summary else heat_of_rounds(rounds),
            "nodes": numbers(rounds.nodes if curve is None else curve.last),
            "edges": edges_of(self.run) if self.run.spec else "the run folder has no spec yet",
            "spec": self._text("spec"),
            "environment": self._text("environment"),
        }

    def _text(self, name: str) -> str:
        try:
            return self.run.records.text(name)
        except (OSError, ValueError):
            return f"{TEXTS[name]} is not there"

    def _read_files(self) -> bool:
        """Read the small files again if one of them has changed. Return True if so."""
        folder = self.folder
        nodes = folder.path / "nodes"
        files = (folder.spec, folder.summary, folder.environment, folder.path / "error.json", nodes / "spec.toml")
        seen = {str(file): _seen(file) for file in files}
        if seen == self._files:
            return False
        self._files = seen
        records = FolderRecords(folder.path)
        self.run = FoundRun(folder.path, _toml(folder.spec), _finished(folder.summary), records)
        self.message, self._curve = "", None
        folders = [config.parent for config in nodes.glob("*/node.toml")] if (nodes / "spec.toml").exists() else []
        folders.sort(key=lambda path: (len(path.name), path.name))  # sorts n2 before n10
        if [path.name for path in folders] != [node.name for node in self.nodes]:
            self.nodes = [WatchedNode(path.name, path / "state") for path in folders]
        if self.run.summary:
            self._read_curve()
        return True

    def _read_curve(self) -> None:
        notes = Notes()
        self._curve = read_curves([self.run], notes).get(self.folder.path)
        where = self.run.summary.get("non_finite") or {}
        place = [f"round {where.get('round')}, node {where.get('node')}, layer {where.get('layer')}"] * bool(where)
        self.message = "; ".join(place if self._curve else [*place, *notes.reasons])

    def _read_rounds(self, locked: LockedFolders) -> bool:
        if self._arriving is None:
            self._arriving = Arriving(self.folder)
        # while a swarm runs, its rounds are in the folders of its nodes
        changed = False if self.nodes else self._arriving.read()
        error = _error(self.folder.path)
        working = any(node.state == "running" for node in self.nodes)
        if self._presence.is_working(locked, self._arriving.pace) or working:
            self.state, self.message = "running", self._arriving.damage
        elif error:
            self.state, self.message = "failed", error
        else:
            self.state, self.message = "stopped", self._arriving.damage
        return changed

    def _arrived(self) -> RoundSeries:
        if self._arriving is None:
            return RoundSeries()
        return joined([node.arriving.rounds for node in self.nodes]) if self.nodes else self._arriving.rounds


class WatchedBundle(WatchedRun):
    """A run of a bundle: it has ended, and is read again when the bundle is written again."""

    def _read_files(self) -> bool:
        bundle = bundle_above(self.folder.path)
        manifest = {MANIFEST: _seen(bundle[0] / MANIFEST) if bundle else None}
        if manifest == self._files:
            return False
        self._files = manifest
        (self.run,) = find_runs([self.folder.path], Notes())
        self._read_curve()
        return True


def watched(id: str, path: Path, study: str) -> WatchedRun:
    """The run with this path, which may lead into a bundle."""
    return (WatchedBundle if bundle_above(path) else WatchedRun)(id, path, study)


def waiting(id: str, study: str, seed: int) -> dict[str, object]:
    """Return the table row of a planned run of a study that has not started."""
    return {**_blank(id), "setting": study, "method": _method(id, seed), "seed": seed, "state": "waiting"}


def unreadable(run: WatchedRun, error: Exception) -> dict[str, object]:
    """Return the table row of a run with damaged files."""
    return {**_blank(run.id), "state": "failed", "words": f"its folder cannot be read: {type(error).__name__}: {error}"}


def _method(name: str, seed: int) -> str:
    """Return the name that all seeds of a setting share: the cell of a study, or a name without its seed."""
    return name.removesuffix(f"/seed-{seed}").removesuffix(f"-{seed}")


def _blank(id: str) -> dict[str, object]:
    lists: dict[str, list[object]] = {name: [] for name in ("x", "score", "distance_x", "distance", "swarm")}
    blank = dict.fromkeys(("setting", "method", "metric", "words"), "")
    unknown = dict.fromkeys(("seed", "round", "rounds", "target", "loss", "left", "sent"))
    return {"id": id, "name": id, **blank, **unknown, **lists}


def _thinned(values: Floats) -> NDArray[np.intp]:
    """Return the indices of finite values, thinned to every 2^k-th and the last: at most about `POINTS` indices.

    The remaining points keep their places while the curve grows.
    """
    finite = np.flatnonzero(np.isfinite(values))
    step = 1
    while len(finite) > POINTS * step:
        step *= 2
    return finite if step == 1 else np.union1d(finite[step - 1 :: step], finite[-1:])


def _seen(path: Path) -> Seen:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _toml(path: Path) -> PlainDict:
    try:
        return current_spec(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _finished(path: Path) -> PlainDict:
    """Return the summary of a completed run, or an empty dict if the file is missing or damaged."""
    try:
        summary = summary_of(path.read_text(encoding="utf-8"))
        return summary if summary["status"] in ENDED and int(summary["rounds"]) >= 0 else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _error(path: Path) -> str:
    """Return the error of a failed run of a study, or an empty string."""
    try:
        return str(json.loads((path / "error.json").read_bytes())["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
