"""Node-batched kernels on a GPU: all nodes of a small convolutional network in one product.

At batch 10 a node alone leaves most of the card idle. Here a convolution of k nodes is one gather of patches and one
batched matrix product. The forward pass is compiled, the step captured; rows are sorted by the length of their shards
and go in groups, so that a group waits only for rows as long as itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feda2l.simulate.cuda_engine import WARM_UP, CudaEngine
from feda2l.simulate.engine import Member, TrainJob
from feda2l.simulate.population import Population
from feda2l.simulate.stacked import ELEMENTWISE, Forward, stacked_loss

WASTE = 1.15  # a group may cost this much more than its rows hold
LANES = 16  # inner sizes of products are padded to this many numbers: unaligned ones are several times slower


def covers(model: nn.Module) -> bool:
    """Are there node-batched kernels for every part of this model?"""
    return type(model) is nn.Sequential and all(_covered(part) for part in model) and not list(model.buffers())


def _covered(part: nn.Module) -> bool:
    if part._forward_hooks or part._forward_pre_hooks or any(not p.requires_grad for p in part.parameters()):
        return False
    if type(part) is nn.Conv2d:
        plain = (part.stride, part.dilation, part.groups) == ((1, 1), (1, 1), 1)
        return plain and isinstance(part.padding, tuple) and part.padding_mode == "zeros"
    if type(part) is nn.MaxPool2d:
        sizes = {part.kernel_size, part.stride}
        return sizes in ({2}, {(2, 2)}) and part.padding == 0 and part.dilation == 1 and not part.ceil_mode
    if type(part) is nn.Flatten:
        return (part.start_dim, part.end_dim) == (1, -1)
    return type(part) in (nn.Linear, *ELEMENTWISE)


def batched_forward(model: nn.Sequential) -> Forward:
    """The forward pass of k nodes: parameters [k, *shape] (kernels [k, channels, inner]), inputs channels last."""

    def forward(parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        left = iter(parameters)
        for part in model:
            if isinstance(part, nn.Conv2d):
                kernels = next(left)
                x = _convolution(x, kernels, None if part.bias is None else next(left), part)
            elif isinstance(part, nn.Linear):
                weight = next(left).transpose(1, 2)
                x = torch.bmm(x, weight) if part.bias is None else torch.baddbmm(next(left).unsqueeze(1), x, weight)
            elif isinstance(part, nn.MaxPool2d):
                height, width = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
                quarters = [x[:, :, i:height:2, j:width:2] for i in (0, 1) for j in (0, 1)]
                x = torch.maximum(torch.maximum(*quarters[:2]), torch.maximum(*quarters[2:]))
            elif isinstance(part, nn.Flatten):
                x = x.permute(0, 1, 4, 2, 3).flatten(2)  # features in the order of [channels, height, width]
            else:
                x = part(x)
        return x

    return forward


def _convolution(x: Tensor, kernels: Tensor, bias: Tensor | None, part: nn.Conv2d) -> Tensor:
    """Patches [k, places, inner] times kernels [k, channels, inner]; inner is (row, column, channel) as in memory."""
    rows, batch = x.shape[:2]
    assert not isinstance(part.padding, str)
    vertical, horizontal = part.padding
    if vertical or horizontal:
        x = F.pad(x, (0, 0, horizontal, horizontal, vertical, vertical))
    down, across = part.kernel_size
    height, width = x.shape[2] - down + 1, x.shape[3] - across + 1
    patches = [x[:, :, i : i + height, j : j + width] for i in range(down) for j in range(across)]
    inner = down * across * x.shape[4]
    missing = -inner % LANES
    if missing:
        patches.append(x.new_zeros(rows, batch, height, width, missing))
    places = torch.cat(patches, dim=-1).view(rows, batch * height * width, inner + missing)
    weight = (F.pad(kernels, (0, missing)) if missing else kernels).transpose(1, 2)
    out = torch.bmm(places, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), places, weight)
    return out.view(rows, batch, height, width, -1)


@dataclass
class _Group:
    """Rows that step together: their places in the sorted order, and their captured step."""

    places: slice
    stream: torch.cuda.Stream
    addresses: Tensor  # of the gradients, for the update kernel
    batch: tuple[Tensor, Tensor]
    graph: torch.cuda.CUDAGraph = field(default_factory=torch.cuda.CUDAGraph)


class CudaStacked(CudaEngine):
    """Groups of rows through node-batched kernels, on copies of the matrices in sorted order that live for a round."""

    name = "cuda_batched"

    def __init__(
        self,
        model: nn.Module,
        population: Population,
        members: Sequence[Member],
        *,
        precision: str = "fp32",
        deterministic: bool = False,
    ) -> None:
        super().__init__(model, population, members, precision=precision, deterministic=deterministic)
        assert isinstance(model, nn.Sequential)
        forward, loss = batched_forward(model), stacked_loss(members[0].training.loss)

        def losses(parameters: Sequence[Tensor], x: Tensor, targets: Tensor) -> Tensor:
            return loss(self.outputs(forward(parameters, x)), targets)

        self.losses = torch.compile(losses, dynamic=False)
        self.parameters = torch.zeros_like(population.base)
        self.memory = [torch.zeros_like(matrix) for matrix in population.memory.values()]
        self.steps = torch.zeros_like(population.steps)
        shards = [(len(shard), member.training) for member in members for shard in member.shards]
        lengths = [size // training.batch_size * training.epochs for size, training in shards]
        order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        self.sorted = torch.tensor(order, device=self.device)
        self.place = {row: place for place, row in enumerate(order)}
        self.size = group_size([lengths[row] for row in order])
        self.groups: list[_Group] = []

    def close(self) -> None:
        super().close()
        self.groups.clear()

    def forget(self) -> None:
        self.groups.clear()

    def train(self, jobs: Sequence[TrainJob]) -> list[float]:
        population = self.population
        pairs = list(zip(population.memory.values(), self.memory, strict=True))
        with self.numerics():
            plans = self.prepare([job._replace(row=self.place[job.row]) for job in jobs])
            self.parameters.copy_(population.base[self.sorted])
            self.steps.copy_(population.steps[self.sorted])
            for matrix, own in pairs:
                own.copy_(matrix[self.sorted])
            if self.half is not None:
                self.half.copy_(self.parameters)
            for start in range(0, len(self.sorted), self.size) if not self.groups else ():
                self.groups.append(self._capture(slice(start, start + self.size), jobs[0]))
            present = torch.cuda.current_stream(self.device)
            longest = self.lengths.view(-1, self.size).amax(dim=1).tolist()
            for group in self.groups:
                group.stream.wait_stream(present)
            for step in range(max(longest)):
                for group, length in zip(self.groups, longest, strict=True):
                    if step < length:
                        with torch.cuda.stream(group.stream):
                            group.graph.replay()
            for group in self.groups:
                present.wait_stream(group.stream)
            population.trained[self.sorted] = self.parameters
            population.steps[self.sorted] = self.steps
            for matrix, own in pairs:
                matrix[self.sorted] = own
            totals = self.total.tolist()
        return [totals[self.place[job.row]] / len(plan) for job, plan in zip(jobs, plans, strict=True)]

    def _capture(self, places: slice, job: TrainJob) -> _Group:
        """Warm a group up and capture its step; its rows are left as they were."""
        slots = len(self.population.layout.slots)
        addresses = torch.zeros(slots, dtype=torch.int64, device=self.device)
        stream = torch.cuda.Stream(self.device)
        group = _Group(places, stream, addresses, self.empty_batch(job, places.stop - places.start))
        state = [self.parameters, self.steps, self.counter, self.total, *self.memory]
        state += [] if self.half is None else [self.half]
        before = [tensor[places].clone() for tensor in state]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self._learn(group, job)
        torch.cuda.synchronize(self.device)
        with torch.cuda.graph(group.graph, stream=stream):
            gradients = self._learn(group, job)
        addresses.copy_(torch.tensor([gradient.data_ptr() for gradient in gradients]))
        for tensor, value in zip(state, before, strict=True):
            tensor[places] = value
        return group

    def _learn(self, group: _Group, job: TrainJob) -> list[Tensor]:
        """Batch, forward, backward and update of a group; returns the gradients, whose memory the update reads."""
        places, (inputs, targets) = group.places, group.batch
        rows = places.stop - places.start
        self.take(places, job, inputs, targets)
        values = self.parameters[places] if self.half is None else self.half[places]
        leaves = [leaf.detach().requires_grad_() for leaf in self._leaves(values)]
        x = inputs.permute(0, 2, 3, 1).unflatten(0, (rows, -1))  # channels last in memory, so this is a view
        losses = self.losses(leaves, x, targets.view(rows, -1))
        gradients = torch.autograd.grad(losses, leaves, torch.ones_like(losses))
        kept = [gradient.contiguous() for gradient in gradients]
        if not torch.cuda.is_current_stream_capturing():
            group.addresses.copy_(torch.tensor([gradient.data_ptr() for gradient in kept]))
        memory = [matrix[places] for matrix in self.memory]
        half = None if self.half is None else self.half[places]
        self.update(places, job, self.parameters[places], memory, half, group.addresses, losses.detach())
        return kept

    def _leaves(self, rows: Tensor) -> list[Tensor]:
        """The tensors of some rows; kernels as [rows, channels, inner], which is how they lie in memory."""
        slots = self.population.layout.slots
        columns = [rows[:, slot.start : slot.start + slot.size] for slot in slots]
        shapes = [(slot.shape[0], -1) if len(slot.shape) == 4 else slot.shape for slot in slots]
        return [column.unflatten(1, shape) for column, shape in zip(columns, shapes, strict=True)]


def group_size(lengths: Sequence[int]) -> int:
    """The largest number of rows a group that divides all rows and wastes little; lengths come longest first."""
    count, held = len(lengths), max(sum(lengths), 1)
    sizes = [size for size in range(count, 0, -1) if count % size == 0]
    cost = {size: size * sum(lengths[start] for start in range(0, count, size)) for size in sizes}
    return next(size for size in sizes if cost[size] <= WASTE * held or size <= 5)
