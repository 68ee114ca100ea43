"""The interface of all engines (train and score rows), and `RowEngine`, which trains one node at a time."""

import copy
import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from feda2l.data.samples import Samples
from feda2l.round.local_step import LocalStep
from feda2l.round.population import Population, point
from feda2l.round.run import RunData, TrainJob
from feda2l.round.train import ForwardPass, Hyperparameters, Loss, NodeTraining, in_half, train_node
from feda2l.worker_pool import Pool, default_processes

EVALUATION_BATCH = 500
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # constants of <malloc.h>


class ScoreJob(NamedTuple):
    """Score one model: the aggregated model of a node, or the mean model of the run if `node` is None.

    The samples are the test set, its part that belongs to node `whose`, or with `local` the held-out samples of
    the node. If `batch` is given, only this evaluation batch of the test set is used.
    """

    row: int
    run: int
    node: int | None
    local: bool
    whose: int | None = None
    batch: int | None = None


class Score(NamedTuple):
    """Sums over samples: the losses, and the correct predictions per class or the `ERRORS` of a regression."""

    loss: float
    tally: list[float]

    def __add__(self, other: object) -> "Score":
        assert isinstance(other, Score)
        return Score(self.loss + other.loss, [a + b for a, b in zip(self.tally, other.tally, strict=True)])


def sample_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the `ERRORS` of each sample of a batch, [n, 2]."""
    error = (outputs - targets).double().reshape(len(targets), -1)  # a sample may have a single number
    return torch.stack([error.square().mean(dim=1), error.abs().mean(dim=1)], dim=1)


def tally(outputs: Tensor, targets: Tensor, classes: int | None) -> Tensor:
    """Return the sums over a batch: correct predictions per class, or the `ERRORS` of a regression."""
    if classes is None:
        return sample_errors(outputs, targets).sum(dim=0)
    sums = torch.zeros(classes, dtype=torch.float64, device=targets.device)
    return sums.index_add_(0, targets, (outputs.argmax(dim=-1) == targets).double())


class Engine:
    """Base class of engines. Its methods run in worker processes, on the population that they inherit by fork."""

    name: str
    repeats = True  # True if results are bit-reproducible
    evaluation_batch = EVALUATION_BATCH

    def __init__(self, model: nn.Module, population: Population, members: Sequence[RunData]) -> None:
        self.model, self.population, self.members = model, population, members
        self.pool: Pool = Pool(self, 0)

    def start(self, processes: int | None = None) -> None:
        """Fork the workers, one per core by default. Afterwards they see new data only in the population's matrices."""
        processes = default_processes() if processes is None else processes
        self.pool = Pool(self, processes)
        self.pool.map("keep_memory", [()] * processes)  # all workers are idle, so each gets one call

    def keep_memory(self) -> None:
        """Keep memory that a worker frees, because its next step needs it again.

        By default the C library returns large blocks to the system at once. Fresh pages take a tenth of a CNN step.
        """
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc only
        if mallopt:
            mallopt(M_MMAP_THRESHOLD, 32 << 20)
            mallopt(M_TRIM_THRESHOLD, 256 << 20)

    def close(self) -> None:
        self.pool.close()

    def train(self, jobs: Sequence[TrainJob]) -> list[float]:
        """Train every row from `base` to `trained`. Return the mean training loss of each."""
        raise NotImplementedError

    def score(self, jobs: Sequence[ScoreJob]) -> list[Score]:
        """Return the score of each job's model."""
        raise NotImplementedError

    def recalibrate(self, jobs: Sequence[TrainJob]) -> None:
        """Re-estimate the BatchNorm statistics of every row from the samples of its node, if the model has any."""

    def samples(self, job: ScoreJob) -> tuple[Samples, Tensor | None]:
        """Return the dataset of a job and the indices of its samples (None: all)."""
        member = self.members[job.run]
        if job.batch is not None:
            start = job.batch * self.evaluation_batch
            stop = min(start + self.evaluation_batch, len(member.test))
            return member.test, torch.arange(start, stop, device=self.population.device)
        if not job.local:
            return member.test, None if job.whose is None or member.tests is None else member.tests[job.whose]
        assert job.node is not None
        return member.training.samples, member.local[job.node]

    def state(self, job: ScoreJob) -> Tensor:
        """Return the row of parameters that a job scores."""
        return self.population.mean[job.run] if job.node is None else self.population.base[job.row]


class RowEngine(Engine):
    """Trains one node at a time in each worker. It supports any model. Results do not depend on the pack."""

    name = "rows"

    def __init__(
        self, model: nn.Module, population: Population, members: Sequence[RunData], *, precision: str = "fp32"
    ) -> None:
        super().__init__(model, population, members)
        self.forward_pass: ForwardPass = in_half if precision == "bf16" else nn.Module.__call__

    def train(self, jobs: Sequence[TrainJob]) -> list[float]:
        # the longest jobs first, so that no worker is busy alone at the end
        order = sorted(range(len(jobs)), key=lambda i: -len(self.members[jobs[i].run].shards[jobs[i].node]))
        losses = self.pool.map("train_row", [jobs[i] for i in order])
        return [loss for _, loss in sorted(zip(order, losses, strict=True))]

    def train_row(
        self, row: int, run: int, node: int, round: int, hyper: Hyperparameters, epochs: int | None = None
    ) -> float:
        population, member = self.population, self.members[run]
        training, views, values = member.training, population.layout.views, population.trained[row]
        base_outputs = (
            self._base_outputs(row, member, member.shards[node]) if training.algorithm.uses_base_outputs else None
        )
        values.copy_(population.base[row])
        node_state = NodeTraining(
            self.model,
            point(self.model, views(values), self._buffers(row)),
            [views(matrix[row]) for matrix in population.optimizer_state.values()],
            population.steps[row],
            base_outputs=base_outputs,
            forward_pass=self.forward_pass,
            logit_offset=member.logit_offset(node),
        )
        if not training.algorithm.trains_plainly:
            state = {name: matrix[row] for name, matrix in population.algorithm_state.items()}
            local = LocalStep(training.algorithm, values, population.base[row], state, views)
            node_state = node_state._replace(
                local=local,
                perturbed_model=None if local.perturbed is None else self._perturbed_model(local.perturbed, row),
            )
        id = member.id(node)
        batches = training.batches(member.shards[node], id, round, epochs)
        return train_node(node_state, training, batches, Hyperparameters(*hyper), node=id, round=round)

    def _perturbed_model(self, perturbed: Tensor, row: int) -> tuple[nn.Module, list[nn.Parameter]]:
        """Return a model at another point, with separate statistics, so that a batch updates the node's only once."""
        model = copy.deepcopy(self.model).train()
        buffers = {name: values.clone() for name, values in self._buffers(row).items()}
        return model, point(model, self.population.layout.views(perturbed), buffers)

    def _base_outputs(self, row: int, member: RunData, shard: Tensor) -> Tensor:
        """Return a table over all samples with the base model's outputs for the samples of a shard."""
        samples = member.training.samples
        model = copy.deepcopy(self.model).eval()
        point(model, self.population.layout.views(self.population.base[row]), self._buffers(row))
        table: Tensor | None = None
        with torch.no_grad():
            for batch in shard.split(EVALUATION_BATCH):
                outputs = self.forward_pass(model, samples.inputs(batch))
                table = outputs.new_empty(len(samples), *outputs.shape[1:]) if table is None else table
                table[batch] = outputs
        assert table is not None
        return table

    def score(self, jobs: Sequence[ScoreJob]) -> list[Score]:
        pieces = []
        for number, job in enumerate(jobs):
            samples, chosen = self.samples(job)
            count = len(samples) if chosen is None else len(chosen)
            pieces += [(number, (*job, start)) for start in range(0, count, EVALUATION_BATCH)]
        results: list[Score | None] = [None] * len(jobs)
        for (number, _), score in zip(pieces, self.pool.map("score_piece", [job for _, job in pieces]), strict=True):
            before = results[number]
            results[number] = Score(*score) if before is None else before + Score(*score)
        return [Score(0.0, []) if result is None else result for result in results]

    def score_piece(
        self, row: int, run: int, node: int | None, local: bool, whose: int | None, batch: int | None, start: int
    ) -> tuple[float, list[float]]:
        job = ScoreJob(row, run, node, local, whose, batch)
        member = self.members[run]
        samples, chosen = self.samples(job)
        stop = start + EVALUATION_BATCH
        piece = torch.arange(start, min(stop, len(samples))) if chosen is None else chosen[start:stop]
        targets = samples.targets(piece)
        buffers = self.population.mean_buffers if node is None else self.population.buffers
        index = run if node is None else row
        point(
            self.model,
            self.population.layout.views(self.state(job)),
            {name: values[index] for name, values in buffers.items()},
        )
        self.model.eval()
        with torch.no_grad():
            outputs = self.forward_pass(self.model, samples.inputs(piece))
            loss = float(member.training.loss(outputs, targets).double()) * len(targets)
        return loss, tally(outputs, targets, member.classes).tolist()

    def recalibrate(self, jobs: Sequence[TrainJob]) -> None:
        if self.population.buffers:
            self.pool.map("recalibrate_row", [(job.row, job.run, job.node) for job in jobs])

    def recalibrate_row(self, row: int, run: int, node: int) -> None:
        member = self.members[run]
        point(self.model, self.population.layout.views(self.population.base[row]), self._buffers(row))
        recalibrate_statistics(self.model, member.shards[node], member.training.samples.inputs, self.forward_pass)

    def _buffers(self, row: int) -> dict[str, Tensor]:
        return {name: values[row] for name, values in self.population.buffers.items()}


def recalibrate_statistics(
    model: nn.Module, shard: Tensor, inputs: Callable[[Tensor], Tensor], forward_pass: ForwardPass = nn.Module.__call__
) -> None:
    """Set the running statistics of every normalisation module to the mean over one pass of a node's samples."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._NormBase) and m.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    model.eval()  # all modules except the norms: statistics match evaluation, without dropout
    for norm in norms:
        norm.train()
        norm.reset_running_stats()
        norm.momentum = None  # the cumulative mean over the pass
    with torch.no_grad():
        # batches of nearly equal size: each has the same weight, and none is a single sample without a variance
        for batch in shard.tensor_split(-(-len(shard) // EVALUATION_BATCH)):
            forward_pass(model, inputs(batch))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


__all__ = ["Engine", "Loss", "RowEngine", "RunData", "Score", "ScoreJob", "TrainJob", "recalibrate_statistics", "tally"]
