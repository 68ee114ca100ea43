"""The folder of a study: `study.toml`, one folder per cell and seed, and the trials of the first stages."""

import fcntl
import json
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from feda2l.errors import Busy, FedA2LError
from feda2l.old_names import current_summary
from feda2l.records.manifest import MANIFEST
from feda2l.records.run_folder import RunFolder
from feda2l.spec.spec import Spec
from feda2l.studies.cells import STAGES, StudyCell
from feda2l.studies.study import Study

State = Literal["waiting", "running", "finished", "non_finite", "failed", "busy"]
# what may change between two calls
FREE = ("title", "seeds", "timing", "keep_checkpoints", "report")
FREE_RUNTIME = tuple(f"base.runtime.{key}" for key in ("device", "workers", "checkpoint_seconds"))


@dataclass(frozen=True)
class Job:
    """One run of a study, or one trial of its first stages."""

    spec: Spec
    folder: RunFolder
    cell: StudyCell

    @property
    def error_file(self) -> Path:
        return self.folder.path / "error.json"

    def state(self) -> State:
        """The state of the run, from its folder."""
        summary = self.summary()
        if summary.get("status") == "non_finite":
            return "non_finite"
        if summary.get("status") == "finished" and summary.get("rounds") == self.spec.rounds:
            return "finished"
        return "failed" if self.error_file.exists() else "waiting"

    def summary(self) -> dict[str, Any]:
        try:
            summary = current_summary(json.loads(self.folder.summary.read_bytes()))
        except (OSError, ValueError):  # missing, or incomplete after a crash of the machine
            return {}
        return summary

    def rounds_done(self) -> int:
        try:
            return self.folder.rounds.read_bytes().count(b"\n")
        except OSError:
            return 0

    def fail(self, error: Exception) -> None:
        """Record why the run failed; the next call tries again."""
        self.folder.path.mkdir(parents=True, exist_ok=True)
        facts = {"name": self.spec.name, "type": type(error).__name__, "error": str(error)}
        if not isinstance(error, FedA2LError):
            facts["traceback"] = "".join(traceback.format_exception(error))
        self.folder.write(self.error_file, (json.dumps(facts, indent=2) + "\n").encode())

    def error(self) -> str:
        """Why the run failed, in one line."""
        if self.error_file.exists():
            return str(json.loads(self.error_file.read_bytes())["error"])
        where = self.summary().get("non_finite", {})
        return f"became non-finite in round {where.get('round')}, node {where.get('node')}, layer {where.get('layer')}"


class StudyFolder:
    """Where the runs of a study are."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, path / "study.toml"

    def run(self, cell: StudyCell, seed: int) -> RunFolder:
        return RunFolder(self.path / cell.name / f"seed-{seed}")

    def stage(self, *parts: str) -> RunFolder:
        return RunFolder(self.path.joinpath(STAGES, *parts))

    @contextmanager
    def claimed(self, study: Study, shard: tuple[int, int]) -> Iterator[None]:
        """Lock the folder for this study and process; a folder of another study is refused."""
        if (self.path / MANIFEST).exists():
            raise FedA2LError(
                f"--out {self.path}: is a bundle, to which a study cannot add runs; make run folders of it with "
                f"feda2l bundle {self.path} --unpack --out FOLDER, and give FOLDER as --out",
                see="folder-not-empty",
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / ".lock-{}-of-{}".format(*shard), os.O_WRONLY | os.O_CREAT, 0o644)
        except OSError as error:
            raise FedA2LError(
                f"--out {self.path}: the study's folder cannot be written: {error.strerror}", see="cannot-write"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write(study)
            yield
        except BlockingIOError as error:
            raise Busy(f"{self.path}: another process is running this study; wait for it or stop it") from error
        finally:
            os.close(lock)

    def _write(self, study: Study) -> None:
        if self.file.exists():
            saved = Study.load(self.file)
            self.check(study, saved)
            # the file names every seed that was ever run
            study = study.model_copy(update={"seeds": tuple(dict.fromkeys((*saved.seeds, *study.seeds)))})
        elif any(path.name[0] != "." for path in self.path.iterdir()):
            raise FedA2LError(
                f"--out {self.path}: the folder is not empty and holds no study; choose another", see="folder-not-empty"
            )
        RunFolder(self.path).write(self.file, study.to_toml().encode())

    def check(self, study: Study, saved: Study) -> None:
        """Raise an error if the folder holds another study."""
        new, old = _flat(study), _flat(saved)
        changed = [key for key in sorted(new.keys() | old.keys()) if new.get(key) != old.get(key)]
        changed = [key for key in changed if key.split(".")[0] not in FREE and key not in FREE_RUNTIME]
        if changed:
            lines = [f"  {key}: {old.get(key, '-')!r} in the folder, {new.get(key, '-')!r} now" for key in changed]
            raise FedA2LError(
                f"--out {self.path}: {self.file} is of a different study:\n"
                + "\n".join(lines)
                + "\nchoose another --out",
                see="resume",
            )


def _flat(study: Study) -> dict[str, Any]:
    values: dict[str, Any] = {}

    def add(table: dict[str, Any], above: str) -> None:
        for key, value in table.items():
            if isinstance(value, dict) and value:
                add(value, f"{above}{key}.")
            else:
                values[f"{above}{key}"] = value

    add(json.loads(json.dumps(study.model_dump(exclude_none=True))), "")
    return values
