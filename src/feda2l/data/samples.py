"""The interface of a data set: samples by index, as inputs and targets.

The user's own data set is any object with the attributes of `Dataset`. A spec names the function that returns it:
`data.name = "package.module:function"`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

__all__ = ["Dataset", "Labelled", "Samples"]


class Samples(Protocol):
    """Samples on one device. A batch is selected by the indices of its samples, int64 [n]."""

    def __len__(self) -> int: ...

    def inputs(self, index: Tensor) -> Tensor:
        """The inputs of the model, float32 [n, ...]."""

    def targets(self, index: Tensor) -> Tensor:
        """The targets: classes int64 [n], or numbers float32 [n, ...]."""

    def to(self, device: torch.device) -> "Samples":
        """The same samples on another device."""


@runtime_checkable
class Dataset(Protocol):
    """A data set: training samples, test samples and their description."""

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
        """The number of classes; None if the targets are numbers."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes; if the targets are numbers, the names of the groups."""

    @property
    def groups(self) -> Tensor | None:
        """The node of each training sample, int64 [n], if the data come from nodes."""

    @property
    def test_groups(self) -> Tensor | None:
        """The node of each test sample; None if every node is tested on all test samples."""


@dataclass(frozen=True)
class Labelled:
    """Samples as one tensor of raw inputs and one tensor of targets.

    `normalise` turns a batch of raw inputs into inputs of the model. `affine` gives the same operation as a factor and
    an offset per channel, for kernels that normalise by themselves.
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
