"""The messages that a node refused, from its log."""

import json
from collections import Counter
from pathlib import Path

from feda2l.peer.log import FILE


def rejected_messages(state: Path) -> Counter[tuple[int, str]]:
    """How many messages a node refused, by round and sender."""
    found: Counter[tuple[int, str]] = Counter()
    for path in sorted(state.glob(f"{FILE}*")):  # the older files too
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                said = json.loads(line)
            except ValueError:  # torn by a kill
                continue
            if said.get("event") == "rejected":
                found[said["round"] + 1, said["neighbour"]] += 1  # a line bears the last round that is complete
    return found
