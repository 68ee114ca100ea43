"""Detect whether a process is working in a run folder."""

import time
from pathlib import Path

from feda2l.records.folder_locks import LockedFolders, is_locked
from feda2l.records.run_folder import RunFolder

QUIET = 30.0  # seconds without a change after which a process without a visible lock counts as gone
ROUNDS = 5  # the same limit in rounds of usual length; the longer of the two holds


class Presence:
    """Detects a process in a run folder by its lock, or by changes of its files if locks are not visible."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._seen = False  # True once the lock was seen

    def is_working(self, locked: LockedFolders, pace: float | None) -> bool:
        if is_locked(self.folder.path, locked):
            self._seen = True
            return True
        if self._seen:
            return False
        # a process on another machine, or a system without visible locks
        patience = max(QUIET, ROUNDS * (pace or 0.0))
        files = (self.folder.rounds, self.folder.environment, self.folder.spec)
        return time.time() - max(map(_changed, files)) < patience


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
