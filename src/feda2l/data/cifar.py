"""CIFAR-10 and CIFAR-100 from the official binary files, which contain plain bytes and no pickles.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", technical report, University of Toronto, 2009.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feda2l.data.download import Archive, File, locate
from feda2l.data.errors import damaged_data_error
from feda2l.data.images import Images


@dataclass(frozen=True)
class Cifar:
    """One of the two data sets: files of records with label bytes and 3 x 32 x 32 pixels.

    `labels` has the number of classes of each label byte of a record. The last label is the target.
    """

    archive: Archive
    labels: tuple[int, ...]
    train: tuple[str, ...]
    test: tuple[str, ...]
    class_names: tuple[str, ...]


def load(source: Cifar, folder: Path) -> Images:
    """Load a CIFAR data set from the official files in the data folder `folder`, in the official order."""
    place = locate(source.archive, folder)
    train_x, train_y = _pictures(source, [place / name for name in source.train])
    test_x, test_y = _pictures(source, [place / name for name in source.test])
    return Images(
        name=source.archive.dataset,
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        classes=source.labels[-1],
        scale=255.0,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        class_names=source.class_names,
    )


def _pictures(source: Cifar, paths: list[Path]) -> tuple[Tensor, Tensor]:
    records = [_records(path, source.labels) for path in paths]
    head = len(source.labels)
    x = np.concatenate([record[:, head:] for record in records]).reshape(-1, 3, 32, 32)
    y = np.concatenate([record[:, head - 1] for record in records]).astype(np.int64)
    return torch.from_numpy(x), torch.from_numpy(y)


def _records(path: Path, labels: tuple[int, ...]) -> NDArray[np.uint8]:
    try:
        records = np.fromfile(path, dtype=np.uint8).reshape(-1, len(labels) + 3072)
    except OSError as error:
        raise damaged_data_error(f"{path} cannot be read: {error.strerror or error}") from error
    for column, classes in enumerate(labels):
        worst = int(records[:, column].argmax())
        if (label := records[worst, column]) >= classes:
            raise damaged_data_error(
                f"{path} is damaged: expected labels 0..{classes - 1}, found {label} in picture {worst} (byte "
                f"{worst * records.shape[1] + column}); remove it and fetch it again"
            )
    return records


CLASSES10 = "airplane automobile bird cat deer dog frog horse ship truck"
CLASSES100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

# The checksums of the six files were derived from the md5 sums of the author's Python version, which has the same
# pictures in the same order. Other projects list the same checksums for the files of this archive.
CIFAR10 = Cifar(
    archive=Archive(
        dataset="cifar10",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        checksum="c32a1d4ab5d03f1284b67883e8d87530",
        size=170_052_171,
        folder="cifar-10-batches-bin",
        files={
            name: File(30_730_000, sha256)
            for name, sha256 in {
                "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            }.items()
        },
        proven=True,
    ),
    labels=(10,),
    train=tuple(f"data_batch_{batch}.bin" for batch in range(1, 6)),
    test=("test_batch.bin",),
    class_names=tuple(CLASSES10.split()),
)

# The checksums of the two files are from the package torchvision-ruby; they could not be derived here.
CIFAR100 = Cifar(
    archive=Archive(
        dataset="cifar100",
        url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        checksum="03b5dce01913d631647c71ecec9e9cb8",
        size=168_513_733,
        folder="cifar-100-binary",
        files={
            "train.bin": File(153_700_000, "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"),
            "test.bin": File(30_740_000, "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"),
        },
        proven=False,
    ),
    labels=(20, 100),
    train=("train.bin",),
    test=("test.bin",),
    class_names=tuple(CLASSES100.split()),
)
