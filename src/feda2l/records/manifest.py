"""The MANIFEST of a folder: the SHA-256 of each file, in the form that `sha256sum -c MANIFEST` checks."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from feda2l.errors import FedA2LError

MANIFEST = "MANIFEST"


def manifest_of(folder: Path, names: Iterable[str]) -> str:
    """Return one line per file: its SHA-256 and its name."""
    return "".join(f"{_digest(folder / name)}  {name}\n" for name in sorted(names))


def check_manifest(folder: Path) -> list[str]:
    """Compare each file with the MANIFEST and return the names of the files.

    Raises:
        FedA2LError: A file is missing or has other bytes than when the MANIFEST was written.
    """
    try:
        lines = [line.split("  ", 1) for line in (folder / MANIFEST).read_text(encoding="utf-8").splitlines()]
        wanted = {name: digest for digest, name in lines}
    except (OSError, ValueError) as error:
        raise FedA2LError(
            f"{folder / MANIFEST}: cannot be read as lines of a SHA-256 and a file name ({error}); "
            "restore the file from a copy, or make the bundle again",
            see="records-damaged",
        ) from error
    for name, digest in wanted.items():
        if _digest(folder / name) != digest:
            raise FedA2LError(
                f"{folder / name}: its SHA-256 differs from the one in {MANIFEST}, so the file is damaged or altered; "
                "restore it from a copy, or make the bundle again",
                see="records-damaged",
            )
    return list(wanted)


def _digest(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FedA2LError(
            f"{path}: cannot be read ({error.strerror}), but {MANIFEST} lists it; restore it from a copy",
            see="records-damaged",
        ) from error
