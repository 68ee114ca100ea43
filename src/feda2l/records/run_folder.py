"""A run's folder: the resolved spec, one line per round, and Parquet tables and a summary at the end."""

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from feda2l.errors import Busy, FedA2LError, RunFailed
from feda2l.records.round_record import RoundRecord, from_line, layer_columns, round_columns, to_line, unscored
from feda2l.records.round_timings import RoundTimings


class RunFolder:
    """The folder of one run. Wall-clock times are only in `timings.jsonl` and `summary.json`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec, self.environment, self.summary = path / "spec.toml", path / "environment.json", path / "summary.json"
        self.rounds, self.timings = path / "rounds.jsonl", path / "timings.jsonl"
        self.checkpoint, self.search = path / "checkpoint.safetensors", path / "search.json"
        self.faults = path / "faults.toml"  # a copy of the fault plan, if there is one
        # copies of the files that list the network's links and the topology's edges
        self.listed = {"network": path / "links.csv", "topology": path / "graph.txt"}
        self.rounds_table, self.layers_table = path / "rounds.parquet", path / "layers.parquet"
        self._lock: int | None = None

    def tracker(self, name: str) -> Path:
        """Return the file in which a tracker keeps its state between two starts of the run."""
        return self.path / f"tracker-{name}.json"

    @property
    def started(self) -> bool:
        return os.path.exists(self.spec)  # also False for a path that cannot be read

    @property
    def occupied(self) -> bool:
        """Whether the folder holds anything beside partial files of a killed process."""
        try:
            return any(path.suffix != ".partial" for path in self.path.iterdir())
        except OSError:  # missing, not a folder or unreadable: `open` reports which
            return False

    def open(self) -> None:
        """Create the folder and lock it for this process; a second process is refused."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path, os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.access(self.path, os.W_OK):
                raise PermissionError(13, "Permission denied")
        except BlockingIOError as error:
            raise Busy(f"{self.path}: another process is working on this run; wait for it or stop it") from error
        except OSError as error:
            raise FedA2LError(
                f"--out {self.path}: the run folder cannot be written: {error.strerror}", see="cannot-write"
            ) from error

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def write(self, path: Path, content: bytes) -> None:
        """Replace a file atomically: after a crash it has the old content or the new content."""
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
        """Flush the rounds to disk, before a checkpoint that relies on them."""
        for path in (self.rounds, self.timings):
            try:
                with open(path, "ab") as file:
                    os.fsync(file.fileno())
            except OSError as error:
                raise RunFailed(f"{path}: cannot be written: {error.strerror}", see="cannot-write") from error

    def cut_back(self, round: int, due: Callable[[int], bool]) -> None:
        """Keep the lines up to a round; rounds after the checkpoint are computed again.

        If a run is extended, the scores of its former last round are removed unless that round is `due` anyway.
        """
        for path in (self.rounds, self.timings):
            lines = _lines(path)
            wanted = [line for line in lines[:round] if line.endswith(b"\n")]
            if len(wanted) < round and path == self.rounds:
                raise FedA2LError(
                    f"{path}: has {len(wanted)} complete rounds, but the checkpoint is at round {round}; "
                    "restore the file from a copy, or start again in another folder",
                    see="records-damaged",
                )
            _check_numbers(path, wanted)
            if path == self.rounds:
                wanted = [
                    line if due(number) else to_line(unscored(from_line(line))).encode()
                    for number, line in enumerate(wanted, start=1)
                ]
            if wanted != lines:
                self.write(path, b"".join(wanted))

    def read(self) -> list[RoundRecord]:
        """Return the records of all rounds; an incomplete last line is left out."""
        return [from_line(line) for line in _complete_lines(self.rounds)]

    def read_timings(self) -> list[RoundTimings]:
        """Return the timings of all rounds; an incomplete last line is left out."""
        return [json.loads(line) for line in _complete_lines(self.timings)]

    def write_tables(self) -> bool:
        """Write `rounds.parquet` (one row per node and round) and `layers.parquet` (one per node, layer and round).

        Returns False if polars is not installed; `rounds.jsonl` holds everything that the tables are made from.
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


def _complete_lines(path: Path) -> list[bytes]:
    """Return the lines of a file; an incomplete last line is left out."""
    return [line for line in _lines(path) if line.endswith(b"\n")]


def _check_numbers(path: Path, lines: list[bytes]) -> None:
    """Check that every kept line is the record of its round."""
    for number, line in enumerate(lines, start=1):
        try:
            number_read = json.loads(line)["round"]
        except (ValueError, KeyError, TypeError) as error:
            raise FedA2LError(
                f"{path}: line {number} is not a round's record ({error})", see="records-damaged"
            ) from error
        if number_read != number:
            raise FedA2LError(
                f"{path}: line {number} should be round {number}, but it is round {number_read}", see="records-damaged"
            )
