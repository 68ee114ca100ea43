"""The layout of a node's parameters in one flat row.

A network is a matrix with one row per node and one column per parameter. A round takes it through three states: base B
(before local training), trained T (after it) and aggregated A (after mixing with the neighbours). A is B of the next
round.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from feda2l.layers import Layer

ALIGNMENT = 64  # elements: 256 bytes of float32, so that every tensor starts on a cache line and a GPU sector


class Segment(NamedTuple):
    """Adjacent columns [start, stop) that hold `size` parameters; the rest is padding, which is always 0."""

    start: int
    stop: int
    size: int


@dataclass(frozen=True)
class Slot:
    """The place of one tensor in a row."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        size = 1
        for side in self.shape:
            size *= side
        return size

    @property
    def stop(self) -> int:
        """The first column after the tensor and its padding."""
        return self.start + -(-self.size // ALIGNMENT) * ALIGNMENT

    def view(self, rows: Tensor) -> Tensor:
        """Return the tensor as a view: [..., width] -> [..., *shape].

        Convolution kernels are stored channels-last, as the fast convolutions need them.
        """
        stored = self.stored(rows)
        return stored.movedim(-1, -3) if len(self.shape) == 4 else stored

    def stored(self, rows: Tensor) -> Tensor:
        """Return the tensor in storage order: a kernel is [..., outputs, height, width, inputs]."""
        columns = rows[..., self.start : self.start + self.size]
        if not self.shape:
            return columns.squeeze(-1)
        outputs, *rest = self.shape
        stored: Tensor = columns.unflatten(-1, (outputs, *rest[1:], rest[0]) if len(rest) == 3 else self.shape)
        return stored


@dataclass(frozen=True)
class Layout:
    """The columns of a row: a model's trainable parameters in `named_parameters` order, each aligned."""

    slots: tuple[Slot, ...]

    @classmethod
    def of(cls, model: nn.Module) -> "Layout":
        slots: list[Slot] = []
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                slots.append(Slot(name, tuple(parameter.shape), slots[-1].stop if slots else 0))
        return cls(tuple(slots))

    @property
    def width(self) -> int:
        return self.slots[-1].stop

    @property
    def parameters(self) -> int:
        return sum(slot.size for slot in self.slots)

    def views(self, rows: Tensor) -> list[Tensor]:
        return [slot.view(rows) for slot in self.slots]

    def columns(self) -> Tensor:
        """Return the columns that hold a parameter."""
        return torch.cat([torch.arange(slot.start, slot.start + slot.size) for slot in self.slots])

    def expand(self, values: Tensor) -> Tensor:
        """Expand one value per tensor to one value per column: [..., slots] -> [..., width]."""
        widths = torch.tensor([slot.stop - slot.start for slot in self.slots], device=values.device)
        return values.repeat_interleave(widths, dim=-1, output_size=self.width)

    def layer_of_slots(self, layers: list[Layer]) -> list[int]:
        """Return the index of the layer that each slot belongs to."""
        owner = {tensor: number for number, layer in enumerate(layers) for tensor in layer.tensors}
        # an empty tensor belongs to no layer: any rate will do
        return [owner[slot.name] if slot.size else 0 for slot in self.slots]

    def segments(self, tensors: tuple[str, ...]) -> list[Segment]:
        """Return the columns of these tensors; adjacent tensors are joined into one segment."""
        wanted = set(tensors)
        joined: list[Segment] = []
        for slot in self.slots:
            if slot.name not in wanted:
                continue
            if joined and joined[-1].stop == slot.start:
                joined[-1] = Segment(joined[-1].start, slot.stop, joined[-1].size + slot.size)
            else:
                joined.append(Segment(slot.start, slot.stop, slot.size))
        return joined
