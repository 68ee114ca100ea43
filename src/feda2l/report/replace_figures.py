"""Replace the figures of an earlier report in the same folder, and leave all other files alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

WRITTEN = "written-by-report.txt"  # the names of the figures of the last report, one per line


@contextmanager
def replaced_figures(folder: Path) -> Iterator[Path]:
    """Yield a new folder to draw in. Then its files replace those that the last report wrote into `folder`.

    A file that no report wrote stays, unless a new figure has its name.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as name:
        new = Path(name)
        yield new
        folder.mkdir(exist_ok=True)
        names = sorted(path.name for path in new.iterdir())
        for stale in set(_last_written(folder)) - set(names):
            (folder / stale).unlink(missing_ok=True)
        for figure in names:
            (new / figure).replace(folder / figure)
        (folder / WRITTEN).write_text("".join(f"{figure}\n" for figure in names), encoding="utf-8")


def _last_written(folder: Path) -> list[str]:
    """The names in the list of the last report, without any that lead out of the folder."""
    try:
        names = (folder / WRITTEN).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [name for name in names if name and (folder / name).parent == folder and (folder / name).is_file()]
