"""Runs below a folder, found as they appear: only a folder that has changed is listed again."""

import os
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from feda2l.errors import FedA2LError
from feda2l.records.bundle import open_bundle
from feda2l.records.manifest import MANIFEST
from feda2l.studies.cells import STAGES
from feda2l.studies.study import Study

MOST = 20_000  # folders that are looked into
HOT = 2.0  # seconds for which a folder's time of change may stand still although it changes


@dataclass(frozen=True)
class Planned:
    """A run that a study has in mind."""

    path: Path
    study: str
    seed: int


@dataclass
class _Folder:
    changed: int = -1  # its time of change, in ns
    hot: bool = True
    below: list[str] = field(default_factory=list)
    is_run: bool = False
    bundled: list[str] = field(default_factory=list)  # the runs of a bundle
    written: int = -1  # its study.toml, in ns
    study: str = ""
    planned: list[Planned] = field(default_factory=list)


class Folders:
    """`refresh` returns the runs below `top`, each with its study's name; `planned` are those to come."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.planned: list[Planned] = []
        self.too_many = False
        self._known: dict[Path, _Folder] = {}

    def refresh(self) -> dict[Path, str]:
        before, self._known = self._known, {}
        self.planned, self.too_many = [], False
        return dict(self._walk(self.top, "", before))

    def _walk(self, path: Path, study: str, before: dict[Path, _Folder]) -> Iterator[tuple[Path, str]]:
        if len(self._known) >= MOST:
            self.too_many = True
            return
        folder = before.get(path) or _Folder()
        try:
            _refresh(path, folder)
        except OSError:  # gone, or not ours to read
            return
        self._known[path] = folder
        study = folder.study or study
        self.planned += folder.planned
        if folder.is_run:
            yield path, study
            return
        for name in folder.bundled:
            trials = name.startswith(STAGES + "/") and bool(folder.study)
            yield path / name, f"{study}, trials" if trials else study
        for name in folder.below:
            trials = name == STAGES and bool(folder.study)
            yield from self._walk(path / name, f"{study}, trials" if trials else study, before)


def _refresh(path: Path, folder: _Folder) -> None:
    changed = os.stat(path).st_mtime_ns
    if changed == folder.changed and not folder.hot:
        return
    folder.changed, folder.hot = changed, time.time() - changed / 1e9 < HOT
    with os.scandir(path) as entries:
        is_folder = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries if entry.name[0] != "."}
    folder.below = sorted(filter(is_folder.__getitem__, is_folder))
    folder.bundled = _bundled(path) if is_folder.get(MANIFEST) is False else []
    folder.is_run = False in (is_folder.get("spec.toml"), is_folder.get("error.json"))
    if path.name == "nodes" and "n0" in folder.below:
        # a swarm's nodes share a folder that has a spec too; they are shown with the swarm
        folder.below, folder.is_run = [], False
    written = (path / "study.toml").stat().st_mtime_ns if is_folder.get("study.toml") is False else -1
    if written != folder.written:
        folder.written = written
        folder.study, folder.planned = _study(path)


def _bundled(path: Path) -> list[str]:
    """The paths of a bundle's runs; its own where it cannot be read, which the page then says of it."""
    try:
        bundle = open_bundle(path)
    except FedA2LError:
        return ["."]
    return [name for name in bundle.names if "spec" in bundle.texts(name)]


def _study(path: Path) -> tuple[str, list[Planned]]:
    file = path / "study.toml"
    try:
        name = str(tomllib.loads(file.read_text(encoding="utf-8")).get("name", path.name))
    except FileNotFoundError:
        return "", []
    except (OSError, ValueError):
        return path.name, []
    try:
        study = Study.load(file)
    except FedA2LError:  # of another version, or with rules that cannot be imported here: its runs are shown anyway
        return name, []
    cells = [cell.name for cell in study.cells]
    return name, [Planned(path / cell / f"seed-{seed}", name, seed) for cell in cells for seed in study.seeds]
