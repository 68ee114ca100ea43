"""Node-batched kernels on a GPU: all nodes of a small convolutional network in one product.

At batch 10 a node alone leaves most of the card idle. Here a convolution of k nodes is one gather of patches and one
batched matrix product. The forward pass is compiled, the step captured; rows are sorted by the length of their shards
and go in groups, so that a group waits only for rows as long as itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feda2l.algorithms import Algorithm
from feda2l.round.local import Local
from feda2l.round.train import Training
from feda2l.simulate.cuda_engine import WARM_UP, CudaEngine
from feda2l.simulate.engine import TrainJob
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
                x = _convolution(x, next(left), part)
            elif isinstance(part, nn.Linear):
                x = _Product.apply(x, next(left))  # type: ignore[no-untyped-call]
            if isinstance(part, nn.Conv2d | nn.Linear) and part.bias is not None:
                # not in the product, which would first write it to the whole output; here it joins what comes next
                x = x + next(left).view(len(x), *(1,) * (x.dim() - 2), -1)
            if isinstance(part, nn.MaxPool2d):
                height, width = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
                quarters = [x[:, :, i:height:2, j:width:2] for i in (0, 1) for j in (0, 1)]
                x = torch.maximum(torch.maximum(*quarters[:2]), torch.maximum(*quarters[2:]))
            elif isinstance(part, nn.Flatten):
                x = x.permute(0, 1, 4, 2, 3).flatten(2)  # features in the order of [channels, height, width]
            elif not isinstance(part, nn.Conv2d | nn.Linear):
                x = part(x)
        return x

    return forward


def _convolution(x: Tensor, kernels: Tensor, part: nn.Conv2d) -> Tensor:
    """Patches [k, places, inner] times kernels [k, channels, inner]; inner is (row, column, channel) as in memory."""
    rows, batch = x.shape[:2]
    assert not isinstance(part.padding, str)
    vertical, horizontal = part.padding
    if vertical or horizontal:
        x = F.pad(x, (0, 0, horizontal, horizontal, vertical, vertical))
    down, across = part.kernel_size
    height, width = x.shape[2] - down + 1, x.shape[3] - across + 1
    patches = _Patches.apply(x, down, across)  # type: ignore[no-untyped-call]
    missing = patches.shape[-1] - kernels.shape[-1]
    weight = F.pad(kernels, (0, missing)) if missing else kernels
    out: Tensor = _Product.apply(patches, weight)  # type: ignore[no-untyped-call]
    return out.view(rows, batch, height, width, -1)


class _Patches(torch.autograd.Function):
    """[k, batch, height, width, channels] -> [k, batch * places, inner], inner padded with zeros to whole lanes.

    A row of a patch lies together in memory, so patches are one strided copy. Backward every place adds up what the
    patches that it is in give it: shifted slices, no scattering.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, down: int, across: int) -> Tensor:
        rows, batch, high, wide, channels = ctx.shape = x.shape
        ctx.kernel = down, across
        height, width, inner = high - down + 1, wide - across + 1, down * across * channels
        line = wide * channels
        shape = rows, batch, height, width, down, across * channels
        steps = batch * high * line, high * line, line, channels, line, 1
        patches = x.contiguous().as_strided(shape, steps).reshape(rows, batch * height * width, inner)
        return F.pad(patches, (0, -inner % LANES)) if inner % LANES else patches

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        rows, batch, high, wide, channels = ctx.shape
        down, across = ctx.kernel
        height, width = high - down + 1, wide - across + 1
        parts = gradient.view(rows, batch, height, width, -1)
        total = gradient.new_zeros(())
        for i in range(down):
            for j in range(across):
                start = (i * across + j) * channels
                edges = 0, 0, j, across - 1 - j, i, down - 1 - i
                total = total + F.pad(parts[..., start : start + channels], edges)
        return total, None, None


class _Product(torch.autograd.Function):
    """x [k, places, inner] times weights [k, outer, inner]; a weight's gradient lies in memory as the weight does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        return torch.bmm(gradient, weight), torch.bmm(gradient.transpose(1, 2), x)


@dataclass
class _Group:
    """Rows that step together: their places in the sorted order, and their captured step."""

    places: slice
    algorithm: Algorithm
    stream: torch.cuda.Stream
    addresses: Tensor  # of the gradients, for the update kernel
    batch: tuple[Tensor, Tensor]
    local: Local | None = None  # the algorithm's part
    graph: torch.cuda.CUDAGraph = field(default_factory=torch.cuda.CUDAGraph)


class CudaStacked(CudaEngine):
    """Groups of rows through node-batched kernels, on copies of the matrices in sorted order that live for a round.

    Rows whose algorithms train differently go in groups of their own.
    """

    name = "cuda_batched"

    def start(self, processes: int | None = None) -> None:
        population, members = self.population, self.members
        self.parameters = torch.zeros_like(population.base)
        self.memory = [torch.zeros_like(matrix) for matrix in population.memory.values()]
        self.steps = torch.zeros_like(population.steps)
        rows = [(run, shard, member) for run, member in enumerate(members) for shard in member.shards]
        lengths = [member.training.steps(len(shard)) for _, shard, member in rows]
        kinds = [member.training.algorithm.kind for _, _, member in rows]
        order = sorted(range(len(rows)), key=lambda row: (kinds[row], -lengths[row]))
        self.sorted = torch.tensor(order, device=self.device)
        self.place = {row: place for place, row in enumerate(order)}
        tables = {run: number for number, run in enumerate(self.teaching)}
        self.tables = torch.tensor([[tables.get(rows[row][0], 0)] for row in order], device=self.device)
        self.spans: list[tuple[slice, Algorithm]] = []
        for _, same in groupby(order, key=lambda row: kinds[row]):
            alike = list(same)
            size, first = group_size([lengths[row] for row in alike]), self.place[alike[0]]
            algorithm = rows[alike[0]][2].training.algorithm
            starts = range(first, first + len(alike), size)
            self.spans += [(slice(start, start + size), algorithm) for start in starts]
        # what the algorithms' parts in a step read, in sorted order; nothing where all train plainly
        steered = any(kinds)
        self.base = torch.zeros_like(population.base) if steered else None
        self.remembered = {name: torch.zeros_like(matrix) for name, matrix in population.state.items() if steered}
        self.losses = {kind: self._compiled(rows[kinds.index(kind)][2].training) for kind in set(kinds)}
        self.groups: list[_Group] = []

    def close(self) -> None:
        super().close()
        self.groups.clear()

    def forget(self) -> None:
        self.groups.clear()

    def _compiled(self, training: Training) -> Callable[..., Tensor]:
        """The objective of k rows, from parameters [k, *shape]."""
        assert isinstance(self.model, nn.Sequential)
        forward, loss, algorithm = batched_forward(self.model), stacked_loss(training.loss), training.algorithm

        def losses(parameters: Sequence[Tensor], x: Tensor, targets: Tensor, taught: Tensor | None) -> Tensor:
            outputs = self.outputs(forward(parameters, x))
            return algorithm.loss(loss(outputs, targets), outputs, targets, taught)

        return torch.compile(losses, dynamic=False)

    def train(self, jobs: Sequence[TrainJob]) -> list[float]:
        population = self.population
        pairs = list(zip(population.memory.values(), self.memory, strict=True))
        with self.numerics():
            plans = self.prepare([job._replace(row=self.place[job.row]) for job in jobs])
            self.teach(jobs)
            self.parameters.copy_(population.base[self.sorted])
            if self.base is not None:
                self.base.copy_(self.parameters)
            for name, matrix in self.remembered.items():
                matrix.copy_(population.state[name][self.sorted])
            self.steps.copy_(population.steps[self.sorted])
            for matrix, own in pairs:
                own.copy_(matrix[self.sorted])
            if self.half is not None:
                self.half.copy_(self.parameters)
            for places, algorithm in self.spans if not self.groups else ():
                self.groups.append(self._capture(places, algorithm, jobs[0]))
            present = torch.cuda.current_stream(self.device)
            lengths = self.lengths.tolist()
            longest = [max(lengths[group.places]) for group in self.groups]
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

    def _capture(self, places: slice, algorithm: Algorithm, job: TrainJob) -> _Group:
        """Warm a group up and capture its step; its rows are left as they were."""
        slots = len(self.population.layout.slots)
        addresses = torch.zeros(slots, dtype=torch.int64, device=self.device)
        stream = torch.cuda.Stream(self.device)
        batch = self.empty_batch(job, places.stop - places.start)
        group = _Group(places, algorithm, stream, addresses, batch)
        if not algorithm.trains_plainly:
            assert self.base is not None
            remembered = {name: matrix[places] for name, matrix in self.remembered.items()}
            group.local = Local(algorithm, self.parameters[places], self.base[places], remembered, self._leaves)
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
        places, (inputs, targets), local = group.places, group.batch, group.local
        rows = places.stop - places.start
        taught = None
        if group.algorithm.teaches:
            assert self.taught is not None
            samples = self.next_samples(places, self.training(job).batch_size)
            taught = self.taught[self.tables[places], samples]
        self.take(places, job, inputs, targets)
        x = inputs.permute(0, 2, 3, 1).unflatten(0, (rows, -1))  # channels last in memory, so this is a view

        def gradients_at(values: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
            leaves = [leaf.detach().requires_grad_() for leaf in self._leaves(values)]
            losses = self.losses[group.algorithm.kind](leaves, x, targets.view(rows, -1), taught)
            return losses.detach(), torch.autograd.grad(losses, leaves, torch.ones_like(losses))

        losses, gradients = gradients_at(self.parameters[places] if self.half is None else self.half[places])
        if local is not None:
            gradients = local.direct(gradients, lambda: () if local.climbed is None else gradients_at(local.climbed)[1])
        kept = [gradient.contiguous() for gradient in gradients]
        if not torch.cuda.is_current_stream_capturing():
            group.addresses.copy_(torch.tensor([gradient.data_ptr() for gradient in kept]))
        memory = [matrix[places] for matrix in self.memory]
        half = None if self.half is None else self.half[places]
        full = local is not None and local.steers
        self.update(places, job, self.parameters[places], memory, half, group.addresses, losses, full=full)
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
