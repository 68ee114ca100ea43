"""Engine that trains many nodes in one kernel on a CPU, for small models with which one node cannot fill a core.

For a perceptron the stacked products give each row the same bits as training alone (with one thread), so
`engine = "auto"` uses this engine. For other models it is `engine = "batched"`, whose bits depend on the number of
rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from feda2l.algorithms import Algorithm
from feda2l.engines.engine import EVALUATION_BATCH, Engine, RunData, Score, ScoreJob, TrainJob, tally
from feda2l.errors import FedA2LError
from feda2l.randomness import derive_seed
from feda2l.round.layout import Layout
from feda2l.round.local_step import LocalStep, Views
from feda2l.round.population import Population
from feda2l.round.train import Loss, Training, gradients_of, with_offset

# other functions (sigmoid, GELU, SiLU, ELU) give different bits at the end of a tensor than inside it
ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Identity)
LINE = 16  # floats per cache line
CACHE = 1 << 18  # parameters of rows trained together; with their momentum they fit into a core's L2 cache
Forward = Callable[[Sequence[Tensor], Tensor], Tensor]


def trains_as_written(module: nn.Module) -> bool:
    """True if the module has no hooks and no frozen parameters."""
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    return not hooked and all(parameter.requires_grad for parameter in module.parameters())


def flattens_samples(part: nn.Module) -> bool:
    """True if the layer turns each sample into one vector."""
    return type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1)


def is_perceptron(model: nn.Module) -> bool:
    """True if the model is a `Sequential` of trainable linear layers and elementwise functions.

    Stacking such a model changes no bit of the result. Types must match exactly, without hooks or shared modules,
    because `_perceptron` cannot know what a user's subclass does.
    """
    if type(model) is not nn.Sequential or not trains_as_written(model):
        return False
    parts = [part for part in model if type(part) not in ELEMENTWISE]
    linear = [part for part in parts if not flattens_samples(part)]
    return (
        set(map(type, linear)) == {nn.Linear}
        and type(parts[0]) is nn.Flatten
        and len(list(model.parameters())) == sum(len(list(part.parameters())) for part in linear)
    )


def stacked_forward(model: nn.Module) -> Forward:
    """Return the forward pass of k models at once, with parameters [k, *shape] and inputs [k, batch, ...]."""
    if isinstance(model, nn.Sequential) and is_perceptron(model):
        return _perceptron(model)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]

    def one(parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        outputs: Tensor = functional_call(model, dict(zip(names, parameters, strict=True)), (x,))
        return outputs

    many: Forward = vmap(one, randomness="different")
    return many


def _perceptron(model: nn.Sequential) -> Forward:
    """Return the forward pass of a perceptron without vmap, whose overhead is half the time of so small a model.

    The bits of a product depend on the alignment of its matrices to cache lines. Features are therefore padded to
    whole lines, so that every row's matrices start at a line, as they do for a single model.
    """
    parts = list(model)
    outputs = next(part.out_features for part in reversed(parts) if isinstance(part, nn.Linear))

    def forward(parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        left = iter(parameters)
        for part in parts:
            if isinstance(part, nn.Linear):
                x, weight = _to_lines(x, 1), _to_lines(next(left), 2).transpose(1, 2)
                bias = None if part.bias is None else _to_lines(next(left), 1).unsqueeze(1)
                x = torch.bmm(x, weight) if bias is None else torch.baddbmm(bias, x, weight)
            else:
                x = x.flatten(2) if isinstance(part, nn.Flatten) else part(x)
        return x[..., :outputs]

    return forward


def _to_lines(values: Tensor, sides: int) -> Tensor:
    """Pad the last `sides` axes with zeros to whole cache lines."""
    missing = [-side % LINE for side in values.shape[-sides:]]
    return F.pad(values, [zeros for side in reversed(missing) for zeros in (0, side)]) if any(missing) else values


def stacked_loss(loss: Loss) -> Loss:
    """Return the loss per row, [k], for outputs [k, batch, ...] and targets [k, batch]."""
    if loss is not F.cross_entropy:
        many: Loss = vmap(loss)
        return many

    def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
        each = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
        return each.view(targets.shape).mean(dim=1)

    return cross_entropy


class Stacked(Engine):
    """Engine that trains rows with the same settings (except learning rates and momentum) in one kernel."""

    name = "batched"

    def __init__(self, model: nn.Module, population: Population, members: Sequence[RunData]) -> None:
        super().__init__(model, population, members)
        if population.buffers:
            raise FedA2LError(
                'runtime.engine = "batched" cannot train a model with buffers (BatchNorm statistics); '
                'use runtime.engine = "rows"'
            )
        self.forward = stacked_forward(model)

    def train(self, jobs: Sequence[TrainJob]) -> list[float]:
        def settings(i: int) -> tuple[object, ...]:
            training = self.members[jobs[i].run].training
            sizes = training.batch_size, training.epochs, training.drop_last, training.weight_decay
            return *sizes, id(training.loss), training.algorithm.kind

        def length(i: int) -> tuple[int, int]:
            # sort by steps first, because an algorithm with a fixed number of steps ignores the number of samples
            shard = len(self.members[jobs[i].run].shards[jobs[i].node])
            return -self.members[jobs[i].run].training.steps(shard), -shard

        order = sorted(range(len(jobs)), key=lambda i: (settings(i), length(i), i))
        pieces: list[list[int]] = []
        for _, group in groupby(order, key=settings):
            rows = list(group)
            # as few pieces as fit into the cache, at least one per worker, filled in turn so that they have equal work
            most = max(1, CACHE // self.population.layout.width)
            count = min(len(rows), max(len(self.pool.workers), -(-len(rows) // most)))
            pieces += [rows[start::count] for start in range(count)]
        losses: dict[int, float] = {}
        for piece, values in zip(
            pieces, self.pool.map("train_rows", [([jobs[i] for i in piece],) for piece in pieces]), strict=True
        ):
            losses |= zip(piece, values, strict=True)
        return [losses[i] for i in range(len(jobs))]

    def train_rows(self, jobs: list[TrainJob]) -> list[float]:
        """Train rows together. They are sorted longest first, and a row without further batches stops."""
        population, training = self.population, self.members[jobs[0].run].training
        first = jobs[0]
        self.model.train()
        id = self.members[first.run].id(first.node)
        torch.default_generator.manual_seed(derive_seed(training.seed, node=id, round=first.round, purpose="layers"))
        batches = [self._batches(job) for job in jobs]
        rows = torch.tensor([job.row for job in jobs])
        state = _State.of(training, population, jobs, rows)
        algorithm, views = training.algorithm, population.layout.views
        base_outputs = self._base_outputs(jobs) if algorithm.uses_base_outputs else None
        offsets = self._logit_offsets(jobs)
        samples = training.samples
        totals = torch.zeros(len(jobs), dtype=torch.float64)
        for chosen, indices in _stretches(batches):
            part, total = state[chosen], totals[chosen]
            leaves = _leaves(views, part.values)
            local, perturbed = self._local(algorithm, part.values, rows[chosen])
            for index in indices:
                inputs = samples.inputs(index.flatten()).unflatten(0, index.shape)
                target = samples.targets(index.flatten()).unflatten(0, index.shape)
                base = None if base_outputs is None else base_outputs(chosen, index)
                batch = inputs, target, base, None if offsets is None else offsets[chosen]
                losses = self._losses(training, leaves, *batch)
                gradients: Sequence[Tensor] = gradients_of(losses, leaves)
                total += losses.detach()
                if local is not None:
                    again = partial(self._gradients, training, perturbed, *batch)
                    gradients = local.modified_gradients(gradients, again)
                part.update(gradients)
        state.store(population, rows)
        return (totals / torch.tensor([len(steps) for steps in batches])).tolist()

    def _batches(self, job: TrainJob) -> list[Tensor]:
        member = self.members[job.run]
        return member.training.batches(member.shards[job.node], member.id(job.node), job.round, job.epochs)

    def _local(self, algorithm: Algorithm, values: Tensor, rows: Tensor) -> tuple[LocalStep | None, list[Tensor]]:
        """Return the algorithm's part of local training (None for plain steps) and the leaves of its ascent point."""
        if algorithm.trains_plainly:
            return None, []
        population, views = self.population, self.population.layout.views
        algorithm_state = {name: matrix[rows] for name, matrix in population.algorithm_state.items()}
        local = LocalStep(algorithm, values, population.base[rows], algorithm_state, views)
        return local, [] if local.perturbed is None else _leaves(views, local.perturbed)

    def _logit_offsets(self, jobs: list[TrainJob]) -> Tensor | None:
        """Return what the algorithm adds to the outputs of each row, [rows, 1, classes]."""
        offsets = [self.members[job.run].logit_offset(job.node) for job in jobs]
        known = [offset for offset in offsets if offset is not None]  # all or none: the rows train alike
        return torch.stack(known).unsqueeze(1) if known else None

    def _losses(
        self,
        training: Training,
        leaves: list[Tensor],
        inputs: Tensor,
        targets: Tensor,
        base_outputs: Tensor | None,
        offset: Tensor | None,
    ) -> Tensor:
        """Return the objective of each row."""
        outputs, base_outputs = with_offset(offset, self.forward(leaves, inputs), base_outputs)
        task = stacked_loss(training.loss)(outputs, targets)
        return training.algorithm.loss(task, outputs, targets, base_outputs)

    def _gradients(self, training: Training, leaves: list[Tensor], *batch: Any) -> Sequence[Tensor]:
        return gradients_of(self._losses(training, leaves, *batch), leaves)

    def _base_outputs(self, jobs: list[TrainJob]) -> Callable[[slice, Tensor], Tensor]:
        """Return a function from rows and samples [rows, batch] to the outputs of the rows' base models."""
        tables: dict[int, Tensor] = {}
        for job in jobs:
            member = self.members[job.run]
            samples = member.training.samples
            model = self.population.layout.views(self.population.base[job.row].unsqueeze(0))
            for batch in member.shards[job.node].split(EVALUATION_BATCH):
                with torch.no_grad():
                    outputs = self._evaluated(model, samples.inputs(batch).unsqueeze(0))[0]
                tables.setdefault(job.run, outputs.new_empty(len(samples), *outputs.shape[1:]))[batch] = outputs
        runs = list(tables)
        table = torch.stack(list(tables.values()))
        which = torch.tensor([[runs.index(job.run)] for job in jobs])
        return lambda chosen, index: table[which[chosen], index]

    def _evaluated(self, parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        self.model.eval()
        outputs = self.forward(parameters, inputs)
        self.model.train()
        return outputs

    def score(self, jobs: Sequence[ScoreJob]) -> list[Score]:
        # models that are scored on the same samples are evaluated together
        groups: dict[tuple[int | None, ...], list[int]] = {}
        for number, job in enumerate(jobs):
            member = self.members[job.run]
            key = (job.run, job.node) if job.local else (id(member.test), job.whose, id(member.training.loss))
            groups.setdefault((job.local, job.batch, *key), []).append(number)
        most = max(1, CACHE // self.population.layout.width)
        pieces = [group[i : i + most] for group in groups.values() for i in range(0, len(group), most)]
        results: dict[int, Score] = {}
        scored = self.pool.map("score_rows", [([jobs[i] for i in piece],) for piece in pieces])
        for piece, scores in zip(pieces, scored, strict=True):
            results |= zip(piece, (Score(*score) for score in scores), strict=True)
        return [results[i] for i in range(len(jobs))]

    def score_rows(self, jobs: list[ScoreJob]) -> list[tuple[float, list[float]]]:
        jobs = [ScoreJob(*job) for job in jobs]
        member = self.members[jobs[0].run]
        samples, chosen = self.samples(jobs[0])
        chosen = torch.arange(len(samples)) if chosen is None else chosen
        stacks = self.population.layout.views(torch.stack([self.state(job) for job in jobs]))
        lossfn = stacked_loss(member.training.loss)
        scores = [Score(0.0, [0.0] * member.tallied) for _ in jobs]
        self.model.eval()
        for piece in chosen.split(EVALUATION_BATCH):
            inputs, targets = samples.inputs(piece), samples.targets(piece)
            with torch.no_grad():
                outputs = self.forward(stacks, inputs.expand(len(jobs), *inputs.shape))
                losses = lossfn(outputs, targets.expand(len(jobs), *targets.shape)).double() * len(targets)
            for number, (loss, answers) in enumerate(zip(losses.tolist(), outputs, strict=True)):
                scores[number] += Score(loss, tally(answers, targets, member.classes).tolist())
        return [tuple(score) for score in scores]  # type: ignore[misc]


def _leaves(views: Views, values: Tensor) -> list[Tensor]:
    return [view.requires_grad_() for view in views(values.detach())]


@dataclass
class _State:
    """Rows that train together, as matrices [rows, width], with the optimizer step by torch's formulas.

    Each row has its own learning rates and momentum. The step uses whole matrices and not single tensors, because for
    small models the number of calls dominates the cost.
    """

    training: Training
    layout: Layout
    values: Tensor
    optimizer_state: list[Tensor]
    steps: Tensor  # [rows, 1]
    rates: Tensor
    momenta: Tensor  # [rows, 1]
    gradient: Tensor
    gradients: list[Tensor] = field(init=False)  # views of `gradient`, one per tensor

    def __post_init__(self) -> None:
        self.gradients = self.layout.views(self.gradient)

    @classmethod
    def of(cls, training: Training, population: Population, jobs: list[TrainJob], rows: Tensor) -> "_State":
        layout = population.layout
        values = population.base[rows]
        return cls(
            training,
            layout,
            values,
            [matrix[rows] for matrix in population.optimizer_state.values()],
            population.steps[rows].unsqueeze(1),
            layout.expand(torch.tensor([job.hyper.rates for job in jobs])),
            torch.tensor([[job.hyper.momentum] for job in jobs]),
            torch.zeros_like(values),
        )

    def __getitem__(self, rows: slice) -> "_State":
        """Return views of some rows."""
        optimizer_state = [matrix[rows] for matrix in self.optimizer_state]
        matrices = self.steps[rows], self.rates[rows], self.momenta[rows], self.gradient[rows]
        return _State(self.training, self.layout, self.values[rows], optimizer_state, *matrices)

    def store(self, population: Population, rows: Tensor) -> None:
        population.trained[rows] = self.values
        for matrix, optimizer_state in zip(population.optimizer_state.values(), self.optimizer_state, strict=True):
            matrix[rows] = optimizer_state
        population.steps[rows] = self.steps.squeeze(1)

    @torch.no_grad()
    def update(self, gradients: Sequence[Tensor]) -> None:
        torch._foreach_copy_(self.gradients, list(gradients))
        values, gradient, decay = self.values, self.gradient, self.training.weight_decay
        self.steps += 1
        if decay and self.training.optimizer == "adamw":
            values.addcmul_(values, self.rates, value=-decay)
        elif decay:
            gradient.add_(values, alpha=decay)
        if self.training.optimizer == "sgd":
            (momentum,) = self.optimizer_state
            momentum.mul_(self.momenta).add_(gradient)
            values.addcmul_(momentum, self.rates, value=-1)
            return
        first, second = self.optimizer_state
        first.lerp_(gradient, 1 - 0.9)
        second.mul_(0.999).addcmul_(gradient, gradient, value=1 - 0.999)
        steps = self.steps.double()
        size = (second / (1 - 0.999**steps).float()).sqrt_().add_(1e-8)
        values.addcmul_(first / size, (self.rates / (1 - 0.9**steps)).float(), value=-1)


def _stretches(batches: list[list[Tensor]]) -> Iterator[tuple[slice, Tensor]]:
    """Yield consecutive steps of the same rows: the rows, and the samples of each step [steps, rows, batch].

    Rows are sorted longest first, so the rows that still have batches come first. The last batch of an epoch may be
    smaller (drop_last = false), so rows are also grouped by batch size.
    """

    def sizes(step: int) -> list[int]:
        return [len(row[step]) for row in batches if step < len(row)]

    for together, steps in groupby(range(len(batches[0])), key=sizes):
        span = list(steps)
        start = 0
        for size, equal in groupby(together):
            rows = slice(start, start + len(list(equal)))
            start = rows.stop
            samples = [torch.cat(row[span[0] : span[-1] + 1]).view(len(span), size) for row in batches[rows]]
            yield rows, torch.stack(samples, dim=1)
