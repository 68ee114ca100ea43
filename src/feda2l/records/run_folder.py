"""A run's folder: the resolved spec, a line a round while it runs, Parquet and a summary when it is done."""

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from feda2l.errors import Busy, FedA2LError, RunFailed
from feda2l.records.round_record import RoundRecord, from_line, layer_columns, round_columns, to_line, unscored
from feda2l.records.round_timings import RoundTimings


class RunFolder:
    """One folder, one run. Wall-clock goes to `timings.jsonl` and `summary.json` and nowhere else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec, self.environment, self.summary = path / "spec.toml", path / "environment.json", path / "summary.json"
        self.rounds, self.timings = path / "rounds.jsonl", path / "timings.jsonl"
        self.checkpoint, self.search = path / "checkpoint.safetensors", path / "search.json"
        self.faults = path / "faults.toml"  # a copy of the fault plan, where there is one
        # and of what a file lists: the network's links, the topology's edges
        self.listed = {"network": path / "links.csv", "topology": path / "graph.txt"}
        self.rounds_table, self.layers_table = path / "rounds.parquet", path / "layers.parquet"
        self._lock: int | None = None

    def tracker(self, name: str) -> Path:
        """What a tracker remembers of the run between two starts; nothing else reads it."""
        return self.path / f"tracker-{name}.json"

    @property
    def started(self) -> bool:
        return os.path.exists(self.spec)  # False also for a path that cannot be asked about

    @property
    def occupied(self) -> bool:
        """Does the folder hold anything but what a killed process had half written?"""
        try:
            return any(path.suffix != ".partial" for path in self.path.iterdir())
        except OSError:  # not there, no folder or not to be read: `open` says which
            return False

    def open(self) -> None:
        """Make the folder and take it for this process; a second one is refused."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path, os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.access(self.path, os.W_OK):
                raise PermissionError(13, "Permission denied")
        except BlockingIOError as error:
            raise Busy(f"{self.path}: another process is running this run; wait for it or stop it") from error
        except OSError as error:
            raise FedA2LError(
                f"--out {self.path}: the run folder cannot be written: {error.strerror}", see="cannot-write"
            ) from error

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def write(self, path: Path, content: bytes) -> None:
        """Replace a file at once: a crash leaves the old one or the new one."""
        temporary = path.with_name(path.name + ".partial")
        try:
            temporary.write_bytes(content)
            os.replace(temporary, path)
        except OSError as error:
            raise RunFailed(f"{path}: cannot be written: {error.strerror}", see="cannot-write") from error

    def write_json(self, path: Path, facts: Mapping[str, object]) -> None:
        self.write(path, (json.dumps(facts, indent=2) + "\n").encode())

    def append(self, record: RoundRecord, timing: RoundTimings) -> None:
        """Add a completed round."""
        for path, line in ((self.rounds, to_line(record)), (self.timings, to_line(timing))):
            try:
                with open(path, "a", encoding="utf-8") as file:
                    file.write(line)
            except OSError as error:
                raise RunFailed(
                    f"{path}: round {record['round']} cannot be written: {error.strerror}", see="cannot-write"
                ) from error

    def sync(self) -> None:
        """Bring the rounds to the disk before the checkpoint that counts on them."""
        for path in (self.rounds, self.timings):
            try:
                with open(path, "ab") as file:
                    os.fsync(file.fileno())
            except OSError as error:
                raise RunFailed(f"{path}: cannot be written: {error.strerror}", see="cannot-write") from error

    def cut_back(self, round: int, due: Callable[[int], bool]) -> None:
        """Keep the lines up to a round: what was written after the checkpoint is computed again.

        A run that is made longer forgets the scores of its former last round, unless they are `due` anyway.
        """
        for path in (self.rounds, self.timings):
            lines = _lines(path)
            kept = [line for line in lines[:round] if line.endswith(b"\n")]
            if len(kept) < round and path == self.rounds:
                raise FedA2LError(
                    f"{path}: holds {len(kept)} whole rounds, but the checkpoint is at round {round}; "
                    "restore the file from a copy, or start anew in another folder",
                    see="records-damaged",
                )
            _check_numbers(path, kept)
            if path == self.rounds:
                kept = [
                    line if due(number) else to_line(unscored(from_line(line))).encode()
                    for number, line in enumerate(kept, start=1)
                ]
            if kept != lines:
                self.write(path, b"".join(kept))

    def read(self) -> list[RoundRecord]:
        """The records of all rounds; a half-written last line is left out."""
        return [from_line(line) for line in _whole_lines(self.rounds)]

    def read_timings(self) -> list[RoundTimings]:
        """The timings of all rounds; a half-written last line is left out."""
        return [json.loads(line) for line in _whole_lines(self.timings)]

    def write_tables(self) -> bool:
        """Write `rounds.parquet` (one row per node and round) and `layers.parquet` (one per node, layer and round).

        False where polars is not installed: the lines hold everything, and the tables can be made elsewhere.
        """
        try:
            import polars
        except ImportError:
            return False
        records = self.read()
        for path, columns in (
            (self.rounds_table, round_columns(records)),
            (self.layers_table, layer_columns(records)),
        ):
            temporary = path.with_name(path.name + ".partial")
            try:
                polars.DataFrame(columns).write_parquet(temporary, statistics=False)
                os.replace(temporary, path)
            except (OSError, polars.exceptions.PolarsError) as error:
                temporary.unlink(missing_ok=True)
                raise RunFailed(f"{path}: cannot be written: {error}", see="cannot-write") from error
        return True


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


def _whole_lines(path: Path) -> list[bytes]:
    """The lines of a file; a half-written last one is left out."""
    return [line for line in _lines(path) if line.endswith(b"\n")]


def _check_numbers(path: Path, lines: list[bytes]) -> None:
    """Every kept line must be the round it stands for."""
    for number, line in enumerate(lines, start=1):
        try:
            found = json.loads(line)["round"]
        except (ValueError, KeyError, TypeError) as error:
            raise FedA2LError(
                f"{path}: line {number} is not a round's record ({error})", see="records-damaged"
            ) from error
        if found != number:
            raise FedA2LError(
                f"{path}: line {number} should be round {number}, it is round {found}", see="records-damaged"
            )
