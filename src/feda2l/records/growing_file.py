"""The lines of a file that grows, each read once."""

import os
from pathlib import Path

PART = 4_000_000  # bytes read at once
MARK = 64  # bytes before the place where reading goes on: in another file they differ


class Tail:
    """New whole lines at every call; a file in its place, or one that was cut back, is read from its start.

    `begun` counts how often that was so.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = self.begun = 0
        self._inode = -1
        self._mark = b""  # the last bytes that were read

    def read(self) -> list[bytes]:
        """The next lines, at most about `PART` bytes of them; a half-written last one waits for its end."""
        try:
            with open(self.path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                file.seek(self.offset - len(self._mark))
                # an inode may be given to the next file, so it alone tells nothing
                if inode != self._inode or file.read(len(self._mark)) != self._mark:
                    self.offset, self._inode, self._mark = 0, inode, b""
                    self.begun += 1
                    file.seek(0)
                part = file.read(PART)
                if len(part) == PART and b"\n" not in part:
                    part += file.readline()
        except OSError:  # not there yet, or no more
            return []
        whole = part[: part.rfind(b"\n") + 1]
        self.offset += len(whole)
        self._mark = (self._mark + whole[-MARK:])[-MARK:]
        return whole.splitlines()
