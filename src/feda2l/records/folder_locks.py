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
    locked = set()
    for line in lines:  # 1: FLOCK  ADVISORY  WRITE 16560 fe:00:2679206 0 EOF
        fields = line.split()
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].count(":") == 2:
            major, minor, inode = fields[5].split(":")
            locked.add((int(major, 16), int(minor, 16), int(inode)))
    return frozenset(locked)


def is_locked(folder: Path, locked: LockedFolders) -> bool:
    try:
        status = os.stat(folder)
    except OSError:
        return False
    return (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino) in locked
