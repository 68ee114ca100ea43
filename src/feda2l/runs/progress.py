"""Show round, score, learning rate and remaining time: a progress bar on a terminal, plain lines elsewhere."""

import sys
import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from feda2l.records.round_record import RoundRecord, main_score


class RunProgress:
    """The progress of a pack of runs: one bar, or one line every few seconds."""

    def __init__(self, title: str, total: int, done: int = 0, *, shown: bool = True) -> None:
        self.console = Console(stderr=True)
        self.total, self.round, self.shown = total, done, shown
        self.title = title
        self.bar: Progress | None = None
        self.task: TaskID | None = None
        self.started = self.last = time.monotonic()
        self.first = done
        if shown and self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[status]}"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self.task = self.bar.add_task(title, total=total, completed=done, status="")

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def update(self, record: RoundRecord, rate: float) -> None:
        """Show a completed round."""
        self.round = record["round"]
        name, value = main_score(record) or ("loss", record["train_loss"])
        status = f"{name} {value:.4g}  rate {rate:.2g}"
        if self.bar and self.task is not None:
            self.bar.update(self.task, completed=self.round, status=status)
        elif self.shown:
            now = time.monotonic()
            if now - self.last > 2 or self.round in (self.first + 1, self.total):
                self.last = now
                left = (now - self.started) / max(self.round - self.first, 1) * (self.total - self.round)
                print(
                    f"{self.title}: round {self.round}/{self.total}  {status}  {left:.0f} s left",
                    file=sys.stderr,
                    flush=True,
                )

    def print_note(self, text: str) -> None:
        """Print a separate line above the bar."""
        if self.shown:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)
