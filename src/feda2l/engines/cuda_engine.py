"""What the GPU engines share: precision, scoring in large batches, and a round's samples, rates and momentum."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from feda2l.data.samples import Labelled, Samples
from feda2l.engines.batched_loss import BY_SAMPLE
from feda2l.engines.cuda_kernels import count_step, take_batches, update_rows, update_table
from feda2l.engines.engine import (
    Engine,
    RunData,
    Score,
    ScoreJob,
    TrainJob,
    recalibrate_statistics,
    sample_errors,
    tally,
)
from feda2l.randomness import derive_seed
from feda2l.round.population import Population, point
from feda2l.round.train import Loss, Training

EVALUATION_BATCH = 2500
EVALUATION_STREAMS = 3
WARM_UP = 3  # steps before a capture: cuDNN must have seen every shape and alignment


def is_pictures(samples: Samples) -> TypeGuard[Any]:
    """Can the kernel that takes batches read these: raw pixels with an affine normalisation, and classes?"""
    return (
        isinstance(samples, Labelled) and samples.affine is not None and samples.x.dim() == 4 and samples.y.dim() == 1
    )


def step_of(counter: Tensor, lengths: Tensor) -> Tensor:
    """The number of some rows' next step in the round, [rows, 1]; of a row that is done its last one's."""
    return counter.minimum(lengths - 1).clamp(min=0).unsqueeze(1)


def next_samples(order: Tensor, counter: Tensor, lengths: Tensor, batch_size: int) -> Tensor:
    """Which samples stand in the next batch of some rows, [rows, batch]; computed on the card, so it replays."""
    places = step_of(counter, lengths) * batch_size + torch.arange(batch_size, device=order.device)
    return order.gather(1, places).long()


def with_loss(errors: Tensor, loss: Loss) -> Tensor:
    """The sums of `ERRORS`, [jobs, 2], behind those of the loss, which is one of them: [jobs, 3]."""
    which = BY_SAMPLE.index(loss)
    return torch.cat([errors[:, which : which + 1], errors], dim=1)


class CudaEngine(Engine):
    """Rows on a GPU: parameters, gradients, momentum and rates are rows of flat, aligned matrices on the card."""

    evaluation_batch = EVALUATION_BATCH

    def __init__(
        self,
        model: nn.Module,
        population: Population,
        members: Sequence[RunData],
        *,
        precision: str = "fp32",
        deterministic: bool = False,
    ) -> None:
        super().__init__(model, population, members)
        self.precision, self.deterministic = precision, deterministic
        self.repeats = deterministic
        base, slots = population.base, population.layout.slots
        self.device = base.device
        self.dtype = torch.bfloat16 if precision == "bf16" else base.dtype
        whole = {name for name, part in model.named_modules() if isinstance(part, nn.modules.batchnorm._NormBase)}
        self.in_half = [precision == "bf16" and slot.name.rpartition(".")[0] not in whole for slot in slots]
        self.table = update_table(population.layout, self.in_half, self.device)
        self.full_table = update_table(population.layout, [False] * len(slots), self.device)
        self.steps = population.steps
        self.gathered = self.gather  # an engine may compile it
        self.runs_with_base_outputs = [
            number for number, member in enumerate(members) if member.training.algorithm.uses_base_outputs
        ]
        self.base_outputs: Tensor | None = None  # [teaching runs, samples, outputs]
        # several at a time: one model's convolutions fill the gaps of another's passes over memory
        self.scorers = [
            (copy.deepcopy(model).to(self.device), torch.cuda.Stream(self.device)) for _ in range(EVALUATION_STREAMS)
        ]

    def make_room(self, rows: int) -> None:
        """Memory for what a step reads of each row beside its parameters."""
        base = self.population.base
        # bf16: all but BatchNorm, which takes both, computes on a half-precision copy that the update kernel keeps true
        half = self.dtype == torch.bfloat16
        self.half = base.new_zeros(rows, base.shape[1], dtype=torch.bfloat16) if half else None
        self.rates = base.new_zeros(rows, len(self.population.layout.slots))
        self.momentum, self.weight_decays = base.new_zeros(rows), base.new_zeros(rows)
        self.counter = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.lengths = torch.zeros_like(self.counter)
        self.total = torch.zeros(rows, dtype=torch.float64, device=self.device)
        self.order = torch.zeros(rows, 0, dtype=torch.int32, device=self.device)

    def start(self, processes: int | None = None) -> None:
        """Nothing to fork: the card is the worker."""

    def close(self) -> None:
        torch.cuda.synchronize(self.device)

    def score(self, jobs: Sequence[ScoreJob]) -> list[Score]:
        if not jobs:
            return []
        # a model that several nodes ask, each about its own part of the test set, answers them together
        groups: dict[ScoreJob, list[int]] = {}
        for number, job in enumerate(jobs):
            by_sample = self.members[job.run].training.loss in BY_SAMPLE
            groups.setdefault(job._replace(whose=None) if by_sample else job, []).append(number)
        with self.numerics(), torch.no_grad():
            sums = torch.cat(self.answers([[jobs[i] for i in group] for group in groups.values()])).tolist()
        found = dict(zip([i for group in groups.values() for i in group], sums, strict=True))
        return [Score(loss, own) for loss, *own in (found[i] for i in range(len(jobs)))]

    def answers(self, groups: Sequence[Sequence[ScoreJob]]) -> list[Tensor]:
        """The sums of the scores of some models, [jobs, 1 + tallied] of each; the jobs of a group ask one model."""
        present = torch.cuda.current_stream(self.device)
        results: list[Tensor] = []
        for number, jobs in enumerate(groups):
            model, stream = self.scorers[number % len(self.scorers)]
            stream.wait_stream(present)
            with torch.cuda.stream(stream):
                results.append(self._score(model, jobs))
        for _, stream in self.scorers:
            present.wait_stream(stream)
        return results

    def recalibrate(self, jobs: Sequence[TrainJob]) -> None:
        if not self.population.buffers:
            return
        with self.numerics():
            for job in jobs:
                model = self.scorers[0][0]
                self.point(model, self.population.base[job.row], job.row)
                shard = self.shard(job).to(self.device)
                recalibrate_statistics(model, shard, partial(self.asked, self.training(job).samples))

    def training(self, job: TrainJob) -> Training:
        return self.members[job.run].training

    def id(self, job: TrainJob) -> int:
        return self.members[job.run].id(job.node)

    def shard(self, job: TrainJob) -> Tensor:
        return self.members[job.run].shards[job.node]

    def layer_seed(self, job: TrainJob) -> int:
        """What a round's dropout draws from: seed, node and round, and not who else trains."""
        return derive_seed(self.training(job).seed, node=self.id(job), round=job.round, purpose="layers")

    def prepare(self, jobs: Sequence[TrainJob]) -> list[list[Tensor | None]]:
        """Set this round's samples, rates and momentum; the steps of each job.

        A step is None for a whole batch, whose samples stand in `order`, else a smaller batch's samples.
        """
        rows = torch.tensor([job.row for job in jobs], device=self.device)
        plans: list[list[Tensor | None]] = []
        lines: list[Tensor] = []
        for job in jobs:
            training, plan, line = self.training(job), list[Tensor | None](), list[Tensor]()
            for epoch in training.epoch_orders(self.shard(job), self.id(job), job.round, job.epochs):
                whole, rest = divmod(len(epoch), training.batch_size)
                plan += [None] * whole + ([epoch[-rest:]] if rest else [])
                # a smaller last batch fills its place in the line, so that step and place stay in step
                line += [epoch] + ([epoch.new_zeros(training.batch_size - rest)] if rest else [])
            plans.append(plan)
            lines.append(torch.cat(line).int())
        order = torch.nn.utils.rnn.pad_sequence(lines, batch_first=True)
        if order.shape[1] > self.order.shape[1]:
            self.order = torch.zeros(len(self.order), order.shape[1], dtype=torch.int32, device=self.device)
            self.forget()
        self.order[rows, : order.shape[1]] = order.to(self.device)
        self.rates[rows] = torch.tensor([job.hyper.rates for job in jobs], dtype=self.rates.dtype).to(self.device)
        for vector, values in (
            (self.momentum, [job.hyper.momentum for job in jobs]),
            (self.weight_decays, [self.training(job).weight_decay for job in jobs]),
        ):
            vector[rows] = torch.tensor(values, dtype=vector.dtype).to(self.device)
        self.counter.zero_()
        self.total.zero_()
        self.lengths.zero_()
        self.lengths[rows] = torch.tensor([len(plan) for plan in plans], device=self.device)
        return plans

    def compute_base_outputs(self, jobs: Sequence[TrainJob]) -> None:
        """Write the base models' outputs for their nodes' samples, for the algorithms whose loss wants them."""
        with torch.no_grad():
            for job in jobs:
                if job.run not in self.runs_with_base_outputs:
                    continue
                samples = self.training(job).samples
                model = self.scorers[0][0].eval()
                self.point(model, self.population.base[job.row], job.row)
                for batch in self.shard(job).to(self.device).split(EVALUATION_BATCH):
                    outputs = self.outputs(model(self.asked(samples, batch)))
                    if self.base_outputs is None:
                        self.base_outputs = outputs.new_zeros(
                            len(self.runs_with_base_outputs), len(samples), *outputs.shape[1:]
                        )
                    self.base_outputs[self.runs_with_base_outputs.index(job.run), batch] = outputs

    def forget(self) -> None:
        """Captured steps know a buffer's address: drop them when it moves."""

    def take(self, rows: slice, job: TrainJob, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these rows' next batches; of pictures with classes in `batch`, by one kernel."""
        samples = self.training(job).samples
        if is_pictures(samples):
            counted = (self.counter[rows], self.lengths[rows], self.steps[rows])
            affine = samples.affine(self.device)
            take_batches(self.order[rows], *counted, samples.x, samples.y, affine, *batch)
            return batch
        self.steps[rows] += self.counter[rows] < self.lengths[rows]
        return self.gathered(samples, *self.now(rows), self.training(job).batch_size)

    def now(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """What tells these rows' next batches: their samples in order, how many steps are done, and of how many."""
        return self.order[rows], self.counter[rows], self.lengths[rows]

    def gather(
        self, samples: Samples, order: Tensor, counter: Tensor, lengths: Tensor, batch_size: int
    ) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some rows' next batches, one row after another."""
        chosen = next_samples(order, counter, lengths, batch_size).flatten()
        return self.asked(samples, chosen), samples.targets(chosen)

    def update(
        self,
        rows: slice,
        job: TrainJob,
        parameters: Tensor,
        optimizer_state: list[Tensor],
        half: Tensor | None,
        addresses: Tensor,
        losses: Tensor,
        *,
        full: bool = False,
    ) -> None:
        """The optimiser's step of these rows, and the count; `full`: no gradient is in half precision."""
        training, counter, lengths = self.training(job), self.counter[rows], self.lengths[rows]
        update_rows(
            training.optimizer,
            parameters,
            optimizer_state,
            half,
            addresses,
            self.full_table if full else self.table,
            self.rates[rows],
            self.momentum[rows],
            self.steps[rows],
            counter,
            lengths,
            self.weight_decays[rows],
        )
        count_step(counter, lengths, losses, self.total[rows])

    def empty_batch(self, job: TrainJob, rows: int) -> tuple[Tensor, Tensor]:
        """Memory for the next batch of some rows: inputs channels last, targets."""
        samples, count = self.training(job).samples, rows * self.training(job).batch_size
        probe = torch.zeros(1, dtype=torch.int64, device=self.device)
        inputs = self.asked(samples, probe).expand(count, *(-1 for _ in samples.inputs(probe).shape[1:]))
        targets = samples.targets(probe)
        return self.inputs(inputs.clone()), targets.expand(count, *targets.shape[1:]).clone()

    def point(
        self,
        model: nn.Module,
        row: Tensor,
        number: int,
        half: Tensor | None = None,
        buffers: dict[str, Tensor] | None = None,
    ) -> list[nn.Parameter]:
        """Make a model's tensors views of a row; what computes in half precision, of the row's half-precision copy."""
        views = self.population.layout.views(row)
        if self.half is not None:
            halves = self.population.layout.views(row.to(torch.bfloat16) if half is None else half)
            views = [h if in_half else v for v, h, in_half in zip(views, halves, self.in_half, strict=True)]
        buffers = self.population.buffers if buffers is None else buffers
        return point(model, views, {name: values[number] for name, values in buffers.items()})

    def inputs(self, values: Tensor) -> Tensor:
        """Normalised samples in the precision and the memory format that the model computes in.

        A series stays in float32: its level would drown its movement, and a forecaster scales it itself.
        """
        values = values if self.members[0].classes is None else values.to(self.dtype)
        return values.contiguous(memory_format=torch.channels_last) if values.dim() == 4 else values

    def asked(self, samples: Samples, index: Tensor) -> Tensor:
        """The model's inputs for some samples."""
        return self.inputs(samples.inputs(index))

    def outputs(self, values: Tensor) -> Tensor:
        """What the loss is computed from: never less than the parameters' precision."""
        return values.to(self.population.base.dtype)

    def asks(self, model: nn.Module) -> Callable[[Tensor], Tensor]:
        """What is asked in place of a model in eval mode: itself."""
        return model

    def _score(self, model: nn.Module, jobs: Sequence[ScoreJob]) -> Tensor:
        """The sums of some scores of one model, [jobs, 1 + tallied], still on the card: waiting is for the caller."""
        first, member = jobs[0], self.members[jobs[0].run]
        mean = first.node is None
        buffers = self.population.mean_buffers if mean else self.population.buffers
        self.point(model, self.state(first), first.run if mean else first.row, buffers=buffers)
        ask = self.asks(model.eval())
        (samples, chosen), loss = self.parts(jobs), member.training.loss
        sums = torch.zeros(len(jobs), 1 + member.tallied, dtype=torch.float64, device=self.device)
        found: list[Tensor] = []  # the errors of each sample, where the loss is one of them
        for piece in torch.cat(chosen).split(EVALUATION_BATCH):
            if not len(piece):  # a node may have no sample to be scored on
                continue
            targets = samples.targets(piece)
            outputs = self.outputs(ask(self.asked(samples, piece)))
            if loss in BY_SAMPLE:
                found.append(sample_errors(outputs, targets))
            else:
                sums[0, 0] += loss(outputs, targets).double() * len(targets)
                sums[0, 1:] += tally(outputs, targets, member.classes)
        if found:
            # each part's own sum: adding by index would be by atomics, whose order does not repeat
            errors = torch.stack([own.sum(dim=0) for own in torch.cat(found).split([*map(len, chosen)])])
            sums += with_loss(errors, loss)
        return sums

    def parts(self, jobs: Sequence[ScoreJob]) -> tuple[Samples, list[Tensor]]:
        """The set of samples that these jobs are about, and the samples of each."""
        found = [self.samples(job) for job in jobs]
        samples = found[0][0]
        everything = torch.arange(len(samples), device=self.device)
        return samples, [everything if part is None else part.to(self.device) for _, part in found]

    @contextmanager
    def numerics(self) -> Iterator[None]:
        """The precision and the kernel plan that the run asked for, and the user's own afterwards."""
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        before = cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32
        cudnn.benchmark, cudnn.deterministic = not self.deterministic, self.deterministic
        cudnn.allow_tf32 = matmul.allow_tf32 = self.precision != "fp32"
        try:
            yield
        finally:
            cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32 = before
