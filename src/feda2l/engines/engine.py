"""What every engine does: train rows of the population, and score them. `Rows` does it one node at a time."""

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
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>


class ScoreJob(NamedTuple):
    """Score one model: a node's aggregated one, or (node None) the run's mean model, on a set of samples.

    That is the test set, the part of it that belongs to node `whose`, or (`local`) what a node does not train on; of
    the test set the `batch`-th evaluation batch alone, if told.
    """

    row: int
    run: int
    node: int | None
    local: bool
    whose: int | None = None
    batch: int | None = None


class Score(NamedTuple):
    """Sums over samples: of the losses, and of right answers by class or of the `ERRORS` of numbers."""

    loss: float
    tally: list[float]

    def __add__(self, other: object) -> "Score":
        assert isinstance(other, Score)
        return Score(self.loss + other.loss, [a + b for a, b in zip(self.tally, other.tally, strict=True)])


def sample_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """The `ERRORS` of each sample of a batch, [n, 2]."""
    error = (outputs - targets).double().reshape(len(targets), -1)  # a sample may have one number
    return torch.stack([error.square().mean(dim=1), error.abs().mean(dim=1)], dim=1)


def tally(outputs: Tensor, targets: Tensor, classes: int | None) -> Tensor:
    """What a score sums over the samples of a batch: right answers by class, or the `ERRORS` of numbers."""
    if classes is None:
        return sample_errors(outputs, targets).sum(dim=0)
    sums = torch.zeros(classes, dtype=torch.float64, device=targets.device)
    return sums.index_add_(0, targets, (outputs.argmax(dim=-1) == targets).double())


class Engine:
    """The part that engines share; its methods run in the workers, over the population that they inherit."""

    name: str
    repeats = True  # are its bits promised?
    evaluation_batch = EVALUATION_BATCH

    def __init__(self, model: nn.Module, population: Population, members: Sequence[RunData]) -> None:
        self.model, self.population, self.members = model, population, members
        self.pool: Pool = Pool(self, 0)

    def start(self, processes: int | None = None) -> None:
        """Fork the workers, one a core unless told; from here on only the population's matrices carry data to them."""
        processes = default_processes() if processes is None else processes
        self.pool = Pool(self, processes)
        self.pool.map("keep_memory", [()] * processes)  # all are free, so each gets one

    def keep_memory(self) -> None:
        """Keep what a worker frees for its next step, which needs as much again.

        The C library gives large blocks back at once, and then every step pays for fresh pages: a tenth of the CNN's.
        """
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc only
        if mallopt:
            mallopt(M_MMAP_THRESHOLD, 32 << 20)
            mallopt(M_TRIM_THRESHOLD, 256 << 20)

    def close(self) -> None:
        self.pool.close()

    def train(self, jobs: Sequence[TrainJob]) -> list[float]:
        """Train every row, `base` -> `trained`; the mean training loss of each."""
        raise NotImplementedError

    def score(self, jobs: Sequence[ScoreJob]) -> list[Score]:
        """Loss and right answers of every job's model."""
        raise NotImplementedError

    def recalibrate(self, jobs: Sequence[TrainJob]) -> None:
        """Re-estimate the normalisation statistics of every row from its node's own samples; none in most models."""

    def samples(self, job: ScoreJob) -> tuple[Samples, Tensor | None]:
        """The samples of a job and which of them count (None: all)."""
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
        """The row of parameters that a job scores."""
        return self.population.mean[job.run] if job.node is None else self.population.base[job.row]


class Rows(Engine):
    """One node at a time in each worker: any model, and bits that do not depend on what else is trained."""

    name = "rows"

    def __init__(
        self, model: nn.Module, population: Population, members: Sequence[RunData], *, precision: str = "fp32"
    ) -> None:
        super().__init__(model, population, members)
        self.forward_pass: ForwardPass = in_half if precision == "bf16" else nn.Module.__call__

    def train(self, jobs: Sequence[TrainJob]) -> list[float]:
        # the longest first, so that no worker is left alone with one at the end
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
        own = NodeTraining(
            self.model,
            point(self.model, views(values), self._buffers(row)),
            [views(matrix[row]) for matrix in population.optimizer_state.values()],
            population.steps[row],
            base_outputs=base_outputs,
            forward_pass=self.forward_pass,
        )
        if not training.algorithm.trains_plainly:
            state = {name: matrix[row] for name, matrix in population.algorithm_state.items()}
            local = LocalStep(training.algorithm, values, population.base[row], state, views)
            own = own._replace(
                local=local,
                perturbed_model=None if local.perturbed is None else self._perturbed_model(local.perturbed, row),
            )
        id = member.id(node)
        batches = training.batches(member.shards[node], id, round, epochs)
        return train_node(own, training, batches, Hyperparameters(*hyper), node=id, round=round)

    def _perturbed_model(self, perturbed: Tensor, row: int) -> tuple[nn.Module, list[nn.Parameter]]:
        """A model at another point; its statistics are its own, so that a batch counts once in the node's."""
        model = copy.deepcopy(self.model).train()
        buffers = {name: values.clone() for name, values in self._buffers(row).items()}
        return model, point(model, self.population.layout.views(perturbed), buffers)

    def _base_outputs(self, row: int, member: RunData, shard: Tensor) -> Tensor:
        """The base model's outputs for the samples of a shard, in their rows of a table of all samples."""
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
    """Set every normalisation module's running statistics to the mean over one pass of a node's own samples."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._NormBase) and m.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    model.eval()  # all but the norms: the statistics are of what evaluation will see, and nothing is drawn
    for norm in norms:
        norm.train()
        norm.reset_running_stats()
        norm.momentum = None  # the cumulative mean over the pass
    with torch.no_grad():
        # batches as equal as can be: each counts as much, and none is a single sample, which has no variance
        for batch in shard.tensor_split(-(-len(shard) // EVALUATION_BATCH)):
            forward_pass(model, inputs(batch))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


__all__ = ["Engine", "Loss", "Rows", "RunData", "Score", "ScoreJob", "TrainJob", "recalibrate_statistics", "tally"]
