"""All nodes of all packed runs as rows of matrices, in memory that worker processes share."""

import math
import mmap
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from feda2l.round.layout import Layout

CPU = torch.device("cpu")
OPTIMIZER_STATE = {"sgd": ("momentum",), "adam": ("first", "second"), "adamw": ("first", "second")}


def shared_zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Allocate zeros in anonymous shared memory: forked workers see it, and it is freed with the last process."""
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(shape)


class Population:
    """The states of every node: parameters twice, optimizer state, algorithm state and buffers.

    `base` holds B at the start of a round and A after mixing; `trained` holds T. `memory` is the optimizer state and
    `state` the algorithm state.
    """

    def __init__(
        self,
        model: nn.Module,
        rows: int,
        runs: int,
        optimizer: str,
        *,
        state: Iterable[str] = (),
        device: torch.device = CPU,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        def zeros(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return (
                shared_zeros(*shape, dtype=dtype) if device == CPU else torch.zeros(shape, dtype=dtype, device=device)
            )

        self.layout = Layout.of(model)
        self.device = device
        width = self.layout.width
        self.base = zeros(rows, width)
        self.trained = zeros(rows, width)
        self.optimizer_state = {name: zeros(rows, width) for name in OPTIMIZER_STATE[optimizer]}
        self.algorithm_state = {name: zeros(rows, width) for name in state}
        self.steps = zeros(rows, dtype=torch.float32)  # of Adam; float32, as torch's fused kernel requires
        self.mean = zeros(runs, width)
        buffers = list(model.named_buffers())
        self.buffers = {name: zeros(rows, *buffer.shape, dtype=buffer.dtype) for name, buffer in buffers}
        self.mean_buffers = {name: zeros(runs, *buffer.shape, dtype=buffer.dtype) for name, buffer in buffers}

    def place(self, row: int, model: nn.Module) -> None:
        """Copy a model's parameters and buffers to a row."""
        values = dict(model.named_parameters())
        for slot in self.layout.slots:
            slot.view(self.base[row]).copy_(values[slot.name].detach())
        for name, buffer in model.named_buffers():
            self.buffers[name][row].copy_(buffer)


def is_batch_count(buffer: str) -> bool:
    """Return whether a buffer counts the batches of a normalization module; only training reads that count."""
    return buffer.rpartition(".")[2] == "num_batches_tracked"


def averaged_buffers(model: nn.Module) -> list[str]:
    """Return the statistics that `buffers = "average"` mixes: running mean and variance of normalization modules."""
    return [name for name, _ in model.named_buffers() if name.rpartition(".")[2] in ("running_mean", "running_var")]


def point(model: nn.Module, parameters: list[Tensor], buffers: dict[str, Tensor]) -> list[nn.Parameter]:
    """Make a model's trainable parameters and buffers views of these tensors, and return the parameters."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter, tensor in zip(trainable, parameters, strict=True):
        parameter.data = tensor
    for name, tensor in buffers.items():
        owner, _, last = name.rpartition(".")
        model.get_submodule(owner)._buffers[last] = tensor
    return trainable
