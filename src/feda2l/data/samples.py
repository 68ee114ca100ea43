"""What every data set gives the engines: samples by number, as inputs and targets.

`Dataset` is all that a user's own data need: an object with these attributes, named in a spec as
`data.name = "package.module:function"`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

__all__ = ["Dataset", "Labelled", "Samples"]


class Samples(Protocol):
    """Samples on one device; a batch is asked for by the numbers of its samples, [n] int64."""

    def __len__(self) -> int: ...

    def inputs(self, index: Tensor) -> Tensor:
        """What the model sees, float32 [n, ...]."""

    def targets(self, index: Tensor) -> Tensor:
        """What it should answer: classes int64 [n], or numbers float32 [n, ...]."""

    def to(self, device: torch.device) -> "Samples":
        """The same on another device."""


@runtime_checkable
class Dataset(Protocol):
    """A data set: samples to train on and to test with, and what they are."""

    @property
    def name(self) -> str: ...

    @property
    def train(self) -> Samples: ...

    @property
    def test(self) -> Samples: ...

    @property
    def input(self) -> tuple[int, ...]:
        """The shape of one input."""

    @property
    def classes(self) -> int | None:
        """How many classes there are; None where the targets are numbers."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes' names; of numbers: the names of the groups."""

    @property
    def groups(self) -> Tensor | None:
        """The node each training sample belongs to by nature, if any, [n] int64."""

    @property
    def test_groups(self) -> Tensor | None:
        """The node each test sample belongs to; None: every node is tested with all of them."""


@dataclass(frozen=True)
class Labelled:
    """Samples held as one tensor of raw inputs and one of targets, and how a batch is turned into the model's input.

    `affine` is the same as a factor and an offset a channel, for kernels that do it themselves.
    """

    x: Tensor
    y: Tensor
    normalise: Callable[[Tensor], Tensor]
    affine: Callable[[torch.device], tuple[Tensor, Tensor]] | None = None

    def __len__(self) -> int:
        return len(self.y)

    def inputs(self, index: Tensor) -> Tensor:
        return self.normalise(self.x[index])

    def targets(self, index: Tensor) -> Tensor:
        return self.y[index]

    def to(self, device: torch.device) -> "Labelled":
        return replace(self, x=self.x.to(device), y=self.y.to(device))
