"""Published archives: where they come from, their checksums, and the files in them, placed safely in a data folder.

A file appears in the data folder whole or not at all: everything is written to a temporary folder beside it, checked,
and then renamed.
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
    """A file inside an archive, by its exact size and the sha256 of the official bytes."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Archive:
    """A `.tar.gz` or `.zip` as its authors publish it, and the files that are wanted from its `folder`.

    `checksum` is its md5 or sha256, whichever is known. `inner` is the zip archive inside it that holds the files, if
    they are packed twice. A single file may be its own archive: then its name is the archive's, and `folder` is ".".

    One of very many small files is read as it is, or where it was extracted by hand: then it is a `.zip`, `files` is
    empty, and `prepared` is the file that the loader makes of it once.

    `proven` says that the `sha256` of the files were derived from sums the authors publish, so that other bytes are
    wrong bytes. Where they come from a third party, a match still shows official bytes, a difference shows nothing.
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
        """Of the checksum."""
        return "md5" if len(self.checksum) == 32 else "sha256"

    @property
    def plain(self) -> bool:
        """Is it a single file, which there is nothing to extract from?"""
        return self.name in self.files

    def place(self, folder: Path) -> Path:
        """Where the wanted files lie: in the archive's folder, unless someone put them into the data folder itself."""
        own = folder / self.folder
        here = any(_size(folder / name) == file.size for name, file in self.files.items())
        return folder if here and not any((own / name).exists() for name in self.files) else own

    def missing(self, folder: Path) -> list[str]:
        """The wanted files that do not lie in the data folder; "" is all of them."""
        if self.prepared:
            return [] if any((folder / name).exists() for name in (self.prepared, self.folder)) else [""]
        place = self.place(folder)
        return [name for name in self.files if not (place / name).is_file()]

    def by_hand(self, folder: Path) -> str:
        """How to place the files without this program's download."""
        also = f" and the {self.inner} in it" if self.inner else ""
        extracted = "" if self.plain else f" (or extract it{also} there, which gives {folder / self.folder})"
        return (
            f"to place it by hand, bring {self.url} to {folder / self.name}{extracted} and pass --data {folder} or "
            f"set {ENVIRONMENT}={folder}"
        )


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """`folder` if given, else $FEDA2L_DATA, else the user's cache folder as the platform has it."""
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
        raise damaged_data_error(f"cannot read {path}: {error.strerror or error}") from error


def download(archive: Archive, folder: Path) -> Path:
    """The archive in `folder`, downloaded with a progress bar and kept only if its checksum is the published one."""
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
        except OSError as error:  # what requests raises is an OSError too, without an errno
            if error.errno is not None:
                raise
            raise RunFailed(
                f"cannot download {archive.url}: {error}; {archive.by_hand(folder)}", see="data-missing"
            ) from error
        kind = archive.algorithm
        found, size = digest(part, kind), part.stat().st_size
        if found != archive.checksum:
            raise RunFailed(
                f"{archive.url} arrived with a wrong checksum and was removed: expected {archive.size} bytes with "
                f"{kind} {archive.checksum}, found {size} bytes with {kind} {found}; try again; "
                f"{archive.by_hand(folder)}",
                see="data-damaged",
            )
        os.replace(part, folder / archive.name)
    return folder / archive.name


class Member(NamedTuple):
    """A member of an archive: its full name, its size (None: it is no plain file), and how to read it."""

    name: str
    size: int | None
    open: Callable[[], IO[bytes]]


@contextlib.contextmanager
def members(archive: Archive, path: Path) -> Iterator[Iterator[Member]]:
    """The members of the archive at `path`, or of the one inside it; each is read before the next is asked for.

    Damage that shows on the way is said in words.
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
    """Take the missing files, and nothing else, out of the archive that lies in `folder`.

    Members are matched by their full name and written under names of ours, so no member can choose a path.
    """
    path = folder / archive.name
    wanted = {f"{archive.folder}/{name}": name for name in archive.missing(folder)}
    with staging(folder, sum(archive.files[name].size for name in wanted.values())) as staged:
        with members(archive, path) as found:
            for member in found:
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
        found = "not a plain file" if member.size is None else f"{member.size} bytes"
        raise damaged_data_error(f"{path}: {member.name} should have {size} bytes, found {found}")


def fetch(archive: Archive, folder: Path) -> Path:
    """Where the wanted files lie, downloaded and extracted as far as they are not there yet."""
    path = folder / archive.name
    if archive.missing(folder):
        if not path.exists():
            download(archive, folder)
        elif (found := digest(path, archive.algorithm)) != archive.checksum:
            raise damaged_data_error(
                f"{path} is not the official archive: expected {archive.algorithm} {archive.checksum} of "
                f"{archive.size} bytes, found {found} of {path.stat().st_size}; remove it and fetch again"
            )
    return locate(archive, folder)


def locate(archive: Archive, folder: Path) -> Path:
    """The folder with the wanted files, extracted if only the archive lies in `folder`; nothing is downloaded.

    Of an archive that is read as it is: what was prepared from it, else the archive, else its folder.
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
    """A temporary folder inside `folder`, gone at the end whatever happens; disk errors are said in words."""
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
