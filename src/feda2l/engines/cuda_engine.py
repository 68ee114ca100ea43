"""The common part of the GPU engines: precision, scoring in large batches, and a round's samples and learning rates."""

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
WARM_UP = 3  # steps before a capture, so that cuDNN has seen every shape and alignment


def is_pictures(samples: Samples) -> TypeGuard[Any]:
    """True if the batch kernel can read these samples: uint8 images with an affine normalisation, and class labels."""
    return (
        isinstance(samples, Labelled) and samples.affine is not None and samples.x.dim() == 4 and samples.y.dim() == 1
    )


def step_of(counter: Tensor, lengths: Tensor) -> Tensor:
    """Return the index of each row's next step in the round, [rows, 1]; a finished row keeps its last index."""
    return counter.minimum(lengths - 1).clamp(min=0).unsqueeze(1)


def next_samples(order: Tensor, counter: Tensor, lengths: Tensor, batch_size: int) -> Tensor:
    """Return the sample indices of each row's next batch, [rows, batch], computed on the GPU so that a graph works."""
    places = step_of(counter, lengths) * batch_size + torch.arange(batch_size, device=order.device)
    return order.gather(1, places).long()


def with_loss(errors: Tensor, loss: Loss) -> Tensor:
    """Prepend the column of the loss, which is one of `ERRORS`, to their sums: [jobs, 2] -> [jobs, 3]."""
    which = BY_SAMPLE.index(loss)
    return torch.cat([errors[:, which : which + 1], errors], dim=1)


class CudaEngine(Engine):
    """Engine base class for a GPU: parameters, gradients, momentum and rates are rows of flat, aligned matrices."""

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
        norms = {name for name, part in model.named_modules() if isinstance(part, nn.modules.batchnorm._NormBase)}
        self.in_half = [precision == "bf16" and slot.name.rpartition(".")[0] not in norms for slot in slots]
        self.table = update_table(population.layout, self.in_half, self.device)
        self.full_table = update_table(population.layout, [False] * len(slots), self.device)
        self.steps = population.steps
        self.gathered = self.gather  # subclasses may compile it
        self.runs_with_base_outputs = [
            number for number, member in enumerate(members) if member.training.algorithm.uses_base_outputs
        ]
        self.base_outputs: Tensor | None = None  # [teaching runs, samples, outputs]
        # several streams: the convolutions of one model overlap with the memory passes of another
        self.scorers = [
            (copy.deepcopy(model).to(self.device), torch.cuda.Stream(self.device)) for _ in range(EVALUATION_STREAMS)
        ]

    def make_room(self, rows: int) -> None:
        """Allocate the buffers that a step needs per row besides the parameters."""
        base = self.population.base
        # bf16: all layers except BatchNorm compute on a half-precision copy, which the update kernel keeps up to date
        half = self.dtype == torch.bfloat16
        self.half = base.new_zeros(rows, base.shape[1], dtype=torch.bfloat16) if half else None
        self.rates = base.new_zeros(rows, len(self.population.layout.slots))
        self.momentum, self.weight_decays = base.new_zeros(rows), base.new_zeros(rows)
        self.counter = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.lengths = torch.zeros_like(self.counter)
        self.total = torch.zeros(rows, dtype=torch.float64, device=self.device)
        self.order = torch.zeros(rows, 0, dtype=torch.int32, device=self.device)

    def start(self, processes: int | None = None) -> None:
        """Start the engine. A GPU engine has no worker processes."""

    def close(self) -> None:
        torch.cuda.synchronize(self.device)

    def score(self, jobs: Sequence[ScoreJob]) -> list[Score]:
        if not jobs:
            return []
        # a model that is scored on the test parts of several nodes is evaluated on all parts together
        groups: dict[ScoreJob, list[int]] = {}
        for number, job in enumerate(jobs):
            by_sample = self.members[job.run].training.loss in BY_SAMPLE
            groups.setdefault(job._replace(whose=None) if by_sample else job, []).append(number)
        with self.numerics(), torch.no_grad():
            sums = torch.cat(self.answers([[jobs[i] for i in group] for group in groups.values()])).tolist()
        results = dict(zip([i for group in groups.values() for i in group], sums, strict=True))
        return [Score(loss, counts) for loss, *counts in (results[i] for i in range(len(jobs)))]

    def answers(self, groups: Sequence[Sequence[ScoreJob]]) -> list[Tensor]:
        """Return the score sums [jobs, 1 + tallied] of each group. All jobs of a group score the same model."""
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
                recalibrate_statistics(model, shard, partial(self.inputs_of, self.training(job).samples))

    def training(self, job: TrainJob) -> Training:
        return self.members[job.run].training

    def id(self, job: TrainJob) -> int:
        return self.members[job.run].id(job.node)

    def shard(self, job: TrainJob) -> Tensor:
        return self.members[job.run].shards[job.node]

    def layer_seed(self, job: TrainJob) -> int:
        """Return the dropout seed of a round. It depends on seed, node and round only."""
        return derive_seed(self.training(job).seed, node=self.id(job), round=job.round, purpose="layers")

    def prepare(self, jobs: Sequence[TrainJob]) -> list[list[Tensor | None]]:
        """Set the samples, learning rates and momentum of this round. Return the steps of each job.

        A step is None for a full batch, whose samples are in `order`; otherwise it has the samples of a smaller batch.
        """
        rows = torch.tensor([job.row for job in jobs], device=self.device)
        plans: list[list[Tensor | None]] = []
        lines: list[Tensor] = []
        for job in jobs:
            training, plan, line = self.training(job), list[Tensor | None](), list[Tensor]()
            for epoch in training.epoch_orders(self.shard(job), self.id(job), job.round, job.epochs):
                full_batches, rest = divmod(len(epoch), training.batch_size)
                plan += [None] * full_batches + ([epoch[-rest:]] if rest else [])
                # a smaller last batch still takes a full batch of positions, so that steps and positions stay aligned
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
        """Compute the outputs of the base models on their nodes' samples, for algorithms whose loss needs them."""
        with torch.no_grad():
            for job in jobs:
                if job.run not in self.runs_with_base_outputs:
                    continue
                samples = self.training(job).samples
                model = self.scorers[0][0].eval()
                self.point(model, self.population.base[job.row], job.row)
                for batch in self.shard(job).to(self.device).split(EVALUATION_BATCH):
                    outputs = self.outputs(model(self.inputs_of(samples, batch)))
                    if self.base_outputs is None:
                        self.base_outputs = outputs.new_zeros(
                            len(self.runs_with_base_outputs), len(samples), *outputs.shape[1:]
                        )
                    self.base_outputs[self.runs_with_base_outputs.index(job.run), batch] = outputs

    def forget(self) -> None:
        """Drop captured steps after a buffer has moved, because they contain its address."""

    def take(self, rows: slice, job: TrainJob, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the rows' next batches. One kernel writes images with labels into `batch`."""
        samples = self.training(job).samples
        if is_pictures(samples):
            counted = (self.counter[rows], self.lengths[rows], self.steps[rows])
            affine = samples.affine(self.device)
            take_batches(self.order[rows], *counted, samples.x, samples.y, affine, *batch)
            return batch
        self.steps[rows] += self.counter[rows] < self.lengths[rows]
        return self.gathered(samples, *self.now(rows), self.training(job).batch_size)

    def now(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Return what determines the rows' next batches: sample order, number of completed steps, number of steps."""
        return self.order[rows], self.counter[rows], self.lengths[rows]

    def gather(
        self, samples: Samples, order: Tensor, counter: Tensor, lengths: Tensor, batch_size: int
    ) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the rows' next batches, one row after another."""
        chosen = next_samples(order, counter, lengths, batch_size).flatten()
        return self.inputs_of(samples, chosen), samples.targets(chosen)

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
        """Apply the optimizer step of these rows and count it. `full`: no gradient is in half precision."""
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
        """Allocate memory for the next batch of some rows: channels-last inputs and targets."""
        samples, count = self.training(job).samples, rows * self.training(job).batch_size
        probe = torch.zeros(1, dtype=torch.int64, device=self.device)
        inputs = self.inputs_of(samples, probe).expand(count, *(-1 for _ in samples.inputs(probe).shape[1:]))
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
        """Make a model's tensors views of a row, or of its half-precision copy for layers in half precision."""
        views = self.population.layout.views(row)
        if self.half is not None:
            halves = self.population.layout.views(row.to(torch.bfloat16) if half is None else half)
            views = [h if in_half else v for v, h, in_half in zip(views, halves, self.in_half, strict=True)]
        buffers = self.population.buffers if buffers is None else buffers
        return point(model, views, {name: values[number] for name, values in buffers.items()})

    def inputs(self, values: Tensor) -> Tensor:
        """Convert normalised samples to the precision and memory format of the model.

        A series stays in float32, because half precision would lose small changes at a high level. A forecaster scales
        it itself.
        """
        values = values if self.members[0].classes is None else values.to(self.dtype)
        return values.contiguous(memory_format=torch.channels_last) if values.dim() == 4 else values

    def inputs_of(self, samples: Samples, index: Tensor) -> Tensor:
        """Return the model's inputs for some samples."""
        return self.inputs(samples.inputs(index))

    def outputs(self, values: Tensor) -> Tensor:
        """Convert outputs for the loss to at least the precision of the parameters."""
        return values.to(self.population.base.dtype)

    def eval_forward(self, model: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return the function that evaluates a model in eval mode: here the model itself."""
        return model

    def _score(self, model: nn.Module, jobs: Sequence[ScoreJob]) -> Tensor:
        """Return the score sums of one model, [jobs, 1 + tallied], on the GPU. The caller waits for them."""
        first, member = jobs[0], self.members[jobs[0].run]
        mean = first.node is None
        buffers = self.population.mean_buffers if mean else self.population.buffers
        self.point(model, self.state(first), first.run if mean else first.row, buffers=buffers)
        forward = self.eval_forward(model.eval())
        (samples, chosen), loss = self.parts(jobs), member.training.loss
        sums = torch.zeros(len(jobs), 1 + member.tallied, dtype=torch.float64, device=self.device)
        per_sample: list[Tensor] = []  # the errors of each sample, if the loss is one of them
        for piece in torch.cat(chosen).split(EVALUATION_BATCH):
            if not len(piece):  # a node may have no samples for scoring
                continue
            targets = samples.targets(piece)
            outputs = self.outputs(forward(self.inputs_of(samples, piece)))
            if loss in BY_SAMPLE:
                per_sample.append(sample_errors(outputs, targets))
            else:
                sums[0, 0] += loss(outputs, targets).double() * len(targets)
                sums[0, 1:] += tally(outputs, targets, member.classes)
        if per_sample:
            # sum each part separately: index_add would use atomics, whose order is not reproducible
            errors = torch.stack([part.sum(dim=0) for part in torch.cat(per_sample).split([*map(len, chosen)])])
            sums += with_loss(errors, loss)
        return sums

    def parts(self, jobs: Sequence[ScoreJob]) -> tuple[Samples, list[Tensor]]:
        """Return the dataset of these jobs, and the sample indices of each job."""
        pairs = [self.samples(job) for job in jobs]
        samples = pairs[0][0]
        everything = torch.arange(len(samples), device=self.device)
        return samples, [everything if part is None else part.to(self.device) for _, part in pairs]

    @contextmanager
    def numerics(self) -> Iterator[None]:
        """Context with the run's precision and determinism settings. The previous settings are restored afterwards."""
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        before = cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32
        cudnn.benchmark, cudnn.deterministic = not self.deterministic, self.deterministic
        cudnn.allow_tf32 = matmul.allow_tf32 = self.precision != "fp32"
        try:
            yield
        finally:
            cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32 = before
