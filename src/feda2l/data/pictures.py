"""Decodes pictures of a folder or a zip archive into bytes on all cores, and names those that cannot be decoded."""

import itertools
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feda2l.data.errors import damaged_data_error
from feda2l.errors import FedA2LError, RunFailed

CHUNK = 256  # pictures that a process decodes before it returns them
FEW = 2000  # with fewer pictures, a pool of processes costs more time than it saves
SHOWN = 5  # names in a message
GREY = {"1", "L", "LA", "La"}
DEEP = {"I", "F", "I;16", "I;16L", "I;16B", "I;16N"}

Picture = NDArray[np.uint8]  # [height, width] if it is grey, else [height, width, 3]


@dataclass(frozen=True)
class Gathered:
    """Pictures [n, channels, height, width] in the order of their names; pictures in `problems` are zeros."""

    x: NDArray[np.uint8]
    problems: dict[str, str]


class PictureSource:
    """Bytes by name: the files of a folder, or the members of a zip archive, whose checksums are checked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            self.zip = None if root.is_dir() else zipfile.ZipFile(root)
        except (OSError, zipfile.BadZipFile) as error:
            raise damaged_data_error(
                f"{root} is not a whole archive ({error}); remove it and fetch it again"
            ) from error

    def read(self, name: str) -> bytes:
        return self.zip.read(name) if self.zip else (self.root / name).read_bytes()

    def text(self, name: str) -> str:
        """A text file that must exist."""
        try:
            return self.read(name).decode()
        except KeyError:
            raise damaged_data_error(f"{self.root} does not contain {name}; fetch the data again") from None
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise damaged_data_error(f"{self.root / name} cannot be read: {error}; fetch the data again") from error


def gather(
    root: Path,
    names: Sequence[str],
    *,
    size: tuple[int, int] | None = None,
    colour: bool = False,
    processes: int | None = None,
) -> Gathered:
    """Decode the named pictures, which must all have `size` (width, height), or the size of the first one.

    There are three channels if `colour` is set or if any picture has colours. A grey picture repeats its channel.
    """
    x: NDArray[np.uint8] | None = None
    problems, reference = {}, ""
    for place, (name, picture) in enumerate(zip(names, decode(root, names, processes=processes), strict=True)):
        if isinstance(picture, str):
            problems[name] = picture
            continue
        height, width = picture.shape[:2]
        if size is None:
            size, reference = (width, height), f" as {name} is"
        if (width, height) != size:
            problems[name] = f"is {width} x {height}, expected {size[0]} x {size[1]}{reference}"
            continue
        if x is None:
            x = np.zeros((len(names), 3 if colour else 1, height, width), np.uint8)
        if picture.ndim == 3 and x.shape[1] == 1:  # the first picture with colours
            x = np.repeat(x, 3, axis=1)
        x[place] = np.atleast_3d(picture).transpose(2, 0, 1)
    return Gathered(np.zeros((len(names), 3, 0, 0), np.uint8) if x is None else x, problems)


def decode(root: Path, names: Sequence[str], *, processes: int | None = None) -> Iterator[Picture | str]:
    """Decode each picture in the order of the names; a picture that cannot be decoded gives the reason as a string.

    As in torchvision's `ImageFolder`, an alpha channel is dropped and the rotation in the metadata is not applied.
    `processes` is by default one per core for many pictures; 0 decodes in this process.
    """
    try:
        import PIL.Image  # noqa: F401 (workers import it again)
    except ImportError:
        raise FedA2LError(
            "pictures need the package Pillow: pip install 'feda2l[images]'", see="missing-extra"
        ) from None
    PictureSource(root)  # raises for a broken archive here, not in a worker
    if processes is None:
        from feda2l.worker_pool import default_processes

        processes = default_processes() if len(names) > FEW else 0
    chunks = [names[start : start + CHUNK] for start in range(0, len(names), CHUNK)]
    yield from itertools.chain.from_iterable(_shown(_decoded(root, chunks, processes), root, len(names)))


def describe(problems: Mapping[str, str], total: int) -> str:
    """How many of `total` pictures cannot be used, and the first ones with the reason.

    >>> describe({"a.png": "missing", "b.png": "not a picture"}, 1000)
    '2 of 1,000 pictures cannot be used: a.png (missing), b.png (not a picture)'
    """
    named = ", ".join(f"{name} ({reason})" for name, reason in itertools.islice(problems.items(), SHOWN))
    rest = f" and {len(problems) - SHOWN:,} more" if len(problems) > SHOWN else ""
    return f"{len(problems):,} of {total:,} pictures cannot be used: {named}{rest}"


def notify(text: str) -> None:
    """Print a line for the user to stderr, which keeps it apart from the output of the program."""
    print(text, file=sys.stderr, flush=True)


def _decoded(root: Path, chunks: list[Sequence[str]], processes: int) -> Iterator[list[Picture | str]]:
    if not processes:
        source = PictureSource(root)
        yield from ([_picture(source, name) for name in chunk] for chunk in chunks)
        return
    import multiprocessing

    context = multiprocessing.get_context("fork")  # then a script of the user needs no `if __name__ == "__main__"`
    pool = ProcessPoolExecutor(processes, context, initializer=_open, initargs=(root,))
    try:
        yield from pool.map(_chunk, chunks)
    except BrokenProcessPool as error:
        raise RunFailed(
            f"a process that decodes {root} was killed, perhaps because memory ran out; try again", see="worker-ended"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _shown(chunks: Iterator[list[Picture | str]], root: Path, total: int) -> Iterator[list[Picture | str]]:
    """Pass the chunks on, with a progress bar on a terminal; elsewhere print one line if there are many pictures."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    many = total > FEW
    if many and not console.is_terminal:
        notify(f"decoding {total:,} pictures of {root}")
    with Progress(*columns, console=console, disable=not (many and console.is_terminal)) as bar:
        task = bar.add_task(f"decoding {root.name}", total=total)
        for chunk in chunks:
            yield chunk
            bar.advance(task, len(chunk))


_source: PictureSource | None = None  # of a worker process, which opens the archive once and does not share it


def _open(root: Path) -> None:
    global _source
    _source = PictureSource(root)


def _chunk(names: Sequence[str]) -> list[Picture | str]:
    assert _source is not None
    return [_picture(_source, name) for name in names]


def _picture(source: PictureSource, name: str) -> Picture | str:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(BytesIO(source.read(name))) as image:
            if image.mode in DEEP:
                return f"has more than 8 bits per channel (mode {image.mode}); convert it"
            return np.asarray(image.convert("L" if image.mode in GREY else "RGB"))
    except (KeyError, FileNotFoundError):
        return "missing"
    except UnidentifiedImageError:
        return "not a picture"
    except Exception as error:  # each decoder raises its own errors for a damaged file
        return f"damaged: {os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error}"
