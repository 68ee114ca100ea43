"""Many nodes in one kernel: for small models, where a node alone cannot fill a core.

A perceptron's stacked products give each row the bits it has alone (with one thread), so `auto` takes this engine
for them; for other models it is `engine = "batched"`, whose bits depend on how many rows train together.
"""

from collections.abc import Callable, Sequence
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from feda2l.errors import FedA2LError
from feda2l.randomness import derive_seed
from feda2l.round.train import Loss, Training
from feda2l.simulate.engine import Engine, Member, Score, ScoreJob, TrainJob
from feda2l.simulate.population import Population

ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.ELU, nn.Identity)
CACHE = 1 << 18  # parameters of the rows trained together: with their momentum they fit a core's second-level cache
Forward = Callable[[Sequence[Tensor], Tensor], Tensor]


def is_perceptron(model: nn.Module) -> bool:
    """Only linear layers and elementwise functions in a row: stacking changes no bit of it."""
    return isinstance(model, nn.Sequential) and all(
        isinstance(part, (nn.Linear, nn.Flatten, *ELEMENTWISE))
        and (not isinstance(part, nn.Flatten) or (part.start_dim, part.end_dim) == (1, -1))
        for part in model
    )


def stacked_forward(model: nn.Module) -> Forward:
    """The forward pass of k models at once: parameters [k, *shape], inputs [k, batch, ...]."""
    if is_perceptron(model) and all(p.requires_grad for p in model.parameters()):
        return _perceptron(model)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]

    def one(parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        outputs: Tensor = functional_call(model, dict(zip(names, parameters, strict=True)), (x,))
        return outputs

    many: Forward = vmap(one, randomness="different")
    return many


def _perceptron(model: nn.Module) -> Forward:
    """The same without vmap, whose overhead is half the time of so small a model."""
    parts = list(model.children())

    def forward(parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        left = iter(parameters)
        for part in parts:
            if isinstance(part, nn.Linear):
                weight = next(left).transpose(1, 2)
                x = torch.bmm(x, weight) if part.bias is None else torch.baddbmm(next(left).unsqueeze(1), x, weight)
            else:
                x = x.flatten(2) if isinstance(part, nn.Flatten) else part(x)
        return x

    return forward


def stacked_loss(loss: Loss) -> Loss:
    """The loss of each row, [k]: outputs [k, batch, ...], targets [k, batch]."""
    if loss is not F.cross_entropy:
        many: Loss = vmap(loss)
        return many

    def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
        each = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
        return each.view(targets.shape).mean(dim=1)

    return cross_entropy


class Stacked(Engine):
    """Rows that train alike (same run settings but for rates and momentum) go through one kernel together."""

    name = "batched"

    def __init__(self, model: nn.Module, population: Population, members: Sequence[Member]) -> None:
        super().__init__(model, population, members)
        if population.buffers:
            raise FedA2LError(
                'runtime.engine = "batched" cannot train a model with buffers (BatchNorm statistics); '
                'use runtime.engine = "rows"'
            )
        self.forward = stacked_forward(model)

    def train(self, jobs: Sequence[TrainJob]) -> list[float]:
        def alike(i: int) -> tuple[object, ...]:
            training = self.members[jobs[i].run].training
            return training.batch_size, training.epochs, training.drop_last, training.weight_decay, id(training.loss)

        def length(i: int) -> int:
            return len(self.members[jobs[i].run].shards[jobs[i].node])

        order = sorted(range(len(jobs)), key=lambda i: (alike(i), -length(i), i))
        pieces: list[list[int]] = []
        for _, group in groupby(order, key=alike):
            rows = list(group)
            # as few pieces as fit the cache, at least one a worker, dealt like cards so that all are as long
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
        """Train rows together; they come longest first, and a row that has no more batches drops out."""
        population, training = self.population, self.members[jobs[0].run].training
        first = jobs[0]
        torch.manual_seed(derive_seed(training.seed, node=first.node, round=first.round, purpose="layers"))
        batches = [
            self.members[job.run].training.batches(self.members[job.run].shards[job.node], job.node, job.round)
            for job in jobs
        ]
        rows = torch.tensor([job.row for job in jobs])
        stacks = [view.clone() for view in population.layout.views(population.base[rows])]
        memory = [[view.clone() for view in population.layout.views(m[rows])] for m in population.memory.values()]
        update = _Update(training, jobs, stacks, memory, population.steps[rows])
        lossfn = stacked_loss(training.loss)
        x, y, normalise = training.samples
        totals = torch.zeros(len(jobs), dtype=torch.float64)
        # a row's last batch may be smaller (drop_last = false): rows of one size go together
        for step in range(len(batches[0])):
            active = [i for i in range(len(jobs)) if step < len(batches[i])]
            for _, alike in groupby(active, key=lambda i: len(batches[i][step])):
                chosen = _as_slice(list(alike))
                index = torch.stack([batches[i][step] for i in range(chosen.start, chosen.stop)])
                inputs = normalise(x[index.flatten()]).unflatten(0, tuple(index.shape))
                leaves = [stack[chosen].detach().requires_grad_() for stack in stacks]
                losses = lossfn(self.forward(leaves, inputs), y[index])
                gradients = torch.autograd.grad(losses.sum(), leaves)
                totals[chosen] += losses.detach()
                with torch.no_grad():
                    update(leaves, gradients, chosen)
        for view, stack in zip(population.layout.views(population.trained), stacks, strict=True):
            view[rows] = stack
        for matrix, kind in zip(population.memory.values(), memory, strict=True):
            for view, stack in zip(population.layout.views(matrix), kind, strict=True):
                view[rows] = stack
        population.steps[rows] = update.steps
        return (totals / torch.tensor([len(steps) for steps in batches])).tolist()

    def score(self, jobs: Sequence[ScoreJob]) -> list[Score]:
        # models that answer the same questions are asked together
        groups: dict[tuple[int, int | None], list[int]] = {}
        for number, job in enumerate(jobs):
            key = (id(self.members[job.run].test.x), None) if not job.local else (job.run, job.node)
            groups.setdefault(key, []).append(number)
        most = max(1, CACHE // self.population.layout.width)
        pieces = [group[i : i + most] for group in groups.values() for i in range(0, len(group), most)]
        results: dict[int, Score] = {}
        scored = self.pool.map("score_rows", [([jobs[i] for i in piece],) for piece in pieces])
        for piece, scores in zip(pieces, scored, strict=True):
            results |= zip(piece, (Score(*score) for score in scores), strict=True)
        return [results[i] for i in range(len(jobs))]

    def score_rows(self, jobs: list[ScoreJob]) -> list[tuple[float, list[int]]]:
        jobs = [ScoreJob(*job) for job in jobs]
        member = self.members[jobs[0].run]
        (x, y, normalise), chosen = self.samples(jobs[0])
        if chosen is not None:
            x, y = x[chosen], y[chosen]
        stacks = self.population.layout.views(torch.stack([self.state(job) for job in jobs]))
        lossfn = stacked_loss(member.training.loss)
        scores = [Score(0.0, [0] * member.classes) for _ in jobs]
        self.model.eval()
        for start in range(0, len(y), 500):
            inputs, targets = normalise(x[start : start + 500]), y[start : start + 500]
            with torch.no_grad():
                outputs = self.forward(stacks, inputs.expand(len(jobs), *inputs.shape))
                losses = lossfn(outputs, targets.expand(len(jobs), -1)).double() * len(targets)
                right = outputs.argmax(dim=-1) == targets
            for number, (loss, hits) in enumerate(zip(losses.tolist(), right, strict=True)):
                scores[number] += Score(loss, torch.bincount(targets[hits], minlength=member.classes).tolist())
        return [tuple(score) for score in scores]  # type: ignore[misc]


class _Update:
    """The optimiser's step for stacked rows, each with its own rates and momentum; torch's own formulas."""

    def __init__(
        self,
        training: Training,
        jobs: list[TrainJob],
        stacks: list[Tensor],
        memory: list[list[Tensor]],
        steps: Tensor,
    ) -> None:
        def column(values: list[float], like: Tensor) -> Tensor:
            return torch.tensor(values).view(-1, *[1] * (like.dim() - 1))

        self.kind, self.weight_decay, self.memory, self.steps = training.optimizer, training.weight_decay, memory, steps
        self.rates = [column([job.hyper.rates[i] for job in jobs], stack) for i, stack in enumerate(stacks)]
        self.momenta = [column([job.hyper.momentum for job in jobs], stack) for stack in stacks]

    def __call__(self, leaves: list[Tensor], gradients: Sequence[Tensor], rows: slice) -> None:
        values = [leaf.detach() for leaf in leaves]  # views of the stacks, so in-place is enough
        rates = [rate[rows] for rate in self.rates]
        memory = [[stack[rows] for stack in kind] for kind in self.memory]
        self.steps[rows] += 1
        if self.weight_decay and self.kind == "adamw":
            torch._foreach_addcmul_(values, values, rates, value=-self.weight_decay)
        elif self.weight_decay:
            gradients = torch._foreach_add(list(gradients), values, alpha=self.weight_decay)
        if self.kind == "sgd":
            torch._foreach_mul_(memory[0], [momentum[rows] for momentum in self.momenta])
            torch._foreach_add_(memory[0], list(gradients))
            torch._foreach_addcmul_(values, memory[0], rates, value=-1)
            return
        first, second = memory
        torch._foreach_lerp_(first, list(gradients), 1 - 0.9)
        torch._foreach_mul_(second, 0.999)
        torch._foreach_addcmul_(second, list(gradients), list(gradients), value=1 - 0.999)
        for value, one, two, rate in zip(values, first, second, rates, strict=True):
            steps = self.steps[rows].double().view_as(rate)
            size = (two / (1 - 0.999**steps).float()).sqrt_().add_(1e-8)
            value.addcmul_(one / size, (rate / (1 - 0.9**steps)).float(), value=-1)


def _as_slice(numbers: list[int]) -> slice:
    return slice(numbers[0], numbers[-1] + 1)
