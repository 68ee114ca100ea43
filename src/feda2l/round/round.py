"""One round of Algorithm 1, in its order. The simulator, the ranks and the peers all call `play_round`."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from feda2l.equations import Signals
from feda2l.records.round_record import RoundRecord
from feda2l.round.adapt import adapt, first_non_finite
from feda2l.round.aggregate import aggregate
from feda2l.round.compare import compare
from feda2l.round.record import make_record
from feda2l.round.run import LiveRun, TrainJob


class Turn(NamedTuple):
    """A run and the nodes that take part in its coming round."""

    run: LiveRun
    nodes: Sequence[int]


class Completed(NamedTuple):
    """A completed round of a run: its record (None if a value became non-finite) and the seconds of each part."""

    run: LiveRun
    record: RoundRecord | None
    seconds: dict[str, float]


class Trainer(Protocol):
    """Trains the rows of a population in place."""

    def train(self, jobs: Mapping[int, Sequence[TrainJob]]) -> Mapping[int, list[float]]:
        """Train base -> trained for the jobs of each run; return the mean training loss of each job, by run."""

    def recalibrate(self, jobs: Sequence[TrainJob]) -> None:
        """Re-estimate the normalization statistics from each node's own samples."""


def play_round(turns: Sequence[Turn], trainer: Trainer) -> list[Completed]:
    """Play one round: local training, divergence, exchange and aggregation, stability, new rates, record.

    The runs of a pack train together; then each mixes its own nodes. Nodes that do not take part do not change.
    """
    lap = stopwatch()
    completed: list[Completed] = []
    for run, nodes in turns:
        run.exchange.begin(run, nodes)
    jobs = {run.number: run.jobs(nodes) for run, nodes in turns}
    losses = trainer.train(jobs)  # line 4: B -> T
    training = lap()
    for run, nodes in turns:
        state, loss = run.state, losses[run.number]
        # the signals are lines 8 to 10; divergence is measured before aggregation overwrites B with A
        divergence = run.reductions.divergence(state.base, state.trained)
        movement = run.reductions.movement(state.base, state.trained) if run.plan.rule.measure.movement else None
        run.non_finite = first_non_finite(run, nodes, loss, divergence)
        adapting = lap()
        if run.non_finite:
            completed.append(Completed(run, None, {"train": training}))
            continue
        jumped = not aggregate(run, nodes)  # lines 5 to 7: T -> A
        if run.plan.buffers == "recalibrate":
            trainer.recalibrate(jobs[run.number])
        run.exchange.end(run, nodes)
        mixing = lap()
        stability = run.reductions.stability(state.trained, state.base)
        adapted = adapt(run, nodes, Signals(divergence, stability, movement), jumped=jumped)  # lines 11 to 16
        adapting += lap()
        compare(run)
        record = make_record(run, nodes, loss, adapted)
        seconds = {"train": training, "mix": mixing, "adapt": adapting, "evaluate": lap()}
        completed.append(Completed(run, record, seconds))
    return completed


def stopwatch() -> Callable[[], float]:
    """Return a function that returns the seconds since its last call."""
    last = time.perf_counter()

    def lap() -> float:
        nonlocal last
        before, last = last, time.perf_counter()
        return last - before

    return lap
