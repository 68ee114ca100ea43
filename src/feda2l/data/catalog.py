"""The data sets by name: a description, the source and the loader of each. A new data set is a new entry."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from feda2l.data import beijing, cifar, download, exchange_rate, images, tinyimagenet
from feda2l.data.download import Archive, data_folder, digest, members
from feda2l.data.samples import Dataset
from feda2l.errors import FedA2LError
from feda2l.names import look_up

Folder = str | os.PathLike[str] | None


@dataclass(frozen=True)
class Entry:
    """A data set: its description, its default model, its loader, and its archive if there is one.

    `check` loads the data without writing a file, for loaders that write one. A `series` is a time series: its loader
    takes `lengths`, `train_fraction` and `stride`.
    """

    name: str
    description: str
    model: str
    load: Callable[..., Dataset]
    archive: Archive | None = None
    check: Callable[[Path], Dataset] | None = None
    series: bool = False

    @property
    def source(self) -> str:
        """The address of the data, or the package that contains them."""
        return self.archive.url if self.archive else "ships with scikit-learn"


CATALOG: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("digits", "1,797 handwritten digits of 8 x 8, 10 classes", "mlp", lambda _: images.digits()),
        Entry(
            "cifar10",
            "60,000 colour pictures of 32 x 32, 10 classes",
            "cnn",
            partial(cifar.load, cifar.CIFAR10),
            cifar.CIFAR10.archive,
        ),
        Entry(
            "cifar100",
            "60,000 colour pictures of 32 x 32, 100 classes",
            "cnn",
            partial(cifar.load, cifar.CIFAR100),
            cifar.CIFAR100.archive,
        ),
        Entry(
            "tinyimagenet",
            "110,000 colour pictures of 64 x 64, 200 classes",
            "resnet18",
            partial(tinyimagenet.load, tinyimagenet.TINYIMAGENET),
            tinyimagenet.TINYIMAGENET.archive,
            partial(tinyimagenet.load, tinyimagenet.TINYIMAGENET, keep=False),
        ),
        Entry(
            "exchange_rate",
            "daily rates of 8 currencies, one node per currency: 5,879 + 1,325 windows",
            "timer",
            exchange_rate.load,
            exchange_rate.ARCHIVE,
            series=True,
        ),
        Entry(
            "beijing_air_quality",
            "hourly air quality, one node per station (12): 35,822 windows of 11 variates",
            "timer",
            beijing.load,
            beijing.ARCHIVE,
            series=True,
        ),
    )
}


@dataclass(frozen=True)
class Finding:
    """The result of a check of one file: `ok` if it can be used, `official` if it has the published bytes."""

    file: str
    text: str
    ok: bool = True
    official: bool = False

    def __str__(self) -> str:
        return f"{'ok ' if self.ok else 'BAD'} {self.file}: {self.text}"


@dataclass(frozen=True)
class Verdict:
    """The result of `verify`: `ok` if the data can be used, `official` if every byte is the published one."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)

    @property
    def official(self) -> bool:
        return all(finding.official for finding in self.findings)

    @property
    def lines(self) -> list[str]:
        return [str(finding) for finding in self.findings]


def find(name: str) -> Entry:
    """The entry with this name. The error for an unknown name suggests the nearest known one."""
    return look_up(name, CATALOG, "data.name")


def is_series(name: object) -> bool:
    """Is this the name of a time series of the catalog?"""
    return isinstance(name, str) and name in CATALOG and CATALOG[name].series


def load(name: str, folder: Folder = None, **options: Any) -> Dataset:
    """Load the data set as tensors from files in the data folder; nothing is downloaded.

    `options` go to the loader. Time series take `lengths`, `train_fraction` and `stride`.
    """
    entry = find(name)
    return entry.load(data_folder(folder) if entry.archive else Path(), **options)


def fetch(name: str, folder: Folder = None) -> Path:
    """The folder with the files of the data set. Missing files are downloaded."""
    entry = find(name)
    if entry.archive:
        return download.fetch(entry.archive, data_folder(folder))
    return images.digits_folder()


def verify(name: str, folder: Folder = None) -> Verdict:
    """Check whether the files exist and are complete and official, one finding per file; nothing is written."""
    entry = find(name)
    findings: list[Finding] = []
    if entry.archive:
        place = data_folder(folder)
        findings = _check_files(entry.archive, place)
        if entry.archive.missing(place):
            return Verdict(name, tuple(findings))
    try:
        data = entry.check(data_folder(folder)) if entry.check else load(name, folder)
    except FedA2LError as error:
        return Verdict(name, (*findings, Finding(name, str(error), ok=False)))
    shape = " x ".join(map(str, data.input))
    what = f"windows of {shape}" if data.classes is None else f"pictures of {shape}, {data.classes} classes"
    text = f"{len(data.train)} training and {len(data.test)} test {what}, {entry.source}"
    return Verdict(name, (*findings, Finding(name, text, official=all(finding.official for finding in findings))))


def _check_files(archive: Archive, folder: Path) -> list[Finding]:
    """A finding for the archive, if it is in `folder`, and one per file of the data set."""
    path, findings = folder / archive.name, _archive(archive, folder)
    if archive.prepared:
        return [*findings, *_prepared(archive, folder)]
    inside = _inside(archive, path) if any(finding.official for finding in findings) else {}
    return [*findings, *(_file(archive, folder, name, inside) for name in archive.files)]


def _archive(archive: Archive, folder: Path) -> list[Finding]:
    """A finding for the archive itself, if it is in `folder`."""
    path, kind = folder / archive.name, archive.algorithm
    if archive.plain or not path.is_file():
        return []
    if (actual := digest(path, kind)) == archive.checksum:
        return [Finding(archive.name, f"the official archive, {kind} {actual}", official=True)]
    text = f"not the official archive: expected {kind} {archive.checksum}, found {actual}"
    return [Finding(archive.name, text, ok=False)]


def _file(archive: Archive, folder: Path, name: str, inside: Mapping[str, str]) -> Finding:
    """A finding for one file; `inside` has the checksums of the files in the official archive, if it is there."""
    path, size = archive.place(folder) / name, archive.files[name].size
    if not path.is_file():
        if inside:
            return Finding(str(path), "in the archive, not extracted yet", official=True)
        return Finding(str(path), f"missing; {archive.by_hand(folder)}", ok=False)
    if (actual := path.stat().st_size) != size:
        return Finding(str(path), f"expected {size} bytes, found {actual}", ok=False)
    return _bytes(archive, folder, path, inside.get(name))


def _prepared(archive: Archive, folder: Path) -> list[Finding]:
    """The findings about the prepared file or the extracted folder, for an archive that is not unpacked."""
    try:
        place = download.locate(archive, folder)
    except FedA2LError:
        return [Finding(str(folder / archive.folder), f"missing; {archive.by_hand(folder)}", ok=False)]
    if place.name == archive.name:
        return []
    if place.name == archive.prepared and tinyimagenet.origin(place) == archive.checksum:
        text = f"decoded from the official archive, {archive.algorithm} {archive.checksum}"
        return [Finding(str(place), text, official=True)]
    text = (
        f"it is unknown whether the pictures are the official ones; to check, remove it, put {archive.name} "
        f"({archive.algorithm} {archive.checksum}) into {folder} and verify again"
    )
    return [Finding(str(place), text)]


def _bytes(archive: Archive, folder: Path, path: Path, inside: str | None) -> Finding:
    """A finding for a file of the right size: are its bytes those of the official archive or the known checksum?"""
    known, actual = inside or archive.files[path.name].sha256, digest(path, "sha256")
    if actual == known:
        return Finding(str(path), f"official bytes, sha256 {actual}", official=True)
    if inside or archive.proven:
        return Finding(str(path), f"not the official bytes: expected sha256 {known}, found {actual}", ok=False)
    return Finding(
        str(path),
        f"the structure is right, but it is unknown whether the bytes are official: sha256 {actual}; to check, put "
        f"{archive.name} ({archive.algorithm} {archive.checksum}) into {folder} and verify again",
    )


def _inside(archive: Archive, path: Path) -> dict[str, str]:
    """The sha256 of each file of the data set inside the archive."""
    sums = {}
    with members(archive, path) as entries:
        for member in entries:
            name = member.name.removeprefix(f"{archive.folder}/")
            if member.size is not None and name in archive.files:
                with member.open() as content:
                    sums[name] = hashlib.file_digest(content, "sha256").hexdigest()  # type: ignore[arg-type]
    return sums
