"""Everything below a folder that a page is told: which runs there are, and what is new of each."""

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
    """A reader remembers the version it has seen and asks for what came `since`. Any thread may ask and look."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.version = 0
        self.closed = False  # a long look ends early
        self._reading = threading.Lock()  # a thread whose page was closed may still be at it
        self._folders = Folders(self.folder)
        self._runs: dict[Path, WatchedRun] = {}
        self._told: dict[str, tuple[int, str]] = {}  # by run: the version in which it changed, and its JSON
        self._ids = 0  # the version in which a run came or went

    def look(self) -> bool:
        """Bring everything up to date; has anything changed?"""
        with self._reading:
            return self._look()

    def since(self, version: int) -> str:
        """What is new, as JSON: the runs that changed, and all ids where a run came or went."""
        runs = ",".join(text for changed, text in self._told.values() if changed > version)
        ids = json.dumps(list(self._told) if self._ids > version else None)
        note = f"Only the first {MOST:,} folders are followed." if self._folders.too_many else ""
        name = self.folder.name or str(self.folder)
        return f'{{"folder":{json.dumps(name)},"note":{json.dumps(note)},"ids":{ids},"runs":[{runs}]}}'

    def changed(self, id: str) -> int:
        """The version in which a run changed; -1 of one that is not there."""
        return self._told.get(id, (-1, ""))[0]

    def detail(self, id: str) -> str:
        """What is shown of one run alone, as JSON."""
        run = next((run for run in self._runs.values() if run.id == id), None)
        with self._reading:
            try:
                return _json(run.detail() if run else {"id": id})
            except DAMAGE as error:
                words = f"its folder cannot be read: {error}"
                return _json({"id": id, "heat": words, "edges": words})

    def _look(self) -> bool:
        version = self.version + 1
        self._runs = {
            path: self._runs.get(path) or watched(self._id(path), path, study)
            for path, study in self._folders.look().items()
        }
        texts = self._texts()
        if self.closed:
            return False
        told = {id: self._versioned(id, text, version) for id, text in texts.items()}
        if told.keys() != self._told.keys() or version == 1:
            self._ids = version
        self._told = told
        if version in (self._ids, *(changed for changed, _ in told.values())):
            self.version = version  # last: whoever sees it finds the rest in place
        return self.version == version

    def _texts(self) -> dict[str, str]:
        """What is to be told of every run, as JSON by id."""
        texts, locked = {}, locked_folders()
        for run in self._runs.values():
            if self.closed:
                break
            try:
                changed = run.look(locked) or run.id not in self._told
                texts[run.id] = _json(run.told()) if changed else self._told[run.id][1]
            except DAMAGE as error:  # what others wrote into a folder must not end the view of the rest
                texts[run.id] = _json(unreadable(run, error))
        for planned in self._folders.planned:
            id = self._id(planned.path)
            if id not in texts:
                texts[id] = _json(waiting(id, planned.study, planned.seed))
        return texts

    def _versioned(self, id: str, text: str, version: int) -> tuple[int, str]:
        before = self._told.get(id)
        return before if before and before[1] == text else (version, text)

    def _id(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def _json(facts: Mapping[str, object]) -> str:
    return json.dumps(facts, allow_nan=False, separators=(",", ":"))
