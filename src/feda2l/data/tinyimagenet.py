"""Tiny ImageNet: 64 x 64 pictures of 200 classes of ImageNet, decoded once and stored as bytes.

Y. Le, X. Yang, "Tiny ImageNet Visual Recognition Challenge", course CS 231N, Stanford University, 2015.

The pictures are read directly from the official archive, because 110,000 small files on disk would be slow to write and
to read. The decoded pictures are stored in one file of 1.4 GB beside it. Later runs need that file only, and map it.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from feda2l.data.download import Archive, digest, locate, staging
from feda2l.data.errors import damaged_data_error
from feda2l.data.images import Images
from feda2l.data.labels import numbered
from feda2l.data.pictures import PictureSource, describe, gather, notify
from feda2l.errors import FedA2LError

VERSION = "2"  # of the file with the decoded pictures; a file of another version is written again
SIZE = (64, 64)


@dataclass(frozen=True)
class TinyImageNet:
    """The archive, its number of classes, and the pictures per class in the two parts with labels."""

    archive: Archive
    classes: int
    train: int
    test: int

    @property
    def pictures(self) -> int:
        return self.classes * (self.train + self.test)


@dataclass(frozen=True)
class _Decoded:
    """The two parts with labels, the checksum of their archive (if any), and the pictures left out with the reason."""

    tensors: dict[str, Tensor]
    class_names: list[str]
    checksum: str
    left_out: dict[str, str]


def load(
    source: TinyImageNet,
    folder: str | os.PathLike[str],
    *,
    skip_corrupt: bool = False,
    keep: bool = True,
    processes: int | None = None,
) -> Images:
    """Load Tiny ImageNet from the archive in the data folder `folder`, or from the folder extracted there.

    The test set is the part that the authors call validation; their test part has no labels. Labels number the sorted
    ids of the classes. Training pictures are sorted by label and then by file name. Both are as in torchvision's
    `ImageFolder`, so that a partition by index assigns the same pictures.

    Args:
        skip_corrupt: leave out pictures that are missing, damaged or of another size, and print their number. By
            default such a picture is an error that names it.
        keep: write the decoded pictures to a file for later runs.
        processes: worker processes that decode pictures; by default one per core.
    """
    folder = Path(folder)
    place = locate(source.archive, folder)
    prepared = _prepared(source, folder)
    decoded = _read(source, prepared) if place == prepared else None
    if decoded is None:
        root = next((path for path in _roots(source, folder) if path.exists()), None)
        if root is None:
            raise FedA2LError(
                f"{prepared} cannot be used, and the archive is missing; {source.archive.by_hand(folder)}",
                see="data-missing",
            )
        decoded = _decode(source, root, prepared, skip_corrupt, processes)
        if keep:
            _write(decoded, prepared)
    if decoded.left_out:
        counts = [len(decoded.tensors[name]) for name in ("train_y", "test_y")]
        notify(
            f"{source.archive.dataset}: {describe(decoded.left_out, source.pictures)}; they are left out as requested, "
            f"{counts[0]:,} training and {counts[1]:,} test pictures are kept"
        )
    return Images(
        name=source.archive.dataset,
        **decoded.tensors,
        classes=source.classes,
        scale=255.0,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        class_names=tuple(decoded.class_names),
    )


def origin(path: Path) -> str | None:
    """The checksum of the archive of the decoded pictures; None if they are not from an archive or cannot be read."""
    try:
        with safe_open(path, "pt") as file:
            return (file.metadata() or {}).get("checksum") or None
    except (SafetensorError, OSError):
        return None


def _prepared(source: TinyImageNet, folder: Path) -> Path:
    assert source.archive.prepared is not None
    return folder / source.archive.prepared


def _roots(source: TinyImageNet, folder: Path) -> tuple[Path, Path]:
    """The possible sources of the pictures: the archive, or the folder that the user extracted from it."""
    return folder / source.archive.name, folder / source.archive.folder


def _decode(source: TinyImageNet, root: Path, prepared: Path, skip_corrupt: bool, processes: int | None) -> _Decoded:
    """Decode both parts from the archive or the folder `root`."""
    # Names start with the folder of the archive, both in the archive and in the data folder.
    root, checksum = (root.parent, "") if root.is_dir() else (root, digest(root, source.archive.algorithm))
    top, files = source.archive.folder, PictureSource(root)
    ids = _ids(source, files)
    trained = _trained(source, ids)
    tested, problems = _annotated(source, files, ids)
    owners = trained | tested
    gathered = gather(root, list(owners), size=SIZE, colour=True, processes=processes)
    problems |= gathered.problems
    if problems and not skip_corrupt:
        raise damaged_data_error(
            f"{root}: {describe(problems, source.pictures)}; remove {root if checksum else root / top} and fetch it "
            "again, or leave them out with feda2l.data.tinyimagenet.load(TINYIMAGENET, "
            f"{str(prepared.parent)!r}, skip_corrupt=True)"
        )
    x, y = torch.from_numpy(gathered.x), torch.from_numpy(numbered(list(owners.values()), ids))
    usable = torch.from_numpy(np.array([name not in problems for name in owners]))
    parts: dict[str, Tensor] = {}
    for part, span in (("train", slice(len(trained))), ("test", slice(len(trained), None))):
        some = usable[span] if problems else slice(None)  # a mask copies, a slice does not
        parts |= {f"{part}_x": x[span][some], f"{part}_y": y[span][some]}
        if empty := sorted(set(range(len(ids))) - set(parts[f"{part}_y"].tolist())):
            raise damaged_data_error(
                f"{root}: no {part} picture of {ids[empty[0]]} is left; {describe(problems, len(owners))}"
            )
    return _Decoded(parts, _names(files, top, ids), checksum, problems)


def _ids(source: TinyImageNet, files: PictureSource) -> list[str]:
    """The ids of all classes, sorted."""
    place = f"{source.archive.folder}/wnids.txt"
    ids = sorted(set(files.text(place).split()))
    if len(ids) != source.classes:
        raise damaged_data_error(
            f"{files.root}: {place} should name {source.classes} classes, found {len(ids)}; fetch the data again"
        )
    return ids


def _trained(source: TinyImageNet, ids: list[str]) -> dict[str, str]:
    """The class id of each training picture by name, ordered by class id and name."""
    folder = f"{source.archive.folder}/train"
    return {
        name: wnid
        for wnid in ids
        for name in sorted(f"{folder}/{wnid}/images/{wnid}_{number}.JPEG" for number in range(source.train))
    }


def _annotated(source: TinyImageNet, files: PictureSource, ids: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The class id of each validation picture by name, ordered by name; and the pictures without a class."""
    folder = f"{source.archive.folder}/val/images"
    expected = {f"val_{number}.JPEG" for number in range(source.classes * source.test)}
    annotations = _annotations(source, files, expected)
    reasons = {name: f"its class {wnid} is not in wnids.txt" for name, wnid in annotations.items() if wnid not in ids}
    reasons |= dict.fromkeys(sorted(expected - annotations.keys()), "no line in val_annotations.txt")
    usable = sorted(annotations.keys() - reasons.keys())
    return (
        {f"{folder}/{name}": annotations[name] for name in usable},
        {f"{folder}/{name}": reason for name, reason in reasons.items()},
    )


def _annotations(source: TinyImageNet, files: PictureSource, expected: set[str]) -> dict[str, str]:
    """The class id of each validation picture, in the order of the lines of the file."""
    place = f"{source.archive.folder}/val/val_annotations.txt"
    annotations: dict[str, str] = {}
    for number, line in enumerate(files.text(place).splitlines(), 1):
        name, _, rest = line.partition("\t")
        wnid, where = rest.partition("\t")[0].strip(), f"{files.root}: {place}, line {number}"
        if name not in expected or not wnid:
            raise damaged_data_error(
                f"{where}: expected a picture and its class, found {line[:40]!r}; fetch the data again"
            )
        if name in annotations:
            raise damaged_data_error(f"{where}: {name} has a second line; fetch the data again")
        annotations[name] = wnid
    return annotations


def _names(files: PictureSource, top: str, ids: list[str]) -> list[str]:
    """The first synonym of each class, followed by the class id if the synonym is missing or not unique."""
    descriptions = dict(line.split("\t", 1) for line in files.text(f"{top}/words.txt").splitlines() if "\t" in line)
    first = [descriptions.get(wnid, "").split(",")[0].strip() for wnid in ids]
    return [
        name if name and first.count(name) == 1 else f"{name} {wnid}".strip()
        for name, wnid in zip(first, ids, strict=True)
    ]


def _write(decoded: _Decoded, path: Path) -> None:
    """Store the decoded pictures, completely or not at all. If that fails, the next run decodes them again."""
    about = {
        "version": VERSION,
        "checksum": decoded.checksum,
        "class_names": json.dumps(decoded.class_names),
        "left_out": json.dumps(decoded.left_out),
    }
    try:
        with staging(path.parent, sum(tensor.nbytes for tensor in decoded.tensors.values())) as partial:
            save_file(
                {name: tensor.contiguous() for name, tensor in decoded.tensors.items()}, partial / path.name, about
            )
            (partial / "plain").touch()
            shutil.copymode(partial / "plain", partial / path.name)  # save_file gives the file to its owner only
            with (partial / path.name).open("rb+") as file:
                os.fsync(file.fileno())  # after a crash, the file name must not exist without its bytes
            os.replace(partial / path.name, path)
    except (FedA2LError, SafetensorError) as error:
        notify(f"{error}; the decoded pictures are not kept")


def _read(source: TinyImageNet, path: Path) -> _Decoded | None:
    """Read the file of `_write`; None, and a line on stderr, if it has another version or is incomplete."""
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            if (version := about.get("version")) != VERSION:
                raise ValueError(f"version {version}, expected {VERSION}")
            tensors = {name: file.get_tensor(name) for name in ("train_x", "train_y", "test_x", "test_y")}
        left_out = json.loads(about["left_out"])
        count = len(tensors["train_y"]) + len(tensors["test_y"]) + len(left_out)
        if count != source.pictures:
            raise ValueError(f"{count} pictures, expected {source.pictures}")
        return _Decoded(tensors, json.loads(about["class_names"]), about["checksum"], left_out)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        notify(f"{path} is not used ({error}); the pictures are decoded again")
        return None


# The authors publish no checksum. Many projects, for example Avalanche, check this md5 and size for the archive at this
# address. The archive itself could not be downloaded here.
TINYIMAGENET = TinyImageNet(
    archive=Archive(
        dataset="tinyimagenet",
        url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        checksum="90528d7ca1a48142e341f4ef8d21d0de",
        size=248_100_043,
        folder="tiny-imagenet-200",
        files={},
        proven=False,
        prepared="tiny-imagenet-200.safetensors",
    ),
    classes=200,
    train=500,
    test=50,
)
