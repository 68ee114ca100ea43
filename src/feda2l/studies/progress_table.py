"""Show the progress of a study: one live table of its runs on a terminal, plain lines elsewhere."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from feda2l.records.round_record import NamedRecord, RoundScores, main_score
from feda2l.studies.study_folder import Job, State

ORDER: tuple[State, ...] = ("running", "failed", "non_finite", "busy", "waiting", "finished")
STYLES = {"running": "bold", "failed": "red", "non_finite": "red", "finished": "green"}


@dataclass
class Row:
    """One run in the table."""

    name: str
    rounds: int
    state: State
    round: int = 0
    score: float | None = None
    metric: str = ""
    since: float = 0.0  # when this process started it, and at which round
    first: int = 0

    def left(self, now: float) -> float | None:
        """Seconds until its end, at its pace so far."""
        done = self.round - self.first
        return (now - self.since) / done * (self.rounds - self.round) if done and self.state == "running" else None


class StudyView:
    """The runs of a study and their progress."""

    def __init__(self, title: str, jobs: Sequence[Job], *, shown: bool = True) -> None:
        self.title, self.shown = title, shown
        self.console = Console(stderr=True)
        self.rows: dict[str, Row] = {}
        self.live: Live | None = None
        self.last = 0.0
        self.add(jobs)

    def __enter__(self) -> Self:
        if self.shown and self.console.is_terminal:
            self.live = Live(console=self.console, get_renderable=self.table, refresh_per_second=2)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def add(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            row = self.rows[job.spec.name] = Row(job.spec.name, job.spec.rounds, job.state(), job.rounds_done())
            self._score(row, job.summary().get("final", {}))

    def begin(self, jobs: Sequence[Job]) -> None:
        self.last = time.monotonic()
        for job in jobs:
            row = self.rows[job.spec.name]
            row.state, row.since, row.first = "running", time.monotonic(), -1

    def round(self, record: NamedRecord) -> None:
        """Show a completed round of a run."""
        row = self.rows[record["name"]]
        row.round = record["round"]
        if row.first < 0:
            row.first = row.round - 1
        self._score(row, record)
        if self.shown and not self.live and time.monotonic() - self.last > 5:
            self.last = time.monotonic()
            self._line()

    def settle(self, job: Job, state: State | None = None) -> None:
        row = self.rows[job.spec.name]
        row.state, row.round = state or job.state(), job.rounds_done()
        self._score(row, job.summary().get("final", {}))
        if row.state in ("failed", "non_finite"):
            self.say(f"{row.name}: {job.error()}")

    def say(self, text: str) -> None:
        if self.shown:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def table(self) -> Table:
        """The runs, the running ones first, as many as fit the height of the terminal."""
        now, counts = time.monotonic(), Counter(row.state for row in self.rows.values())
        words = ", ".join(f"{counts[state]} {state}" for state in ORDER if counts[state])
        table = Table(title=f"{self.title}: {len(self.rows)} runs, {words}", title_justify="left")
        for column in ("run", "state", "round", "score", "left"):
            table.add_column(column, justify="left" if column in ("run", "state") else "right")
        rows = sorted(self.rows.values(), key=lambda row: ORDER.index(row.state))
        room = max(self.console.size.height - 7, 3)
        for row in rows[:room]:
            score = "" if row.score is None else f"{row.metric} {row.score:.4f}"
            left = row.left(now)
            table.add_row(
                row.name,
                row.state,
                f"{row.round}/{row.rounds}",
                score,
                "" if left is None else duration(left),
                style=STYLES.get(row.state),
            )
        if len(rows) > room:
            table.add_row(f"and {len(rows) - room} more", "", "", "", "")
        return table

    def _line(self) -> None:
        running = [row for row in self.rows.values() if row.state == "running"]
        done = sum(row.state in ("finished", "non_finite", "failed") for row in self.rows.values())
        slowest = min(running, key=lambda row: row.round)
        left = [left for row in running if (left := row.left(time.monotonic())) is not None]
        scores = [row.score for row in running if row.score is not None]
        text = f"{self.title}: {done} of {len(self.rows)} runs done; {len(running)} running, round {slowest.round}"
        text += f"/{slowest.rounds}"
        if scores:
            text += f", {slowest.metric} {sum(scores) / len(scores):.4f}"
        if left:
            text += f", {duration(max(left))} left for these"
        print(text, file=sys.stderr, flush=True)

    def _score(self, row: Row, scores: RoundScores) -> None:
        if score := main_score(scores):
            row.metric, row.score = score


def duration(seconds: float) -> str:
    """Write a time in the unit that fits it: 45 s, 12 min, 3.5 h, 4.2 days."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
