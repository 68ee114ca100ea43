"""Runs of a pack that train a round alike: one of them trains, the others take over what it came to.

Rules that part after their warm-up hold the same models until then, and runs that treat BatchNorm's running statistics
differently hold the same parameters for ever, since training does not read them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set

import torch
from torch import Tensor, nn

from feda2l.engines.engine import Engine
from feda2l.round.population import is_batch_count
from feda2l.round.run import LiveRun, TrainJob

Alike = Callable[[LiveRun, LiveRun], bool]


class Twins:
    """The families of runs that have trained alike so far. Those that part do not meet again: families only split.

    Where an engine's bits are promised, twins are equal to the bit, statistics included. Elsewhere running statistics
    may differ: a step makes r <- (1 - m) r + m s of them, where s does not depend on r, so that after n steps two that
    began d apart are (1 - m)^n d apart.
    """

    def __init__(self, engine: Engine, runs: Sequence[LiveRun]) -> None:
        self.engine = engine
        self.left = {} if engine.repeats else shares_left(engine.model)
        self.families = _split(runs, _told_alike)

    def train(
        self, jobs: Mapping[int, Sequence[TrainJob]], train: Callable[[list[TrainJob]], list[float]]
    ) -> dict[int, list[float]]:
        """Train a round's jobs, given by run: the first of each family trains, the others follow; the losses."""
        self.families = self._parts(jobs.keys(), lambda one, other: self._alike(one, other, jobs))
        lead = {run.number: family[0].number for family in self.families for run in family}
        leads = [number for number in jobs if lead[number] == number]
        followers = [number for number in jobs if lead[number] != number]
        buffers = self.engine.population.buffers
        # what the followers' statistics were beside their leads', where they may differ
        apart = {
            (number, name): buffers[name][_rows(jobs[number])] - buffers[name][_rows(jobs[lead[number]])]
            for number in followers
            for name in self.left
        }
        found = iter(train([job for number in leads for job in jobs[number]]))
        losses = {number: [next(found) for _ in jobs[number]] for number in leads}
        for number in followers:
            self._follow(jobs[lead[number]], jobs[number], {name: apart[number, name] for name in self.left})
            losses[number] = losses[lead[number]]
        return losses

    def holding(self, runs: Sequence[LiveRun]) -> dict[int, LiveRun]:
        """For each of these runs, by number, the first one that holds the same models and is asked the same."""
        parts = self._parts({run.number for run in runs}, self._asked_alike)
        # a run that has come to its end is in no family
        return {run.number: run for run in runs} | {run.number: part[0] for part in parts for run in part}

    def _parts(self, numbers: Set[int], alike: Alike) -> list[list[LiveRun]]:
        """The families, of those runs alone that have these numbers, each split into what is alike."""
        families = [[run for run in family if run.number in numbers] for family in self.families]
        return [part for family in families for part in _split(family, alike)]

    def _alike(self, one: LiveRun, other: LiveRun, jobs: Mapping[int, Sequence[TrainJob]]) -> bool:
        """Will the coming round's training be the same: the same steps from the same state?"""
        # all but the row and the run
        if [job[2:] for job in jobs[one.number]] != [job[2:] for job in jobs[other.number]]:
            return False
        population = self.engine.population
        state = (
            population.base,
            population.steps,
            *population.optimizer_state.values(),
            *population.algorithm_state.values(),
        )
        # who asks its base model for advice asks it with its statistics
        free = {} if one.plan.algorithm.uses_base_outputs else self.left
        read = [values for name, values in population.buffers.items() if name not in free]
        return _equal(one, other, (*state, *read))

    def _asked_alike(self, one: LiveRun, other: LiveRun) -> bool:
        asked = [(run.plan.on, list(run.counted), run.compared.same) for run in (one, other)]
        return asked[0] == asked[1] and _equal_lists(one.state.models(), other.state.models())

    def _follow(self, leading: Sequence[TrainJob], own: Sequence[TrainJob], apart: Mapping[str, Tensor]) -> None:
        population, members = self.engine.population, self.engine.members
        there, here = _rows(leading), _rows(own)
        for matrix in (
            population.trained,
            population.steps,
            *population.optimizer_state.values(),
            *population.buffers.values(),
        ):
            matrix[here] = matrix[there]
        shards = [members[job.run].shards[job.node] for job in own]
        steps = [members[job.run].training.steps(len(shard)) for job, shard in zip(own, shards, strict=True)]
        for name, difference in apart.items():
            kept = torch.tensor([self.left[name] ** count for count in steps]).to(difference)
            population.buffers[name][here] += kept.view(-1, *(1,) * (difference.dim() - 1)) * difference


def shares_left(model: nn.Module) -> dict[str, float]:
    """What a training step leaves of each running statistic, 1 - momentum; and of the count of batches, all of it.

    Of BatchNorm as it stands, that is: one that a user's model keeps in eval mode, or has changed, may read its
    statistics while it trains; those that are a plain mean over all batches have no such share; and other buffers may
    be anything.
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


def _split(runs: Sequence[LiveRun], alike: Alike) -> list[list[LiveRun]]:
    """Runs in families, each of those that are like its first; in their order."""
    families: list[list[LiveRun]] = []
    for run in runs:
        family = next((family for family in families if alike(family[0], run)), None)
        if family is None:
            families.append([run])
        else:
            family.append(run)
    return families


def _told_alike(one: LiveRun, other: LiveRun) -> bool:
    """Do two runs train with the same settings on the same samples, and are they scored on the same ones?"""
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
