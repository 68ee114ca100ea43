"""Data sets of pictures. Pixels stay bytes, as published, and are normalised batch by batch."""

import functools
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from feda2l.data.samples import Labelled
from feda2l.errors import FedA2LError


@dataclass(frozen=True)
class Images:
    """A data set as tensors: uint8 pictures [n, channels, height, width] as published, int64 labels [n].

    `scale` is the largest value of a pixel. `mean` and `std` have one value per channel, for pixels divided by `scale`.
    `groups` is the node of each training picture for a natural partition, if the data come from nodes.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...]
    groups: Tensor | None = None

    @property
    def train(self) -> Labelled:
        return Labelled(self.train_x, self.train_y, self.normalise, self.affine)

    @property
    def test(self) -> Labelled:
        return Labelled(self.test_x, self.test_y, self.normalise, self.affine)

    @property
    def test_groups(self) -> None:
        """None: every node is tested on the whole test set."""
        return None

    @property
    def input(self) -> tuple[int, int, int]:
        """Channels, height and width of a picture."""
        channels, height, width = self.train_x.shape[1:]
        return channels, height, width

    def affine(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The factor and the offset per channel that normalise a pixel."""
        return _affine(self.scale, self.mean, self.std, device)

    def normalise(self, x: Tensor) -> Tensor:
        """(x / scale - mean) / std per channel, in float32, as one multiplication and one addition per pixel."""
        factor, offset = self.affine(x.device)
        # In place on a copy: measured twice as fast as a product of mixed types, and x does not change.
        return x.to(torch.float32, copy=True).mul_(factor).add_(offset)


@functools.lru_cache
def _affine(
    scale: float, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Factor and offset per channel, cached per device: a captured CUDA graph must not copy from the host."""
    factor = [1 / (scale * deviation) for deviation in std]
    offset = [-centre / deviation for centre, deviation in zip(mean, std, strict=True)]
    column = (-1, 1, 1)
    return (
        torch.tensor(factor, dtype=torch.float32, device=device).reshape(column),
        torch.tensor(offset, dtype=torch.float32, device=device).reshape(column),
    )


def digits_folder() -> Path:
    """The folder of the digits in scikit-learn, which is not imported: that would take a second."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise FedA2LError("the digits ship with scikit-learn, which is not installed; pip install scikit-learn")
    return Path(package.origin).parent / "datasets" / "data"


def digits() -> Images:
    """Handwritten digits that ship with scikit-learn: 1,797 pictures of 8 x 8, values 0..16, 10 classes.

    E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998.
    There is no official test set. This one is fixed: a rounded fifth of each class, drawn with `RandomState(0)`, whose
    numbers NumPy guarantees. 1,438 pictures remain for training.
    """
    lines = np.loadtxt(digits_folder() / "digits.csv.gz", delimiter=",", dtype=np.uint8)
    x = torch.from_numpy(lines[:, :-1].copy()).view(-1, 1, 8, 8)
    y = torch.from_numpy(lines[:, -1].astype(np.int64))
    random = np.random.RandomState(0)
    test = np.zeros(len(y), dtype=bool)
    for label in range(10):
        members = random.permutation(np.flatnonzero(lines[:, -1] == label))
        test[members[: round(len(members) / 5)]] = True
    chosen = torch.from_numpy(test)
    return Images(
        name="digits",
        train_x=x[~chosen],
        train_y=y[~chosen],
        test_x=x[chosen],
        test_y=y[chosen],
        classes=10,
        scale=16.0,
        mean=(0.5,),
        std=(0.5,),
        class_names=tuple("0123456789"),
    )
