"""Train identical runs of a pack once and share the result.

Rate rules that differ only after warm-up have the same models until then. Runs that differ only in how they treat
BatchNorm's running statistics have the same parameters throughout, because training does not read these statistics.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set

import torch
from torch import Tensor, nn

from feda2l.engines.engine import Engine
from feda2l.round.population import is_batch_count
from feda2l.round.run import LiveRun, TrainJob

Alike = Callable[[LiveRun, LiveRun], bool]


class IdenticalRuns:
    """The families of runs that have trained identically so far. Runs that differ once stay apart: families only split.

    If an engine guarantees its bits, the runs of a family are equal to the bit, statistics included. With other engines
    running statistics may differ. A step computes r <- (1 - m) r + m s, where s does not depend on r, so a difference d
    becomes (1 - m)^n d after n steps.
    """

    def __init__(self, engine: Engine, runs: Sequence[LiveRun]) -> None:
        self.engine = engine
        self.left = {} if engine.repeats else shares_left(engine.model)
        self.families = _split(runs, _same_settings)

    def train(
        self, jobs: Mapping[int, Sequence[TrainJob]], train: Callable[[list[TrainJob]], list[float]]
    ) -> dict[int, list[float]]:
        """Train a round's jobs by run: the first run of each family trains, the others copy it; return the losses."""
        self.families = self._parts(jobs.keys(), lambda one, other: self._same_step(one, other, jobs))
        lead = {run.number: family[0].number for family in self.families for run in family}
        leads = [number for number in jobs if lead[number] == number]
        followers = [number for number in jobs if lead[number] != number]
        buffers = self.engine.population.buffers
        # differences between the statistics of followers and of their leads
        apart = {
            (number, name): buffers[name][_rows(jobs[number])] - buffers[name][_rows(jobs[lead[number]])]
            for number in followers
            for name in self.left
        }
        trained = iter(train([job for number in leads for job in jobs[number]]))
        losses = {number: [next(trained) for _ in jobs[number]] for number in leads}
        for number in followers:
            self._follow(jobs[lead[number]], jobs[number], {name: apart[number, name] for name in self.left})
            losses[number] = losses[lead[number]]
        return losses

    def holding(self, runs: Sequence[LiveRun]) -> dict[int, LiveRun]:
        """For each of these runs, by number, return the first run with the same models and scores."""
        parts = self._parts({run.number for run in runs}, self._same_scores)
        # a completed run is in no family
        return {run.number: run for run in runs} | {run.number: part[0] for part in parts for run in part}

    def _parts(self, numbers: Set[int], is_same: Alike) -> list[list[LiveRun]]:
        """Return the families restricted to the runs with these numbers, each split into identical runs."""
        families = [[run for run in family if run.number in numbers] for family in self.families]
        return [part for family in families for part in _split(family, is_same)]

    def _same_step(self, one: LiveRun, other: LiveRun, jobs: Mapping[int, Sequence[TrainJob]]) -> bool:
        """Return whether the coming round's training is identical: the same steps from the same state."""
        # all fields but the row and the run
        if [job[2:] for job in jobs[one.number]] != [job[2:] for job in jobs[other.number]]:
            return False
        population = self.engine.population
        state = (
            population.base,
            population.steps,
            *population.optimizer_state.values(),
            *population.algorithm_state.values(),
        )
        # an algorithm that uses the base model's outputs reads its statistics
        free = {} if one.plan.algorithm.uses_base_outputs else self.left
        read = [values for name, values in population.buffers.items() if name not in free]
        return _equal(one, other, (*state, *read))

    def _same_scores(self, one: LiveRun, other: LiveRun) -> bool:
        scored = [(run.plan.on, list(run.counted), run.compared.same) for run in (one, other)]
        return scored[0] == scored[1] and _equal_lists(one.state.models(), other.state.models())

    def _follow(self, leading: Sequence[TrainJob], following: Sequence[TrainJob], apart: Mapping[str, Tensor]) -> None:
        population, members = self.engine.population, self.engine.members
        source, target = _rows(leading), _rows(following)
        for matrix in (
            population.trained,
            population.steps,
            *population.optimizer_state.values(),
            *population.buffers.values(),
        ):
            matrix[target] = matrix[source]
        shards = [members[job.run].shards[job.node] for job in following]
        steps = [members[job.run].training.steps(len(shard)) for job, shard in zip(following, shards, strict=True)]
        for name, difference in apart.items():
            shares = torch.tensor([self.left[name] ** count for count in steps]).to(difference)
            population.buffers[name][target] += shares.view(-1, *(1,) * (difference.dim() - 1)) * difference


def shares_left(model: nn.Module) -> dict[str, float]:
    """Return the share of each running statistic that a training step keeps, 1 - momentum; 1 for the batch count.

    Only torch's own BatchNorm in training mode is covered. A subclass or a module in eval mode may read its statistics
    while it trains. Statistics that are a plain mean over all batches have no constant share, and other buffers are
    unknown.
    """
    model.train()
    return {name: share for part, module in model.named_modules() for name, share in _left(part, module)}


def _left(part: str, module: nn.Module) -> Iterator[tuple[str, float]]:
    if type(module) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d) or not module.training:
        return
    momentum = module.momentum
    for name, _ in module.named_buffers(prefix=part, recurse=False):
        if isinstance(momentum, float):
            yield name, 1.0 if is_batch_count(name) else 1.0 - momentum


def _split(runs: Sequence[LiveRun], is_same: Alike) -> list[list[LiveRun]]:
    """Split runs into families whose members are like the first one, and keep their order."""
    families: list[list[LiveRun]] = []
    for run in runs:
        family = next((family for family in families if is_same(family[0], run)), None)
        if family is None:
            families.append([run])
        else:
            family.append(run)
    return families


def _same_settings(one: LiveRun, other: LiveRun) -> bool:
    """Return whether two runs train with the same settings and use the same samples for training and scoring."""
    first, second = one.plan.member, other.plan.member
    same = first.training.samples is second.training.samples and first.test is second.test
    return (
        same
        and first.training == second.training
        and (first.ids, first.classes) == (second.ids, second.classes)
        and _equal_lists(first.shards, second.shards)
        and _equal_lists(first.local, second.local)
        and _equal_lists(first.tests or [], second.tests or [])
    )


def _equal_lists(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


def _equal(one: LiveRun, other: LiveRun, matrices: Sequence[Tensor]) -> bool:
    return all(torch.equal(matrix[one.state.rows], matrix[other.state.rows]) for matrix in matrices)


def _rows(jobs: Sequence[TrainJob]) -> list[int]:
    return [job.row for job in jobs]
