"""Estimate what a study costs on this machine: from timings in its folder, or from a few measured steps."""

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
LATELY = 20  # timings that give the pace
LARGE = 2e7  # most parameters that a calibration trains
SCORED = 64  # test samples
PACKED = 10  # runs of small models that are measured together


class RoundTime(NamedTuple):
    """Seconds per round of one run on a fully used machine, and how they were found."""

    seconds: float
    how: str


def pace_so_far(jobs: Sequence[Job]) -> RoundTime | None:
    """The pace of the runs of this kind in the folder; None if none of them has started."""
    for job in jobs:
        lines = job.folder.read_timings()[-LATELY:]
        if lines:
            # the runs of a pack train and evaluate together, so they share these seconds
            shared = sum((line.get("train", 0.0) + line.get("evaluate", 0.0)) / line["pack"] for line in lines)
            own = sum(line.get("mix", 0.0) + line.get("adapt", 0.0) for line in lines)
            return RoundTime((shared + own) / len(lines), f"the last {len(lines)} timed rounds of {job.spec.name}")
    return None


def calibrate(specs: Sequence[Spec], data: Loaded) -> RoundTime:
    """Measure the pace of a run from a few steps of the first run's nodes, on the engine that it will use.

    Perceptrons are measured as a pack, as they will run: a second run then costs almost nothing.
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
            engine.train(jobs)  # the first call is slower
            started = time.perf_counter()
            engine.train(jobs)
            trained = time.perf_counter()
            engine.score([ScoreJob(job.row, job.run, job.node, local=False, whose=job.node) for job in jobs])
            ended = time.perf_counter()
    finally:
        engine.close()
    # only some of the nodes of all runs were measured
    alike = len(runs) * nodes / runs[0].live.plan.nodes
    seconds = ((trained - started) * shares.train + (ended - trained) * shares.score) / alike
    return RoundTime(seconds, f"{steps} training steps measured on each of {nodes} nodes, in {_few(runs)}")


class Shares(NamedTuple):
    """How much longer a whole round trains and scores than the measured part."""

    train: float
    score: float


def _cut(run: Assembled, steps: int, scored: int) -> tuple[Assembled, Shares]:
    """Cut a run to a few batches and test samples per node."""
    plan, member = run.live.plan, run.live.plan.member
    training = member.training
    shards = [shard[: training.batch_size * steps] for shard in member.shards]
    test = torch.arange(min(scored, len(member.test)))
    whole = len(member.test) if member.tests is None else sum(map(len, member.tests)) / len(member.tests)
    # on a full graph all nodes hold one model, unless each keeps its own statistics
    one = run.spec.topology.name == "full" and plan.buffers != "local" and member.tests is None
    models = 1 if one else len(shards) + 1
    cut = replace(plan, member=replace(member, shards=shards, tests=[test] * len(shards)))
    count = [sum(training.steps(len(shard)) for shard in own) for own in (member.shards, shards)]
    shares = Shares(count[0] / count[1], whole * models / (len(test) * len(shards)) / run.spec.evaluation.every)
    return replace(run, live=LiveRun(cut, run.live.exchange)), shares


def _few(runs: Sequence[Assembled]) -> str:
    others = len(runs) - 1
    return f"run {runs[0].spec.name}" + f" and {others} other run{'s' * (others > 1)}" * bool(others)


def pack_rows(spec: Spec, run: Assembled) -> int:
    """How many nodes to train as one population: enough to use the machine, few enough for runs to end early."""
    if run.device.type != "cpu":
        return 240  # more are hardly faster; one seed of most studies fits; too large packs are split
    states = 3 + len(OPTIMIZER_STATE[spec.training.optimizer])
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    fits = memory // (4 * Layout.of(run.model).width * states)
    # the nodes of perceptrons train in one kernel; for other models it is enough to keep every worker busy
    wanted = 400 if is_perceptron(run.model) else 2 * max(default_processes(), 1)
    return max(1, min(wanted, fits))


def rounds_of(spec: Spec) -> float:
    """The cost of a run in rounds of FedAvg; a second pass, a teacher or a search before round 1 cost more."""
    algorithm = spec.algorithm.algorithm
    factor = 2.0 if algorithm.ascent else 4 / 3 if algorithm.uses_base_outputs else 1.0
    search = algorithm.rate_search.epochs(spec.data.nodes) if algorithm.rate_search else 0
    return factor * spec.rounds + search / spec.training.epochs


def statement(jobs: Sequence[Job], paces: Sequence[tuple[Sequence[Job], RoundTime | FedA2LError]]) -> list[str]:
    """Describe the cost; `jobs` are the runs that are not finished."""
    rounds = sum(job.spec.rounds - job.rounds_done() for job in jobs)
    lines = [f"to run: {len(jobs)} runs, {rounds:,} rounds"]
    seconds, how = 0.0, []
    for own, pace in paces:
        if isinstance(pace, FedA2LError):
            lines.append(f"time unknown: {pace}")
            continue
        seconds += math.fsum(pace.seconds * max(rounds_of(job.spec) - job.rounds_done(), 0) for job in own)
        how.append(f"{pace.seconds:.3g} s per round from {pace.how}")
    if how:
        lines.append(f"about {duration(seconds)} here ({'; '.join(how)})")
    return lines


def by_kind(jobs: Iterable[Job]) -> list[list[Job]]:
    """Group the jobs that can train as one population, in the order of the first of each group."""
    return grouped(jobs, lambda job: pack_key(job.spec))


def grouped(jobs: Iterable[Job], key: Callable[[Job], Hashable]) -> list[list[Job]]:
    """Group jobs with equal keys, in the order of the first of each group."""
    groups: dict[Hashable, list[Job]] = {}
    for job in jobs:
        groups.setdefault(key(job), []).append(job)
    return list(groups.values())


def _measured_nodes(run: Assembled) -> int:
    return min(run.live.plan.nodes, max(2, int(LARGE) // Layout.of(run.model).width))
