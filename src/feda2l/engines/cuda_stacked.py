"""The engine with node-batched kernels on a GPU: one product for all nodes of a CNN, a ResNet or a Timer.

The forward pass is compiled, and the step is captured for groups of places. The rows that train in a round are assigned
to places by decreasing shard length. So the rows of a group have similar lengths, and empty groups are skipped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from feda2l.algorithms import Algorithm
from feda2l.data.samples import Samples
from feda2l.engines.batched_forward import batched_forward
from feda2l.engines.batched_loss import batch_losses
from feda2l.engines.batched_resnet import resnet_forward
from feda2l.engines.batched_timer import count_dropout_layers, timer_forward
from feda2l.engines.compiling import compiled
from feda2l.engines.cuda_engine import WARM_UP, CudaEngine, next_samples, step_of, with_loss
from feda2l.engines.engine import Score, ScoreJob, TrainJob, sample_errors
from feda2l.engines.folded_norms import FoldedNorms
from feda2l.engines.forecast_scores import ForecastRequest, summed_errors
from feda2l.engines.group_size import group_size
from feda2l.engines.running_statistics import RunningStatistics
from feda2l.engines.stacked import stacked_loss
from feda2l.engines.timer_passes import draws_of
from feda2l.models.resnet import ResNet
from feda2l.models.timer import Timer
from feda2l.round.local_step import LocalStep
from feda2l.round.run import ERRORS
from feda2l.round.train import Training, with_offset

SCORED = 10  # models that are scored together; for fewer models, compiling does not pay off
SCORED_BATCH = 1000

# (parameters [k, *shape], inputs [k, batch, ...], dropout draws) -> (outputs of k rows, batch statistics of BatchNorm
# or None)
Forward = Callable[[Sequence[Tensor], Tensor, Tensor | None], tuple[Tensor, Tensor | None]]


@dataclass
class _Group:
    """Places whose rows take their steps together, and the captured step."""

    places: slice
    algorithm: Algorithm
    stream: torch.cuda.Stream
    addresses: Tensor  # addresses of the gradients, for the update kernel
    batch: tuple[Tensor, Tensor]
    local: LocalStep | None = None  # the algorithm's part of the step
    graph: torch.cuda.CUDAGraph = field(default_factory=torch.cuda.CUDAGraph)


def sample_mask(sizes: Tensor, counter: Tensor, lengths: Tensor, batch_size: int) -> Tensor:
    """Return a mask [rows, batch] of the samples in each row's next batch. `sizes` has the size of every batch."""
    return torch.arange(batch_size, device=sizes.device) < sizes.gather(1, step_of(counter, lengths))


class CudaStacked(CudaEngine):
    """Engine that trains groups of rows with node-batched kernels. The rows are copied to places for one round.

    Rows with different local training (by algorithm) are in different groups.
    """

    name = "cuda_batched"

    def start(self, processes: int | None = None) -> None:
        population, members = self.population, self.members
        rows = [(shard, member.training) for member in members for shard in member.shards]
        lengths = [[member.training.steps(len(shard)) for shard in member.shards] for member in members]
        self.length = [length for row_lengths in lengths for length in row_lengths]  # steps of every row
        self.kind = [training.algorithm.kind for _, training in rows]
        kinds: dict[str, list[int]] = {}  # rows with the same local training
        for row, kind in enumerate(self.kind):
            kinds.setdefault(kind, []).append(row)
        self.first: dict[str, int] = {}  # first place of each kind
        self.spans: list[tuple[slice, Algorithm]] = []
        for kind, same_kind in kinds.items():
            first = self.first[kind] = self.spans[-1][0].stop if self.spans else 0
            runs = [
                row_steps
                for row_steps, member in zip(lengths, members, strict=True)
                if member.training.algorithm.kind == kind
            ]
            size = group_size(runs, population.layout.width)
            algorithm = rows[same_kind[0]][1].algorithm
            starts = range(first, first + len(same_kind), size)
            self.spans += [(slice(start, start + size), algorithm) for start in starts]
        places = self.spans[-1][0].stop  # a few more than rows if the group size does not divide their number
        self.make_room(places)

        def by_place(matrix: Tensor) -> Tensor:
            return matrix.new_zeros(places, *matrix.shape[1:])

        self.parameters, self.steps = by_place(population.base), by_place(population.steps)
        self.optimizer_state = [by_place(matrix) for matrix in population.optimizer_state.values()]
        self.tables = torch.zeros(places, 1, dtype=torch.int64, device=self.device)
        # inputs of the algorithms' parts of a step, by place; empty if all rows use plain SGD or Adam steps
        modified = any(kinds)
        self.base = by_place(population.base) if modified else None
        self.algorithm_state = {
            name: by_place(matrix) for name, matrix in population.algorithm_state.items() if modified
        }
        classes = members[0].classes or 0
        corrects = any(training.algorithm.overrides("logit_offset") for _, training in rows)
        self.offsets = self.base.new_zeros(places, 1, classes) if corrects and self.base is not None else None
        self.losses = {kind: self._compiled(rows[same_kind[0]][1]) for kind, same_kind in kinds.items()}
        self.groups: dict[int, _Group] = {}  # by index of the span, created on first use
        self.together = compiled(self._forward())
        # scores a single ResNet; other models are scored together or without compiling
        self.folded = FoldedNorms(self.model, self.device) if isinstance(self.model, ResNet) else None
        if self.folded is not None:
            self.alone = compiled(partial(functional_call, self.folded.template))
        # values that differ between steps: the batch sizes (if some are smaller), and the seeds of dropout
        self.full_batches = all(training.only_full_batches(len(shard)) for shard, training in rows)
        self.sizes = torch.zeros(places, 0, dtype=torch.int32, device=self.device)
        self.draws = torch.zeros(places, dtype=torch.int32, device=self.device)
        # compiled, because it saves sixty small kernels in a step on windows
        self.gathered = compiled(self.gather)
        self.valid: Callable[..., Tensor] = compiled(sample_mask)
        self.drawn: Callable[..., Tensor] = compiled(draws_of)
        self.statistics = RunningStatistics(self.model, population, places) if population.buffers else None

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
        """Return the compiled objective of k rows of parameters [k, *shape], with the batch statistics of BatchNorm."""
        forward, loss, algorithm = self._forward(), training.loss, training.algorithm

        def losses(
            parameters: Sequence[Tensor],
            x: Tensor,
            targets: Tensor,
            base_outputs: Tensor | None,
            offset: Tensor | None,
            valid: Tensor | None,
            draws: Tensor | None,
        ) -> tuple[Tensor, Tensor | None]:
            answers, seen = forward(parameters, x, draws)
            outputs, base_outputs = with_offset(offset, self.outputs(answers), base_outputs)
            return algorithm.loss(batch_losses(loss, outputs, targets, valid), outputs, targets, base_outputs), seen

        return compiled(losses)

    def score(self, jobs: Sequence[ScoreJob]) -> list[Score]:
        """Score models. Those that use the whole test set are evaluated together, so each batch is read only once."""
        together = [job for job in jobs if job == ScoreJob(job.row, job.run, job.node, local=False)]
        if len(together) < SCORED or self.members[0].classes is None or isinstance(self.model, ResNet):
            return super().score(jobs)
        with self.numerics(), torch.no_grad():
            chunks = [together[start : start + SCORED] for start in range(0, len(together), SCORED)]
            sums = torch.cat([self._score_chunk(chunk) for chunk in chunks]).tolist()
        results = {job: Score(loss, right) for job, (loss, *right) in zip(together, sums, strict=True)}
        others = [job for job in jobs if job not in results]
        results |= zip(others, super().score(others), strict=True)
        return [results[job] for job in jobs]

    def answers(self, groups: Sequence[Sequence[ScoreJob]]) -> list[Tensor]:
        """Evaluate forecasters together, each on its own windows."""
        if not isinstance(self.model, Timer):
            return super().answers(groups)
        results = dict[int, Tensor]()
        for local in {jobs[0].local for jobs in groups}:  # training and test samples separately
            numbers = [number for number, jobs in enumerate(groups) if jobs[0].local is local]
            chosen_parts = [self.parts(groups[number]) for number in numbers]
            states = [self.state(groups[number][0]).to(self.dtype) for number in numbers]
            requests = [ForecastRequest(state, parts) for state, (_, parts) in zip(states, chosen_parts, strict=True)]
            sums = summed_errors(requests, partial(self._errors, chosen_parts[0][0]), len(ERRORS))
            results |= zip(numbers, sums, strict=True)
        losses = [self.members[jobs[0].run].training.loss for jobs in groups]
        return [with_loss(results[number], loss) for number, loss in enumerate(losses)]

    def _errors(self, samples: Samples, rows: Tensor, chosen: Tensor) -> Tensor:
        """Return the errors [rows, samples, 2] of each row on its own samples."""
        inputs, targets = self.inputs_of(samples, chosen.flatten()), samples.targets(chosen.flatten())
        outputs = self.outputs(self.together(self._leaves(rows), inputs.unflatten(0, chosen.shape), None)[0])
        errors: Tensor = sample_errors(outputs.flatten(0, 1), targets).unflatten(0, chosen.shape)
        return errors

    def eval_forward(self, model: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return the compiled forward pass of a ResNet, which fuses all operations between two convolutions."""
        if self.folded is None:
            return super().eval_forward(model)
        tensors = self.folded.tensors(model)
        return lambda inputs: self.alone(tensors, (inputs,))

    def _score_chunk(self, jobs: list[ScoreJob]) -> Tensor:
        """Return loss sums and correct predictions per class of some models, [models, 1 + classes], on the GPU."""
        member = self.members[jobs[0].run]  # all runs of a pack share one test set
        assert member.classes is not None
        rows = [
            self.state(job) for job in (*jobs, *jobs[:1] * (SCORED - len(jobs)))
        ]  # pad to one shape to compile once
        leaves = self._leaves(torch.stack(rows).to(self.dtype))
        sums = torch.zeros(len(rows), 1 + member.classes, dtype=torch.float64, device=self.device)
        for piece in torch.arange(len(member.test), device=self.device).split(SCORED_BATCH):
            targets = member.test.targets(piece)
            # a view, because the inputs are channels last in memory
            x = self.inputs_of(member.test, piece).movedim(1, -1).unsqueeze(0)
            outputs = self.outputs(self.together(leaves, x, None)[0])
            losses = stacked_loss(member.training.loss)(outputs, targets.expand(len(rows), -1))
            sums[:, 0] += losses.double() * len(piece)
            sums.index_add_(1, 1 + targets, (outputs.argmax(dim=-1) == targets).double())
        return sums[: len(jobs)]

    def train(self, jobs: Sequence[TrainJob]) -> list[float]:
        population = self.population
        placed = self._placed(jobs)
        with self.numerics():
            plans = self.prepare(placed)
            rows, places = (torch.tensor([job.row for job in slots], device=self.device) for slots in (jobs, placed))
            pairs = [(population.base, self.parameters), (population.steps, self.steps)]
            pairs += zip(population.optimizer_state.values(), self.optimizer_state, strict=True)
            pairs += [
                (population.algorithm_state[name], slot_values) for name, slot_values in self.algorithm_state.items()
            ]
            for matrix, slot_values in pairs:
                slot_values[places] = matrix[rows]
            if self.base is not None:
                self.base.copy_(self.parameters)
            if self.half is not None:
                self.half.copy_(self.parameters)
            if self.offsets is not None:
                for job, place in zip(jobs, placed, strict=True):
                    offset = self.members[job.run].logit_offset(job.node)
                    self.offsets[place.row] = 0 if offset is None else offset.to(self.offsets)
            if self.statistics is not None:
                self.statistics.take(places, rows)
            if isinstance(self.model, Timer):
                seeds = [self.layer_seed(job) & 0x7FFFFFFF for job in jobs]
                self.draws[places] = torch.tensor(seeds, dtype=torch.int32).to(self.device)
            if not self.full_batches:
                self._set_sizes(places, plans, self.training(jobs[0]).batch_size)
            self.compute_base_outputs(jobs)
            if self.runs_with_base_outputs:
                tables = {run: number for number, run in enumerate(self.runs_with_base_outputs)}
                self.tables[places] = torch.tensor([[tables.get(job.run, 0)] for job in jobs]).to(self.device)
            self._replay(jobs[0])
            population.trained[rows] = self.parameters[places]
            population.steps[rows] = self.steps[places]
            for matrix, slot_values in zip(population.optimizer_state.values(), self.optimizer_state, strict=True):
                matrix[rows] = slot_values[places]
            if self.statistics is not None:
                self.statistics.give(places, rows, self.lengths[places])
            totals = self.total.tolist()
        return [totals[job.row] / len(plan) for job, plan in zip(placed, plans, strict=True)]

    def _placed(self, jobs: Sequence[TrainJob]) -> list[TrainJob]:
        """Return the jobs with places of their kind, longest first."""
        order = sorted(range(len(jobs)), key=lambda i: -self.length[jobs[i].row])
        left, place = dict(self.first), dict[int, int]()
        for i in order:
            kind = self.kind[jobs[i].row]
            place[i], left[kind] = left[kind], left[kind] + 1
        return [job._replace(row=place[i]) for i, job in enumerate(jobs)]

    def _replay(self, job: TrainJob) -> None:
        """Replay all steps of the round, with the groups on parallel streams. A new group is captured first."""
        lengths = self.lengths.tolist()
        longest = [max(lengths[places]) for places, _ in self.spans]
        used = [number for number, length in enumerate(longest) if length]
        for number in used:
            if number not in self.groups:
                self.groups[number] = self._capture(*self.spans[number], job)
        present = torch.cuda.current_stream(self.device)
        for number in used:
            self.groups[number].stream.wait_stream(present)
        for step in range(max(longest)):
            for number in used:
                if step < longest[number]:
                    with torch.cuda.stream(self.groups[number].stream):
                        self.groups[number].graph.replay()
        for number in used:
            present.wait_stream(self.groups[number].stream)

    def _set_sizes(self, places: Tensor, plans: Sequence[Sequence[Tensor | None]], batch: int) -> None:
        """Set the number of samples in each batch of this round."""
        sizes = [torch.tensor([batch if step is None else len(step) for step in plan]) for plan in plans]
        table = torch.nn.utils.rnn.pad_sequence(sizes, batch_first=True, padding_value=batch).int()
        if table.shape[1] > self.sizes.shape[1]:
            self.sizes = torch.full((len(self.sizes), table.shape[1]), batch, dtype=torch.int32, device=self.device)
            self.forget()
        self.sizes[places, : table.shape[1]] = table.to(self.device)

    def _capture(self, places: slice, algorithm: Algorithm, job: TrainJob) -> _Group:
        """Warm up a group and capture its step. The values of its rows do not change."""
        slots = len(self.population.layout.slots)
        addresses = torch.zeros(slots, dtype=torch.int64, device=self.device)
        stream = torch.cuda.Stream(self.device)
        batch = self.empty_batch(job, places.stop - places.start)
        group = _Group(places, algorithm, stream, addresses, batch)
        if not algorithm.trains_plainly:
            assert self.base is not None
            algorithm_state = {name: matrix[places] for name, matrix in self.algorithm_state.items()}
            group.local = LocalStep(
                algorithm, self.parameters[places], self.base[places], algorithm_state, self._leaves
            )
        state = [self.parameters, self.steps, self.counter, self.total, *self.optimizer_state]
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
        """Take a batch, run forward and backward, and update a group. Return the gradients that the update reads."""
        places, local, rows = group.places, group.local, group.places.stop - group.places.start
        counter, lengths = self.counter[places], self.lengths[places]
        base_outputs = None
        if group.algorithm.uses_base_outputs:
            assert self.base_outputs is not None
            samples = next_samples(*self.now(places), self.training(job).batch_size)
            base_outputs = self.base_outputs[self.tables[places], samples]
        offset = None if self.offsets is None else self.offsets[places]
        inputs, targets = self.take(places, job, group.batch)
        valid = None if self.full_batches else self.valid(self.sizes[places], counter, lengths, len(inputs) // rows)
        draws = (
            self.drawn(self.draws[places], counter, count_dropout_layers(self.model))
            if isinstance(self.model, Timer)
            else None
        )
        x = inputs.movedim(1, -1) if inputs.dim() == 4 else inputs  # channels last in memory, so this is a view
        x, answers = x.unflatten(0, (rows, -1)), targets.unflatten(0, (rows, -1))

        def gradients_at(values: Tensor, half: Tensor | None) -> tuple[Tensor, Tensor | None, Sequence[Tensor]]:
            leaves = [leaf.detach().requires_grad_() for leaf in self._computed(values, half)]
            losses, seen = self.losses[group.algorithm.kind](leaves, x, answers, base_outputs, offset, valid, draws)
            return losses.detach(), seen, torch.autograd.grad(losses, leaves, torch.ones_like(losses))

        half = None if self.half is None else self.half[places]
        losses, seen, gradients = gradients_at(self.parameters[places], half)
        if self.statistics is not None:
            assert seen is not None
            self.statistics.learn(places, seen, (counter < lengths).unsqueeze(1))
        if local is not None:
            # a batch updates the statistics once, so those at the ascent point are discarded
            gradients = local.modified_gradients(
                gradients, lambda: () if local.perturbed is None else gradients_at(local.perturbed, None)[2]
            )
        contiguous = [gradient.contiguous() for gradient in gradients]
        if not torch.cuda.is_current_stream_capturing():
            group.addresses.copy_(torch.tensor([gradient.data_ptr() for gradient in contiguous]))
        optimizer_state = [matrix[places] for matrix in self.optimizer_state]
        full = local is not None and local.modifies_gradient
        self.update(places, job, self.parameters[places], optimizer_state, half, group.addresses, losses, full=full)
        return contiguous

    def _computed(self, values: Tensor, half: Tensor | None) -> list[Tensor]:
        """Return the tensors that the rows compute with: half-precision copies if any, except for BatchNorm."""
        leaves = self._leaves(values)
        if half is None:
            return leaves
        return [h if in_half else v for v, h, in_half in zip(leaves, self._leaves(half), self.in_half, strict=True)]

    def _leaves(self, rows: Tensor) -> list[Tensor]:
        """Return the tensors of some rows, with kernels as [rows, channels, inner] in memory order."""
        slots = self.population.layout.slots
        columns = [rows[:, slot.start : slot.start + slot.size] for slot in slots]
        shapes = [(slot.shape[0], -1) if len(slot.shape) == 4 else slot.shape for slot in slots]
        return [column.unflatten(1, shape) for column, shape in zip(columns, shapes, strict=True)]
