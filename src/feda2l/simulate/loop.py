"""The rounds of a pack of runs, until every run is complete."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from feda2l.engines.engine import Engine
from feda2l.records.round_record import Evaluation, update_theory
from feda2l.round.compare import compare
from feda2l.round.round import Completed, Turn, play_round, stopwatch
from feda2l.round.run import LiveRun, TrainJob
from feda2l.simulate.identical_runs import IdenticalRuns
from feda2l.simulate.scoring import ScoreHere, Scorer, accuracy_by_class, put_scores
from feda2l.simulate.theory import estimate_theory

Together = Callable[[Callable[[], list[float]]], list[float]]


class RoundLoop:
    """Trains runs that share a model and a data set as one population.

    `together` calls a function at every process that shares the runs; `scorer` scores the nodes of all processes.
    """

    def __init__(
        self,
        engine: Engine,
        runs: Sequence[LiveRun],
        *,
        together: Together = lambda do: do(),
        scorer: Callable[[ScoreHere], Scorer] = lambda here: here,
    ) -> None:
        self.engine, self.runs, self.together = engine, runs, together
        self.identical_runs = IdenticalRuns(engine, runs)
        self.scorer = scorer(ScoreHere(engine, self.identical_runs))

    def rounds(self) -> Iterator[list[Completed]]:
        """Yield one list per round of the pack until no run is active; each run counts its own rounds."""
        while active := [run for run in self.runs if run.active]:
            with one_thread():
                turns = [Turn(run, run.exchange.present(run.state.round + 1)) for run in active]
                lap = stopwatch()
                theory, seconds = estimate_theory(active, self.engine.model), lap()
                completed = play_round(turns, self)
                for run, record, spent in completed:
                    if record and run.number in theory:
                        update_theory(record, theory[run.number])
                        spent["evaluate"] += seconds
                self._score(completed)
            yield completed

    def train(self, jobs: Mapping[int, Sequence[TrainJob]]) -> Mapping[int, list[float]]:
        """Train the jobs of each run and return the mean loss of each job, by run."""
        return self.identical_runs.train(jobs, lambda group: self.together(lambda: self.engine.train(group)))

    def recalibrate(self, jobs: Sequence[TrainJob]) -> None:
        self.engine.recalibrate(jobs)

    def _score(self, completed: Sequence[Completed]) -> None:
        """Add scores to the records of the runs whose round is evaluated."""
        lap = stopwatch()
        due = [done for done in completed if done.record and done.run.plan.due_in(done.run.state.round)]
        scores = self.scorer.scores([done.run for done in due])
        seconds = lap()
        for run, record, spent in due:
            measured = scores[run.number]
            if measured and record:
                put_scores(run.network_plan, record, measured)
            if not run.active:
                run.class_accuracy = accuracy_by_class(run, measured)
            spent["evaluate"] += seconds

    def evaluate(self, run: LiveRun) -> Evaluation:
        """Score a run's current aggregated models, with the accuracy by class (mean over nodes)."""
        with one_thread():
            compare(run)
            scores = self.scorer.scores([run])[run.number]
        record: Evaluation = {"round": run.state.round, "nodes": {}}
        if scores:
            put_scores(run.network_plan, record, scores)
        if by_class := accuracy_by_class(run, scores):
            record["class_accuracy"] = by_class
        return record


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, so that the bits of sums do not depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
