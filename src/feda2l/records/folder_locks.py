"""Find out whether a process is working in a run folder, from the kernel's list of locks.

Testing a lock by taking it would hold it for a moment, and a run that starts in that moment would be refused.
"""

import os
from pathlib import Path

LOCKS = Path("/proc/locks")
LockedFolders = frozenset[tuple[int, int, int]]


def locked_folders() -> LockedFolders:
    """Return every locked file or folder as device and inode; empty if the system has no list of locks."""
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
