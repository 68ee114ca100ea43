"""One node of a swarm, read from its state folder."""

from pathlib import Path

from feda2l.records.folder_locks import LockedFolders
from feda2l.records.run_folder import RunFolder
from feda2l.report.page_data import numbers
from feda2l.watch.incoming_records import Arriving
from feda2l.watch.presence import Presence


class WatchedNode:
    """The rounds of a node and whether its process is running."""

    def __init__(self, name: str, state: Path) -> None:
        self.name, self.folder = name, RunFolder(state)
        self.arriving, self.presence = Arriving(self.folder), Presence(self.folder)
        self.state = "waiting"

    def refresh(self, locked: LockedFolders) -> bool:
        """Read new rounds. Return True if anything changed."""
        before = self.state
        changed = self.arriving.read()
        if self.folder.summary.exists():
            self.state = "finished"
        elif not self.folder.started:
            self.state = "waiting"
        else:
            self.state = "running" if self.presence.is_working(locked, self.arriving.pace) else "stopped"
        return changed or self.state != before

    def row(self) -> dict[str, object]:
        rounds = self.arriving.rounds
        score, loss = numbers((rounds.nodes[0] if rounds.nodes else float("nan"), (rounds.loss or [float("nan")])[-1]))
        return {
            "name": self.name,
            "state": self.state,
            "round": len(rounds),
            "score": score,
            "loss": loss,
            "received": rounds.received,
            "pace": self.arriving.pace,
        }
