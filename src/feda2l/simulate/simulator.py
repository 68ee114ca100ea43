"""Synchronous rounds of a pack of runs: train all rows together, then let each run mix within itself."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from feda2l.engines.engine import Engine, ScoreJob, TrainJob
from feda2l.records.round_record import Evaluation, LayerRows, RoundRecord
from feda2l.simulate.make_record import Scores, accuracy_by_class, make_record, put_scores
from feda2l.simulate.simulation import Simulation
from feda2l.simulate.twins import Twins


class Completed(NamedTuple):
    """A run's round: its record (None if the run diverged in it) and how many seconds each part took."""

    simulation: Simulation
    record: RoundRecord | None
    seconds: dict[str, float]


class Simulator:
    """Runs that share a model and a data set, as one population."""

    def __init__(self, engine: Engine, simulations: Sequence[Simulation]) -> None:
        self.engine, self.simulations = engine, simulations
        self.twins = Twins(engine, simulations)

    def rounds(self) -> Iterator[list[Completed]]:
        """One list a round of the pack, until no run is active; each run counts its own rounds."""
        while active := [simulation for simulation in self.simulations if simulation.active]:
            with one_thread():
                completed = self._round(active)
            yield completed

    def _round(self, active: list[Simulation]) -> list[Completed]:
        clock = _Clock()
        for simulation in active:
            simulation.rejoin()
        jobs = {simulation.number: simulation.jobs() for simulation in active}
        losses = self.twins.train(jobs, self.train)
        shared = clock.lap()
        completed: list[Completed] = []
        for simulation in active:
            own = losses[simulation.number]
            sigma = simulation.divergence(own)
            adapting = clock.lap()
            if simulation.diverged:
                completed.append(Completed(simulation, None, {"train": shared}))
                continue
            simulation.mix()
            if simulation.buffers == "recalibrate":
                self.engine.recalibrate(jobs[simulation.number])
            simulation.tick()
            mixing = clock.lap()
            layers = simulation.adapt(sigma)
            seconds = {"train": shared, "mix": mixing, "adapt": adapting + clock.lap()}
            simulation.compare()
            record = self.record(simulation, own, layers)
            completed.append(Completed(simulation, record, seconds | {"evaluate": clock.lap()}))
        scores = self.scores([done.simulation for done in completed if done.record and done.simulation.due])
        evaluating = clock.lap()
        for simulation, record_, seconds in completed:
            if record_ and simulation.number in scores:
                self.add_scores(simulation, record_, scores[simulation.number])
                if not simulation.active:
                    simulation.class_accuracy = self.class_accuracy(simulation, scores[simulation.number])
                seconds["evaluate"] += evaluating
        return completed

    # --- what differs where some nodes are elsewhere ---------------------------------------------------------

    def train(self, jobs: Sequence[TrainJob]) -> list[float]:
        """Train these rows; the mean loss of each."""
        return self.engine.train(jobs)

    def record(self, simulation: Simulation, losses: list[float], layers: Mapping[str, LayerRows]) -> RoundRecord:
        """What every round records."""
        return make_record(simulation, losses, layers, simulation.disagreement(), simulation.bytes_sent())

    def asks_mean(self, simulation: Simulation) -> bool:
        """Is the mean model scored with the nodes'?"""
        return True

    def add_scores(self, simulation: Simulation, record: RoundRecord | Evaluation, scores: Scores) -> None:
        """Put an evaluated round's figures into its record."""
        put_scores(simulation, record, scores)

    def class_accuracy(self, simulation: Simulation, scores: Scores) -> list[float | None] | None:
        """The accuracy on each class of the test set, the mean over nodes; None for a class that has no sample."""
        return accuracy_by_class(simulation.member, scores, simulation.population.device)

    # ----------------------------------------------------------------------------------------------------------

    def scores(self, simulations: list[Simulation]) -> dict[int, Scores]:
        """The scores of every node that counts and of their mean model, by run.

        A model that several nodes hold is scored once, and so is one that several runs hold.
        """
        jobs: dict[ScoreJob, int] = {}

        def number(job: ScoreJob) -> int:
            return jobs.setdefault(job, len(jobs))

        wanted: dict[int, dict[str, list[int]]] = {}
        holding = self.twins.holding(simulations)
        for simulation in simulations:
            if holding[simulation.number] is not simulation:
                continue
            run, parts, counted = simulation.number, wanted.setdefault(simulation.number, {}), simulation.counted
            if simulation.on != "local":
                # nodes with test samples of their own answer for those, also where they hold one model
                whose = counted if simulation.member.tests else [None] * len(counted)
                asked = [(simulation.start + simulation.same[node], simulation.same[node]) for node in counted]
                parts["global"] = [
                    number(ScoreJob(row, run, node, local=False, whose=part))
                    for (row, node), part in zip(asked, whose, strict=True)
                ]
                parts["mean"] = parts["global"]
                if not simulation.agreed and not self.asks_mean(simulation):
                    parts["mean"] = []
                elif not simulation.agreed:
                    parts["mean"] = [number(ScoreJob(run, run, None, local=False, whose=part)) for part in whose]
                if not simulation.member.tests:
                    parts["mean"] = parts["mean"][:1]
            if simulation.on != "global":
                parts["local"] = [number(ScoreJob(simulation.start + node, run, node, local=True)) for node in counted]
        scores = self.engine.score(list(jobs))
        found = {run: {key: [scores[i] for i in ids] for key, ids in parts.items()} for run, parts in wanted.items()}
        return {simulation.number: found[holding[simulation.number].number] for simulation in simulations}

    def evaluate(self, simulation: Simulation) -> Evaluation:
        """The scores of a run's aggregated models as they stand, and the accuracy by class (mean over nodes)."""
        with one_thread():
            simulation.compare()
            scores = self.scores([simulation])[simulation.number]
        record: Evaluation = {"round": simulation.round, "nodes": {}}
        self.add_scores(simulation, record, scores)
        if by_class := self.class_accuracy(simulation, scores):
            record["class_accuracy"] = by_class
        return record


class _Clock:
    """Seconds since the last lap."""

    def __init__(self) -> None:
        self.last = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        self.last, passed = now, now - self.last
        return passed


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums are made by one thread, so that their bits do not depend on the machine's number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
