"""Read the lines of a growing file, each once."""

import os
from pathlib import Path

PART = 4_000_000  # bytes read at once
MARK = 64  # bytes before the current offset that are compared; in another file they differ


class Tail:
    """Returns the new complete lines at every call; a replaced or truncated file is read again from its start.

    `begun` counts how often reading started at the beginning.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = self.begun = 0
        self._inode = -1
        self._mark = b""  # the last bytes that were read

    def read(self) -> list[bytes]:
        """Return the next lines, at most about `PART` bytes; an incomplete last line is returned by a later call."""
        try:
            with open(self.path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                file.seek(self.offset - len(self._mark))
                # a new file may get the same inode, so the bytes are compared as well
                if inode != self._inode or file.read(len(self._mark)) != self._mark:
                    self.offset, self._inode, self._mark = 0, inode, b""
                    self.begun += 1
                    file.seek(0)
                part = file.read(PART)
                if len(part) == PART and b"\n" not in part:
                    part += file.readline()
        except OSError:  # the file does not exist yet, or no longer
            return []
        complete = part[: part.rfind(b"\n") + 1]
        self.offset += len(complete)
        self._mark = (self._mark + complete[-MARK:])[-MARK:]
        return complete.splitlines()
