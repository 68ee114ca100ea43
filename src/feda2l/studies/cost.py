"""What a study will cost here, before it starts: from timings in its folder, or from a few measured steps."""

import math
import os
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from feda2l.engines.engine import ScoreJob
from feda2l.engines.stacked import is_perceptron
from feda2l.errors import FedA2LError
from feda2l.round.layout import Layout
from feda2l.round.population import OPTIMIZER_STATE
from feda2l.round.run import LiveRun
from feda2l.runs.assemble import Assembled, assemble, pack_key, populate
from feda2l.runs.datasets import Loaded
from feda2l.simulate.loop import one_thread
from feda2l.spec.spec import Spec
from feda2l.studies.progress_table import duration
from feda2l.studies.study_folder import Job
from feda2l.worker_pool import default_processes

STEPS = 2  # of each node that is measured
LATELY = 20  # timings that tell the pace
LARGE = 2e7  # parameters that a calibration trains at most
SCORED = 64  # test samples
PACKED = 10  # runs of small models that are measured together


class RoundTime(NamedTuple):
    """Seconds of one run's round when the machine is full, and where they come from."""

    seconds: float
    how: str


def pace_so_far(jobs: Sequence[Job]) -> RoundTime | None:
    """The pace of runs of this kind in the folder; None if none has run."""
    for job in jobs:
        lines = job.folder.read_timings()[-LATELY:]
        if lines:
            # a pack's training and evaluation are one time for all of its runs
            shared = sum((line.get("train", 0.0) + line.get("evaluate", 0.0)) / line["pack"] for line in lines)
            own = sum(line.get("mix", 0.0) + line.get("adapt", 0.0) for line in lines)
            return RoundTime((shared + own) / len(lines), f"the last {len(lines)} timed rounds of {job.spec.name}")
    return None


def calibrate(specs: Sequence[Spec], data: Loaded) -> RoundTime:
    """The pace of a run from a few steps of the first one's nodes, on the engine that it will have.

    Perceptrons are measured as the pack that they will be: there a second run costs next to nothing.
    """
    with specs[0].at_fault():
        runs = [assemble(specs[0], data)]
    small = is_perceptron(runs[0].model)
    if small:
        runs += [assemble(spec, data) for spec in specs[1:PACKED]]
    steps, scored = (10 * STEPS, 10 * SCORED) if small else (STEPS, SCORED)
    cut = [_cut(run, steps, scored) for run in runs]
    runs, shares = [run for run, _ in cut], cut[0][1]
    nodes = _measured_nodes(runs[0])
    engine = populate(runs)
    engine.start(specs[0].runtime.workers)
    try:
        with one_thread():
            jobs = [job for run in runs for job in run.live.jobs(run.live.exchange.present(1)[:nodes])]
            engine.train(jobs)  # the first is slower
            started = time.perf_counter()
            engine.train(jobs)
            trained = time.perf_counter()
            engine.score([ScoreJob(job.row, job.run, job.node, local=False, whose=job.node) for job in jobs])
            ended = time.perf_counter()
    finally:
        engine.close()
    # of all the runs' nodes only so many were at work
    alike = len(runs) * nodes / runs[0].live.plan.nodes
    seconds = ((trained - started) * shares.train + (ended - trained) * shares.score) / alike
    return RoundTime(seconds, f"{steps} measured steps of {nodes} nodes of {' and '.join(_few(runs))}")


class Shares(NamedTuple):
    """How much longer a round trains and scores than what is measured."""

    train: float
    score: float


def _cut(run: Assembled, steps: int, scored: int) -> tuple[Assembled, Shares]:
    """The run with a few batches and test samples per node only."""
    plan, member = run.live.plan, run.live.plan.member
    training = member.training
    shards = [shard[: training.batch_size * steps] for shard in member.shards]
    test = torch.arange(min(scored, len(member.test)))
    whole = len(member.test) if member.tests is None else sum(map(len, member.tests)) / len(member.tests)
    # where all average with all, they hold one model, unless each keeps its statistics
    one = run.spec.topology.name == "full" and plan.buffers != "local" and member.tests is None
    models = 1 if one else len(shards) + 1
    cut = replace(plan, member=replace(member, shards=shards, tests=[test] * len(shards)))
    count = [sum(training.steps(len(shard)) for shard in own) for own in (member.shards, shards)]
    shares = Shares(count[0] / count[1], whole * models / (len(test) * len(shards)) / run.spec.evaluation.every)
    return replace(run, live=LiveRun(cut, run.live.exchange)), shares


def _few(runs: Sequence[Assembled]) -> list[str]:
    return [run.spec.name for run in runs[:1]] + [f"{len(runs) - 1} others"] * (len(runs) > 1)


def pack_rows(spec: Spec, run: Assembled) -> int:
    """How many nodes to train as one population: enough to fill the machine, few enough to see runs end."""
    if run.device.type != "cpu":
        return 240  # more are hardly faster; a seed of most studies, whose cells share much; what does not fit is split
    states = 3 + len(OPTIMIZER_STATE[spec.training.optimizer])
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    fits = memory // (4 * Layout.of(run.model).width * states)
    # a perceptron's nodes train in one kernel; others keep every worker busy, and no more is gained
    wanted = 400 if is_perceptron(run.model) else 2 * max(default_processes(), 1)
    return max(1, min(wanted, fits))


def rounds_of(spec: Spec) -> float:
    """A run's cost in rounds of FedAvg: two passes a step, a teacher, a search before round 1."""
    algorithm = spec.algorithm.algorithm
    factor = 2.0 if algorithm.ascent else 4 / 3 if algorithm.uses_base_outputs else 1.0
    search = algorithm.rate_search.epochs(spec.data.nodes) if algorithm.rate_search else 0
    return factor * spec.rounds + search / spec.training.epochs


def statement(jobs: Sequence[Job], paces: Sequence[tuple[Sequence[Job], RoundTime | FedA2LError]]) -> list[str]:
    """The cost in words; `jobs` are those still to run."""
    rounds = sum(job.spec.rounds - job.rounds_done() for job in jobs)
    lines = [f"to run: {len(jobs)} runs, {rounds:,} rounds"]
    seconds, how = 0.0, []
    for own, pace in paces:
        if isinstance(pace, FedA2LError):
            lines.append(f"time unknown: {pace}")
            continue
        seconds += math.fsum(pace.seconds * max(rounds_of(job.spec) - job.rounds_done(), 0) for job in own)
        how.append(f"{pace.seconds:.3g} s a round from {pace.how}")
    if how:
        lines.append(f"about {duration(seconds)} here ({'; '.join(how)})")
    return lines


def by_kind(jobs: Iterable[Job]) -> list[list[Job]]:
    """Jobs that can train as one population, in the order of their first."""
    return grouped(jobs, lambda job: pack_key(job.spec))


def grouped(jobs: Iterable[Job], key: Callable[[Job], Hashable]) -> list[list[Job]]:
    """Jobs of equal keys together, in the order of their first."""
    groups: dict[Hashable, list[Job]] = {}
    for job in jobs:
        groups.setdefault(key(job), []).append(job)
    return list(groups.values())


def _measured_nodes(run: Assembled) -> int:
    return min(run.live.plan.nodes, max(2, int(LARGE) // Layout.of(run.model).width))
