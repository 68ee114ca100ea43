"""The progress of a swarm: a live table of its nodes on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Sequence
from typing import Literal, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from feda2l.swarm.swarm_process import NodeProcess

COLUMNS = ("node", "state", "round", "accuracy", "loss", "received", "rejected", "s/round")
STYLES = {"failed": "red", "crashed": "yellow", "hung": "yellow", "done": "green", "starting": "dim"}
PAUSE = 2.0  # seconds between two plain lines


class SwarmView:
    """The nodes of a swarm and their progress."""

    def __init__(self, title: str, rounds: int, nodes: Sequence[NodeProcess], *, shown: bool) -> None:
        self.title, self.rounds, self.nodes, self.shown = title, rounds, nodes, shown
        self.console = Console(stderr=True)
        self.live: Live | None = None
        self.last, self.round = 0.0, -1

    def __enter__(self) -> Self:
        if self.shown and self.console.is_terminal:
            self.live = Live(console=self.console, get_renderable=self.table, refresh_per_second=4)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def update(self) -> None:
        """Without a table, print a line when the slowest node has completed a round, but not too often."""
        if self.live or not self.shown:
            return
        active = [node for node in self.nodes if node.state not in ("failed", "crashed", "left")]
        round = min((node.round for node in active), default=0)
        now = time.monotonic()
        if round > self.round and (now - self.last > PAUSE or round == self.rounds):
            self.last, self.round = now, round
            print(self._line(round, len(active)), file=sys.stderr, flush=True)

    def print_note(self, text: str) -> None:
        """Print a line above the table."""
        if self.shown:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def table(self) -> Table:
        table = Table(title=self.title, title_justify="left")
        metric = self._metric()
        for column in COLUMNS:
            justify: Literal["left", "right"] = "left" if column in ("node", "state") else "right"
            table.add_column(metric if column == "accuracy" else column, justify=justify)
        room = max(self.console.size.height - 6, 3)
        for node in self.nodes[:room]:
            table.add_row(
                str(node),
                node.state,
                f"{node.round}/{self.rounds}",
                _number(node.figures.get(metric)),
                _number(node.figures.get("loss")),
                node.figures.get("received", ""),
                str(node.rejected),
                _number(node.pace),
                style=STYLES.get(node.state),
            )
        if len(self.nodes) > room:
            table.add_row(f"and {len(self.nodes) - room} more", *[""] * (len(COLUMNS) - 1))
        return table

    def _metric(self) -> str:
        return "mse" if any("mse" in node.figures for node in self.nodes) else "accuracy"

    def _line(self, round: int, active: int) -> str:
        metric = self._metric()
        text = f"{self.title}: round {round}/{self.rounds}, {active} of {len(self.nodes)} nodes"
        for name in (metric, "loss"):
            values = [value for node in self.nodes if (value := node.figures.get(name)) is not None]
            if values:
                text += f", {name} {sum(values) / len(values):.4f}"
        if rejected := sum(node.rejected for node in self.nodes):
            text += f", {rejected} messages rejected"
        return text


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
