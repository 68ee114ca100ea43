"""Is a process at work in a run folder?"""

import time
from pathlib import Path

from feda2l.records.folder_locks import LockedFolders, is_locked
from feda2l.records.run_folder import RunFolder

QUIET = 30.0  # seconds without news after which a process that cannot be seen is taken for gone
ROUNDS = 5  # or so many of its usual rounds


class Presence:
    """Is a process at work in a folder? Told by its lock; where locks cannot be seen, by its files."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._seen = False  # its lock, at any time

    def there(self, locked: LockedFolders, pace: float | None) -> bool:
        if is_locked(self.folder.path, locked):
            self._seen = True
            return True
        if self._seen:
            return False
        # another machine's process, or a system that does not tell of locks
        patience = max(QUIET, ROUNDS * (pace or 0.0))
        files = (self.folder.rounds, self.folder.environment, self.folder.spec)
        return time.time() - max(map(_changed, files)) < patience


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
