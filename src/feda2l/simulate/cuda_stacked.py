"""Node-batched kernels on a GPU: all nodes of a convolutional network, a ResNet or Timer in one product.

The forward pass is compiled, the step captured; rows are sorted by the length of their shards and go in groups, so that
a group waits only for rows as long as itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor, nn

from feda2l.algorithms import Algorithm
from feda2l.models.resnet import ResNet
from feda2l.models.timer import Timer
from feda2l.round.local import Local
from feda2l.round.train import Training
from feda2l.simulate.batched_forward import batched_forward
from feda2l.simulate.batched_loss import batch_losses
from feda2l.simulate.batched_resnet import resnet_forward
from feda2l.simulate.batched_timer import draws_of, timer_forward
from feda2l.simulate.cuda_engine import WARM_UP, CudaEngine
from feda2l.simulate.engine import Score, ScoreJob, TrainJob
from feda2l.simulate.running_statistics import RunningStatistics
from feda2l.simulate.stacked import stacked_loss

WASTE = 1.15  # a group may cost this much more than its rows hold
SCORED = 10  # models that are scored together; fewer do not pay for compiling
SCORED_BATCH = 1000

# outputs of k rows and, where there are running statistics, what their normalisations saw; from parameters
# [k, *shape], inputs [k, batch, ...] and what dropout draws from
Forward = Callable[[Sequence[Tensor], Tensor, Tensor | None], tuple[Tensor, Tensor | None]]


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
        self.answers = torch.compile(self._forward(), dynamic=False)
        # what differs from step to step: how many samples a batch has, where they are few, and what dropout draws from
        self.whole = all(member.training.only_whole(len(shard)) for _, shard, member in rows)
        self.sizes = torch.zeros(len(rows), 0, dtype=torch.int32, device=self.device)
        self.draws = torch.zeros(len(rows), dtype=torch.int32, device=self.device)
        self.statistics = RunningStatistics(self.model, population) if population.buffers else None

    def close(self) -> None:
        super().close()
        self.groups.clear()

    def forget(self) -> None:
        self.groups.clear()

    def _forward(self) -> Forward:
        if isinstance(self.model, ResNet):
            residual = resnet_forward(self.model)
            return lambda parameters, x, draws: residual(parameters, x)
        if isinstance(self.model, Timer):
            timer = timer_forward(self.model, self.device, self.dtype)
            return lambda parameters, x, draws: (timer(parameters, x, draws), None)
        assert isinstance(self.model, nn.Sequential)
        plain = batched_forward(self.model)
        return lambda parameters, x, draws: (plain(parameters, x), None)

    def _compiled(self, training: Training) -> Callable[..., tuple[Tensor, Tensor | None]]:
        """The objective of k rows, from parameters [k, *shape], and what their normalisations saw."""
        forward, loss, algorithm = self._forward(), training.loss, training.algorithm

        def losses(
            parameters: Sequence[Tensor],
            x: Tensor,
            targets: Tensor,
            taught: Tensor | None,
            there: Tensor | None,
            draws: Tensor | None,
        ) -> tuple[Tensor, Tensor | None]:
            answers, seen = forward(parameters, x, draws)
            outputs = self.outputs(answers)
            return algorithm.loss(batch_losses(loss, outputs, targets, there), outputs, targets, taught), seen

        return torch.compile(losses, dynamic=False)

    def score(self, jobs: Sequence[ScoreJob]) -> list[Score]:
        """Models that are asked about the whole test set answer together, each batch read once for all of them."""
        together = [job for job in jobs if job == ScoreJob(job.row, job.run, job.node, local=False)]
        if len(together) < SCORED or self.members[0].classes is None or isinstance(self.model, ResNet):
            return super().score(jobs)
        with self.numerics(), torch.no_grad():
            chunks = [together[start : start + SCORED] for start in range(0, len(together), SCORED)]
            sums = torch.cat([self._score_chunk(chunk) for chunk in chunks]).tolist()
        found = {job: Score(loss, right) for job, (loss, *right) in zip(together, sums, strict=True)}
        others = [job for job in jobs if job not in found]
        found |= zip(others, super().score(others), strict=True)
        return [found[job] for job in jobs]

    def _score_chunk(self, jobs: list[ScoreJob]) -> Tensor:
        """The sum of losses and the right answers by class of some models, [models, 1 + classes], on the card."""
        member = self.members[jobs[0].run]  # a pack has one test set
        assert member.classes is not None
        rows = [self.state(job) for job in (*jobs, *jobs[:1] * (SCORED - len(jobs)))]  # one shape, one compilation
        leaves = self._leaves(torch.stack(rows).to(self.dtype))
        sums = torch.zeros(len(rows), 1 + member.classes, dtype=torch.float64, device=self.device)
        for piece in torch.arange(len(member.test), device=self.device).split(SCORED_BATCH):
            targets = member.test.targets(piece)
            x = self.asked(member.test, piece).movedim(1, -1).unsqueeze(0)  # channels last in memory, so this is a view
            outputs = self.outputs(self.answers(leaves, x, None)[0])
            losses = stacked_loss(member.training.loss)(outputs, targets.expand(len(rows), -1))
            sums[:, 0] += losses.double() * len(piece)
            sums.index_add_(1, 1 + targets, (outputs.argmax(dim=-1) == targets).double())
        return sums[: len(jobs)]

    def train(self, jobs: Sequence[TrainJob]) -> list[float]:
        population = self.population
        pairs = list(zip(population.memory.values(), self.memory, strict=True))
        with self.numerics():
            placed = [job._replace(row=self.place[job.row]) for job in jobs]
            plans = self.prepare(placed)
            rows = torch.tensor([job.row for job in placed], device=self.device)
            if isinstance(self.model, Timer):
                seeds = [self.layer_seed(job) & 0x7FFFFFFF for job in placed]
                self.draws[rows] = torch.tensor(seeds, dtype=torch.int32).to(self.device)
            if not self.whole:
                self._set_sizes(rows, plans, self.training(jobs[0]).batch_size)
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
            if self.statistics is not None:
                self.statistics.take(self.sorted)
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
            if self.statistics is not None:
                self.statistics.give(self.sorted, self.lengths)
            totals = self.total.tolist()
        return [totals[self.place[job.row]] / len(plan) for job, plan in zip(jobs, plans, strict=True)]

    def _set_sizes(self, rows: Tensor, plans: Sequence[Sequence[Tensor | None]], batch: int) -> None:
        """How many samples each batch of this round has."""
        sizes = [torch.tensor([batch if step is None else len(step) for step in plan]) for plan in plans]
        table = torch.nn.utils.rnn.pad_sequence(sizes, batch_first=True, padding_value=batch).int()
        if table.shape[1] > self.sizes.shape[1]:
            self.sizes = torch.full((len(self.sizes), table.shape[1]), batch, dtype=torch.int32, device=self.device)
            self.forget()
        self.sizes[rows, : table.shape[1]] = table.to(self.device)

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
        state += [] if self.statistics is None else [self.statistics.values]
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
        there = draws = None
        if not self.whole:
            sizes = self.sizes[places].gather(1, self.step_of(places))
            there = torch.arange(len(inputs) // rows, device=self.device) < sizes
        if isinstance(self.model, Timer):
            draws = draws_of(self.draws[places], self.counter[places])
        x = inputs.movedim(1, -1) if inputs.dim() == 4 else inputs  # channels last in memory, so this is a view
        x, answers = x.unflatten(0, (rows, -1)), targets.unflatten(0, (rows, -1))

        def gradients_at(values: Tensor, half: Tensor | None) -> tuple[Tensor, Tensor | None, Sequence[Tensor]]:
            leaves = [leaf.detach().requires_grad_() for leaf in self._computed(values, half)]
            losses, seen = self.losses[group.algorithm.kind](leaves, x, answers, taught, there, draws)
            return losses.detach(), seen, torch.autograd.grad(losses, leaves, torch.ones_like(losses))

        half = None if self.half is None else self.half[places]
        losses, seen, gradients = gradients_at(self.parameters[places], half)
        if self.statistics is not None:
            assert seen is not None
            self.statistics.learn(places, seen, (self.counter[places] < self.lengths[places]).unsqueeze(1))
        if local is not None:
            # a batch counts once in the statistics: what the climbed point saw is left
            gradients = local.direct(
                gradients, lambda: () if local.climbed is None else gradients_at(local.climbed, None)[2]
            )
        kept = [gradient.contiguous() for gradient in gradients]
        if not torch.cuda.is_current_stream_capturing():
            group.addresses.copy_(torch.tensor([gradient.data_ptr() for gradient in kept]))
        memory = [matrix[places] for matrix in self.memory]
        full = local is not None and local.steers
        self.update(places, job, self.parameters[places], memory, half, group.addresses, losses, full=full)
        return kept

    def _computed(self, values: Tensor, half: Tensor | None) -> list[Tensor]:
        """What some rows compute with: where there are half-precision copies, those of all but BatchNorm's tensors."""
        leaves = self._leaves(values)
        if half is None:
            return leaves
        return [h if in_half else v for v, h, in_half in zip(leaves, self._leaves(half), self.in_half, strict=True)]

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
