"""Is somebody at work in a run folder? Looked up in the kernel's list, without a lock of our own.

Whoever tries a lock to see whether it is free holds it for that moment, and a run that starts just then is refused.
"""

import os
from pathlib import Path

LOCKS = Path("/proc/locks")
LockedFolders = frozenset[tuple[int, int, int]]


def locked_folders() -> LockedFolders:
    """Every file or folder that a process has locked, as device and inode; none where the kernel does not tell."""
    try:
        lines = LOCKS.read_text().splitlines()
    except OSError:
        return frozenset()
    found = set()
    for line in lines:  # 1: FLOCK  ADVISORY  WRITE 16560 fe:00:2679206 0 EOF
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5].count(":") == 2:
            major, minor, inode = words[5].split(":")
            found.add((int(major, 16), int(minor, 16), int(inode)))
    return frozenset(found)


def is_locked(folder: Path, locked: LockedFolders) -> bool:
    try:
        found = os.stat(folder)
    except OSError:
        return False
    return (os.major(found.st_dev), os.minor(found.st_dev), found.st_ino) in locked
