"""Follow all runs below a folder: which runs exist, and what is new in each."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path

from feda2l.errors import FedA2LError
from feda2l.records.folder_locks import locked_folders
from feda2l.watch.find_folders import MOST, Folders
from feda2l.watch.watched_run import WatchedRun, unreadable, waiting, watched

DAMAGE = (ArithmeticError, AttributeError, FedA2LError, LookupError, OSError, TypeError, ValueError)


class Follower:
    """The state of all runs, with a version number. A reader asks for everything new `since` the version it has.

    All methods are thread-safe.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.version = 0
        self.closed = False  # True ends a long `refresh` early
        self._reading = threading.Lock()  # the thread of a closed page may still be reading
        self._folders = Folders(self.folder)
        self._runs: dict[Path, WatchedRun] = {}
        self._texts_of: dict[str, tuple[int, str]] = {}  # run id -> (version of its last change, its JSON)
        self._ids = 0  # version in which a run was last added or removed

    def refresh(self) -> bool:
        """Read all changed files. Return True if anything changed."""
        with self._reading:
            return self._refresh()

    def since(self, version: int) -> str:
        """Return the news as JSON: the runs that changed, and all ids if a run was added or removed."""
        runs = ",".join(text for changed, text in self._texts_of.values() if changed > version)
        ids = json.dumps(list(self._texts_of) if self._ids > version else None)
        note = f"Only the first {MOST:,} folders are shown." if self._folders.too_many else ""
        name = self.folder.name or str(self.folder)
        return f'{{"folder":{json.dumps(name)},"note":{json.dumps(note)},"ids":{ids},"runs":[{runs}]}}'

    def changed(self, id: str) -> int:
        """Return the version in which a run last changed, or -1 if there is no such run."""
        return self._texts_of.get(id, (-1, ""))[0]

    def detail(self, id: str) -> str:
        """Return the details of one run as JSON."""
        run = next((run for run in self._runs.values() if run.id == id), None)
        with self._reading:
            try:
                return _json(run.detail() if run else {"id": id})
            except DAMAGE as error:
                why = f"its folder cannot be read: {error}"
                return _json({"id": id, "heat": why, "edges": why})

    def _refresh(self) -> bool:
        version = self.version + 1
        self._runs = {
            path: self._runs.get(path) or watched(self._id(path), path, study)
            for path, study in self._folders.refresh().items()
        }
        texts = self._texts()
        if self.closed:
            return False
        texts_by_run = {id: self._versioned(id, text, version) for id, text in texts.items()}
        if texts_by_run.keys() != self._texts_of.keys() or version == 1:
            self._ids = version
        self._texts_of = texts_by_run
        if version in (self._ids, *(changed for changed, _ in texts_by_run.values())):
            self.version = version  # set last, so that a reader that sees it also sees the new data
        return self.version == version

    def _texts(self) -> dict[str, str]:
        """Return the JSON of every run, by id."""
        texts, locked = {}, locked_folders()
        for run in self._runs.values():
            if self.closed:
                break
            try:
                changed = run.refresh(locked) or run.id not in self._texts_of
                texts[run.id] = _json(run.row()) if changed else self._texts_of[run.id][1]
            except DAMAGE as error:  # damaged files in one folder must not stop the page for the others
                texts[run.id] = _json(unreadable(run, error))
        for planned in self._folders.planned:
            id = self._id(planned.path)
            if id not in texts:
                texts[id] = _json(waiting(id, planned.study, planned.seed))
        return texts

    def _versioned(self, id: str, text: str, version: int) -> tuple[int, str]:
        before = self._texts_of.get(id)
        return before if before and before[1] == text else (version, text)

    def _id(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def _json(facts: Mapping[str, object]) -> str:
    return json.dumps(facts, allow_nan=False, separators=(",", ":"))
