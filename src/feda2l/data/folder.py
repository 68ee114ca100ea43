"""A user's own pictures in `train/CLASS/*` and `test/CLASS/*`, each with the layout of torchvision's `ImageFolder`."""

import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from feda2l.data.csv_table import read_csv
from feda2l.data.errors import own_data_error
from feda2l.data.images import Images
from feda2l.data.labels import groups_of, hold_out, numbered
from feda2l.data.pictures import describe, gather, notify

__all__ = ["load"]

_NODES = "nodes.csv"
_LAYOUT = "expected FOLDER/train/CLASS/PICTURE and, for the test set, FOLDER/test/CLASS/PICTURE"


def load(
    path: str | os.PathLike[str], *, test_fraction: float = 0.2, seed: int = 0, processes: int | None = None
) -> Images:
    """Load the pictures of a folder, ordered by class and then by file name.

    All pictures must have the same size. They have three channels unless all of them are grey. `mean` and `std` are
    those of the training pictures, divided by 255. Names that start with a dot are ignored; every other file must be a
    picture.

    If the data come from nodes, a file `nodes.csv` beside `train` names the node of each picture. Its first line is
    `path,node`, followed by one line per picture in `train`, with `path` as in `train/CLASS/PICTURE`. The nodes are
    numbered in the order of their names.

    Args:
        test_fraction: without a folder `test`, the share of each class that is held out for the test set.
        seed: draws the pictures that are held out.
        processes: worker processes that decode pictures; by default one per core for large folders.
    """
    root = Path(path).expanduser()
    train = _listing(root, "train")
    classes = list(train)
    names, labels = _flat(train, classes)
    listed = len(names)
    if (root / "test").exists():
        test = _listing(root, "test")
        if unknown := [name for name in test if name not in train]:
            raise own_data_error(f"{root / 'test' / unknown[0]}: {root / 'train'} has no class {unknown[0]!r}")
        test_names, known = _flat(test, classes)
        tested = np.repeat([False, True], [len(names), len(test_names)])
        names, labels = names + test_names, np.concatenate([labels, known])
    else:
        tested = hold_out(labels, share=test_fraction, seed=seed)
        notify(
            f"{root} has no folder 'test': {tested.sum():,} of {len(names):,} pictures, {test_fraction:g} of each "
            f"class (seed {seed}), are held out for the test set"
        )
    trained = ~tested
    groups = _groups(root, names[:listed], trained[:listed])
    gathered = gather(root, names, processes=processes)
    if gathered.problems:
        raise own_data_error(f"{root}: {describe(gathered.problems, len(names))}; repair or remove them")
    x, y = gathered.x, torch.from_numpy(labels)
    mean, std = _statistics(x[trained])
    return Images(
        name=root.resolve().name,
        train_x=torch.from_numpy(x[trained]),
        train_y=y[trained],
        test_x=torch.from_numpy(x[tested]),
        test_y=y[tested],
        classes=len(classes),
        scale=255.0,
        mean=mean,
        std=std,
        class_names=tuple(classes),
        groups=None if groups is None else torch.from_numpy(groups),
    )


def _statistics(x: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of pictures [n, channels, height, width] divided by 255.

    One pass counts how often each of the 256 values occurs, so the result is exact up to float64. A constant channel
    gets a standard deviation of 1, so that it is normalised to 0.
    """
    counts = np.zeros((x.shape[1], 256))
    for start in range(0, len(x), 256):  # in parts: bincount needs 8 bytes per value
        for channel in range(x.shape[1]):
            counts[channel] += np.bincount(x[start : start + 256, channel].ravel(), minlength=256)
    values = np.arange(256) / 255
    share = counts / counts.sum(1, keepdims=True)
    mean = share @ values
    std = np.sqrt((share * (values - mean[:, None]) ** 2).sum(1))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


def _listing(root: Path, part: str) -> dict[str, list[str]]:
    """The names of the pictures in each class of a part, relative to `root`."""
    if not (root / part).is_dir():
        raise own_data_error(f"{root / part} is not a folder; {_LAYOUT}")
    listing = {}
    for folder in _entries(root / part):
        if not folder.is_dir():
            raise own_data_error(f"{folder} is not in the folder of a class; {_LAYOUT}")
        names = []
        for picture in _entries(folder):
            if picture.is_dir():
                raise own_data_error(
                    f"{picture} is a folder inside the folder of a class; {_LAYOUT}; list the nodes in {_NODES}"
                )
            names.append(picture.relative_to(root).as_posix())
        if not names:
            raise own_data_error(f"{folder} contains no picture; add pictures or remove the folder")
        listing[folder.name] = names
    if not listing:
        raise own_data_error(f"{root / part} contains no class; {_LAYOUT}")
    if part == "train" and len(listing) == 1:
        raise own_data_error(
            f"{root / part} contains only the class {next(iter(listing))!r}; at least two classes are needed"
        )
    return listing


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise own_data_error(f"cannot read {folder}: {error.strerror or error}") from error


def _flat(listing: dict[str, list[str]], classes: list[str]) -> tuple[list[str], NDArray[np.int64]]:
    """All names, and the label of each name."""
    owners = [owner for owner, names in listing.items() for _ in names]
    return [name for names in listing.values() for name in names], numbered(owners, classes)


def _groups(root: Path, names: list[str], train: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    """The node number of each training picture, if there is a `nodes.csv`; its lines of test pictures are ignored."""
    path = root / _NODES
    if not path.exists():
        return None
    table = read_csv(path, skip_empty=True)
    nodes: dict[str, str] = {}
    known = set(names)
    for row, (name, node) in enumerate(zip(table.texts("path"), table.filled_texts("node"), strict=True)):
        if name in nodes:
            raise own_data_error(f"{table.where(row, 'path')}: {name} has a second line; remove one of them")
        if name not in known and not (root / name).is_file():
            raise own_data_error(f"{table.where(row, 'path')}: the picture {name} does not exist")
        nodes[name] = node
    if absent := [name for name in names if name not in nodes]:
        raise own_data_error(
            f"{path} has no line for {len(absent):,} of {len(names):,} pictures; the first of these is {absent[0]}"
        )
    return groups_of([nodes[name] for name in names], train)
