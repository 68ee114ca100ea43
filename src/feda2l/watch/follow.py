"""Everything below a folder that a page is told: which runs there are, and what is new of each."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path

from feda2l.records.folder_locks import held_locks
from feda2l.watch.find_folders import MOST, Folders
from feda2l.watch.watched_run import WatchedRun, unreadable, waiting

DAMAGE = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)


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
        before = self.version
        found, held = self._folders.look(), held_locks()
        told: dict[str, tuple[int, str]] = {}
        runs: dict[Path, WatchedRun] = {}
        for path, study in found.items():
            if self.closed:
                return False
            run = self._runs.get(path) or WatchedRun(self._id(path), path, study)
            runs[path] = run
            try:
                changed = run.look(held) or run.id not in self._told
                self._tell(told, run.told() if changed else None, run.id, before + 1)
            except DAMAGE as error:  # what others wrote into a folder must not end the view of the rest
                self._tell(told, unreadable(run, error), run.id, before + 1)
        self._runs = runs
        for planned in self._folders.planned:
            id = self._id(planned.path)
            if id not in told:
                self._tell(told, waiting(id, planned.study, planned.seed), id, before + 1)
        came_or_went = told.keys() != self._told.keys() or not before
        if came_or_went:
            self._ids = before + 1
        self._told = told
        if came_or_went or any(version > before for version, _ in told.values()):
            self.version = before + 1  # last: whoever sees it finds the rest in place
        return self.version > before

    def _id(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _tell(
        self, told: dict[str, tuple[int, str]], facts: Mapping[str, object] | None, id: str, version: int
    ) -> None:
        """Note what is to be told of a run; None: as before."""
        before, same = self._told.get(id, (0, ""))
        text = same if facts is None else _json(facts)
        told[id] = (before if text == same else version, text)


def _json(facts: Mapping[str, object]) -> str:
    return json.dumps(facts, allow_nan=False, separators=(",", ":"))
