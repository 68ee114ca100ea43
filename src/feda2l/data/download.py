"""Published archives: addresses, checksums, download, and safe extraction into a data folder.

A file appears in the data folder completely or not at all: it is written to a temporary folder, checked and renamed.
"""

import contextlib
import errno
import hashlib
import importlib.util
import io
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from feda2l.data.errors import damaged_data_error
from feda2l.errors import FedA2LError, RunFailed

ENVIRONMENT = "FEDA2L_DATA"
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
MIB = 2**20


@dataclass(frozen=True)
class File:
    """A file inside an archive: its exact size and the sha256 of the official bytes."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Archive:
    """A published `.tar.gz` or `.zip`, and the files of the data set in its `folder`.

    `checksum` is the md5 or the sha256, whichever is known. `inner` is the zip archive inside it that contains the
    files, if they are packed twice. A single file may be its own archive: then both have one name, and `folder` is ".".

    An archive of many small files is not extracted: the loader reads the `.zip`, or the folder to which the user
    extracted it. Then `files` is empty, and `prepared` is the file that the loader writes once.

    `proven` means that the `sha256` of the files were derived from checksums of the authors, so other bytes are wrong.
    For checksums of a third party a match shows official bytes, but a difference shows nothing.
    """

    dataset: str
    url: str
    checksum: str
    size: int
    folder: str
    files: dict[str, File]
    proven: bool
    prepared: str | None = None
    inner: str | None = None

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]

    @property
    def algorithm(self) -> str:
        """The algorithm of the checksum."""
        return "md5" if len(self.checksum) == 32 else "sha256"

    @property
    def plain(self) -> bool:
        """Is the archive a single file, with nothing to extract?"""
        return self.name in self.files

    def place(self, folder: Path) -> Path:
        """The folder of the files: that of the archive, unless the user put them into the data folder itself."""
        subfolder = folder / self.folder
        here = any(_size(folder / name) == file.size for name, file in self.files.items())
        return folder if here and not any((subfolder / name).exists() for name in self.files) else subfolder

    def missing(self, folder: Path) -> list[str]:
        """The files that are missing in the data folder; [""] if all of a prepared data set is missing."""
        if self.prepared:
            return [] if any((folder / name).exists() for name in (self.prepared, self.folder)) else [""]
        place = self.place(folder)
        return [name for name in self.files if not (place / name).is_file()]

    def by_hand(self, folder: Path) -> str:
        """How to place the files without a download by this program."""
        also = f" and the {self.inner} in it" if self.inner else ""
        extracted = "" if self.plain else f" (or extract it{also} there, which gives {folder / self.folder})"
        return (
            f"to place it by hand, save {self.url} as {folder / self.name}{extracted} and pass --data {folder} or "
            f"set {ENVIRONMENT}={folder}"
        )


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """`folder` if given, otherwise $FEDA2L_DATA, otherwise the cache folder of the user on this platform."""
    chosen = folder or os.environ.get(ENVIRONMENT)
    if not chosen:
        try:
            import pooch
        except ImportError:
            raise FedA2LError(f"no data folder: pass --data DIR or set {ENVIRONMENT}", see="data-missing") from None
        chosen = str(pooch.os_cache("feda2l"))
    return Path(chosen).expanduser()


def digest(path: Path, algorithm: str) -> str:
    """The md5 or sha256 of a file, in hexadecimal."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest()
    except OSError as error:
        raise damaged_data_error(f"{path} cannot be read: {error.strerror or error}") from error


def download(archive: Archive, folder: Path) -> Path:
    """Download the archive to `folder` with a progress bar. It is kept only if its checksum is the published one."""
    try:
        import pooch
    except ImportError:
        raise FedA2LError(
            f"a download needs the package pooch; {archive.by_hand(folder)}", see="data-missing"
        ) from None
    fetch = pooch.HTTPDownloader(progressbar=importlib.util.find_spec("tqdm") is not None, timeout=30)
    with staging(folder, archive.size) as staged:
        part = staged / archive.name
        try:
            fetch(archive.url, str(part), None)
        except OSError as error:  # errors of requests are OSErrors without an errno
            if error.errno is not None:
                raise
            raise RunFailed(
                f"cannot download {archive.url}: {error}; {archive.by_hand(folder)}", see="data-missing"
            ) from error
        kind = archive.algorithm
        actual, size = digest(part, kind), part.stat().st_size
        if actual != archive.checksum:
            raise RunFailed(
                f"{archive.url} arrived with a wrong checksum and was removed: expected {archive.size} bytes with "
                f"{kind} {archive.checksum}, found {size} bytes with {kind} {actual}; try again; "
                f"{archive.by_hand(folder)}",
                see="data-damaged",
            )
        os.replace(part, folder / archive.name)
    return folder / archive.name


class Member(NamedTuple):
    """A member of an archive: its full name, its size (None unless it is a plain file), and how to read it."""

    name: str
    size: int | None
    open: Callable[[], IO[bytes]]


@contextlib.contextmanager
def members(archive: Archive, path: Path) -> Iterator[Iterator[Member]]:
    """Iterate over the members of the archive at `path`, or of the inner archive. Read each before the next one.

    A damaged archive raises an error that says what to do.
    """
    try:
        yield _zipped(archive, path) if path.suffix == ".zip" else _tarred(path)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise damaged_data_error(
            f"{path} is not a whole archive ({error}): expected {archive.size} bytes, found {path.stat().st_size}; "
            "remove it and fetch it again"
        ) from error


def _tarred(path: Path) -> Iterator[Member]:
    with tarfile.open(path, "r:gz") as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            yield Member(name, member.size if member.isreg() else None, partial(_content, tar, member))


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(member)
    assert content is not None  # it is a plain file
    return content


def _zipped(archive: Archive, path: Path) -> Iterator[Member]:
    with contextlib.ExitStack() as stack:
        zipped = stack.enter_context(zipfile.ZipFile(path))
        if archive.inner:
            if archive.inner not in zipped.namelist():
                raise damaged_data_error(f"{path} does not contain {archive.inner}; remove it and fetch it again")
            zipped = stack.enter_context(zipfile.ZipFile(io.BytesIO(zipped.read(archive.inner))))
        for member in zipped.infolist():
            size = None if member.is_dir() else member.file_size
            yield Member(member.filename, size, partial(zipped.open, member))


def extract(archive: Archive, folder: Path) -> None:
    """Extract the missing files, and nothing else, from the archive in `folder`.

    Members are matched by their full name and written under fixed names, so no member can choose a path.
    """
    path = folder / archive.name
    wanted = {f"{archive.folder}/{name}": name for name in archive.missing(folder)}
    with staging(folder, sum(archive.files[name].size for name in wanted.values())) as staged:
        with members(archive, path) as entries:
            for member in entries:
                name = wanted.get(member.name)
                if name is None:
                    continue
                _demand_size(member, archive.files[name].size, path)
                with member.open() as content, (staged / name).open("wb") as file:
                    shutil.copyfileobj(content, file, MIB)
        if absent := [member for member, name in wanted.items() if not (staged / name).exists()]:
            raise damaged_data_error(f"{path} does not contain {absent[0]}; remove it and fetch it again")
        (folder / archive.folder).mkdir(exist_ok=True)
        for name in wanted.values():
            os.replace(staged / name, folder / archive.folder / name)


def _demand_size(member: Member, size: int, path: Path) -> None:
    if member.size != size:
        actual = "not a plain file" if member.size is None else f"{member.size} bytes"
        raise damaged_data_error(f"{path}: {member.name} should have {size} bytes, found {actual}")


def fetch(archive: Archive, folder: Path) -> Path:
    """The folder with the files. Missing files are downloaded and extracted."""
    path = folder / archive.name
    if archive.missing(folder):
        if not path.exists():
            download(archive, folder)
        elif (actual := digest(path, archive.algorithm)) != archive.checksum:
            raise damaged_data_error(
                f"{path} is not the official archive: expected {archive.algorithm} {archive.checksum} of "
                f"{archive.size} bytes, found {actual} of {path.stat().st_size}; remove it and fetch again"
            )
    return locate(archive, folder)


def locate(archive: Archive, folder: Path) -> Path:
    """The folder with the files, extracted if `folder` has only the archive; nothing is downloaded.

    For an archive that is not extracted: the prepared file, otherwise the archive, otherwise its extracted folder.
    """
    if archive.prepared:
        for name in (archive.prepared, archive.name, archive.folder):
            if (folder / name).exists():
                return folder / name
    missing = archive.missing(folder)
    if missing and (folder / archive.name).is_file():
        extract(archive, folder)
    elif missing:
        raise FedA2LError(
            f"{archive.place(folder) / missing[0]} is missing; `feda2l data fetch {archive.dataset} --data {folder}` "
            f"downloads it; {archive.by_hand(folder)}",
            see="data-missing",
        )
    place = archive.place(folder)
    for name, file in archive.files.items():
        path = place / name
        if (size := path.stat().st_size) != file.size:
            raise damaged_data_error(
                f"{path} is damaged: expected {file.size} bytes, found {size}; remove it and fetch it again"
            )
    return place


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


@contextlib.contextmanager
def staging(folder: Path, size: int) -> Iterator[Path]:
    """A temporary folder inside `folder`, which is always removed. Disk errors become errors that say what to do."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as staging:
            yield Path(staging)
    except OSError as error:
        if error.errno in FULL:
            raise RunFailed(
                f"the disk of {folder} is full: {size / MIB:.0f} MiB are needed; make room, or choose another folder "
                f"with --data DIR or {ENVIRONMENT}; what was written has been removed",
                see="cannot-write",
            ) from error
        raise FedA2LError(
            f"cannot write to {folder}: {error.strerror or error}; choose another folder with --data DIR or "
            f"{ENVIRONMENT}",
            see="cannot-write",
        ) from error
