"""Count the messages that a node rejected, from its log."""

import json
from collections import Counter
from pathlib import Path

from feda2l.peer.log import FILE


def count_rejections(state: Path) -> Counter[tuple[int, str]]:
    """The number of messages that a node rejected, by round and sender."""
    counts: Counter[tuple[int, str]] = Counter()
    for path in sorted(state.glob(f"{FILE}*")):  # including the rotated files
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # cut off by a kill
                continue
            if entry.get("event") == "rejected":
                counts[entry["round"] + 1, entry["neighbour"]] += 1  # a line has the number of the last completed round
    return counts
