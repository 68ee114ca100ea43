"""Synchronous rounds of a pack of runs: train all rows together, then let each run mix within itself."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from feda2l.engines.engine import ERRORS, Engine, Member, Score, ScoreJob, TrainJob
from feda2l.simulate.simulation import Simulation
from feda2l.simulate.twins import Twins

T = TypeVar("T")
Scores = dict[str, list[Score]]  # "global", "mean", "local": of every node


class Completed(NamedTuple):
    """A run's round: its record (None if the run diverged in it) and how many seconds each part took."""

    simulation: Simulation
    record: dict[str, Any] | None
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

    def record(self, simulation: Simulation, losses: list[float], layers: dict[str, Any]) -> dict[str, Any]:
        """What every round records."""
        return make_record(simulation, losses, layers, simulation.disagreement(), simulation.bytes_sent())

    def asks_mean(self, simulation: Simulation) -> bool:
        """Is the mean model scored with the nodes'?"""
        return True

    def add_scores(self, simulation: Simulation, record: dict[str, Any], scores: Scores) -> None:
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

    def evaluate(self, simulation: Simulation) -> dict[str, Any]:
        """The scores of a run's aggregated models as they stand, and the accuracy by class (mean over nodes)."""
        with one_thread():
            simulation.compare()
            scores = self.scores([simulation])[simulation.number]
        record: dict[str, Any] = {"round": simulation.round, "nodes": {}}
        self.add_scores(simulation, record, scores)
        if by_class := self.class_accuracy(simulation, scores):
            record["class_accuracy"] = by_class
        return record


def make_record(
    simulation: Simulation, losses: list[float], layers: dict[str, Any], disagreement: Tensor, sent: list[int]
) -> dict[str, Any]:
    """What every round records: losses, disagreement, bytes, multipliers, and the layers' rates and signals.

    Where time is simulated, when each node had completed the round, and when the last one had.
    """
    clock = simulation.clock
    return {
        "round": simulation.round,
        "train_loss": mean(losses),
        "disagreement": float(disagreement.sum()),
        "bytes_sent": sum(sent),
        **({} if clock is None else {"simulated_seconds": clock.seconds}),
        "multiplier_min": simulation.multiplier_range[0],
        "multiplier_max": simulation.multiplier_range[1],
        "multiplier_change": simulation.multiplier_change,
        "nodes": {
            "train_loss": _spread(simulation, losses, simulation.there),
            "bytes_sent": sent,
            **({} if clock is None else {"simulated_seconds": clock.now.tolist()}),
            **simulation.mail(),
        },
        "layers": {"name": [layer.name for layer in simulation.layers], "disagreement": disagreement.tolist()} | layers,
    }


def put_scores(simulation: Simulation, record: dict[str, Any], scores: Scores) -> None:
    """Put an evaluated round's figures into its record: of every node, their mean, of the mean model."""
    member, counted = simulation.member, simulation.counted
    tested = [len(member.test) if member.tests is None else len(member.tests[node]) for node in counted]
    main = "local" if simulation.on == "local" else "global"
    for part, prefix in ((main, ""), *([("local", "local_")] if simulation.on == "both" else [])):
        sizes = tested if part == "global" else [len(member.local[node]) for node in counted]
        found = [_measured(score, size, member.classes) for score, size in zip(scores[part], sizes, strict=True)]
        add_scores(record, prefix, _spread(simulation, found, counted))
    if "mean" in scores:
        asked = zip(scores["mean"], tested, strict=False)  # one score where all nodes share the test set
        found = [_measured(score, size, member.classes) for score, size in asked]
        for name in next(filter(None, found), {}):
            record["mean_model_" + name.removeprefix("test_")] = mean([values[name] for values in found if values])


def add_scores(record: dict[str, Any], prefix: str, found: Sequence[Mapping[str, float] | None]) -> None:
    """Put what was measured at every node into a record, and what it comes to: mean, spread and worst.

    `found` holds nothing for a node that was away or has no sample to be scored on.
    """
    measured = [values for values in found if values]
    if not measured:
        return
    first, *others = measured[0]
    for name in (first, *others):
        record["nodes"][prefix + name] = [values[name] if values else None for values in found]
        record[prefix + name] = mean([values[name] for values in measured])
    values = [values[first] for values in measured]
    record[f"{prefix}{first}_std"] = float(torch.tensor(values, dtype=torch.float64).std(correction=0))
    record[f"{prefix}{first}_worst"] = min(values) if first == "accuracy" else max(values)


def _measured(score: Score, size: int, classes: int | None) -> dict[str, float]:
    """What a score over `size` samples comes to, what matters most first; nothing where there was no sample."""
    if not size:
        return {}
    if classes is not None:
        return {"accuracy": sum(score.tally) / size, "test_loss": score.loss / size}
    errors = {name: total / size for name, total in zip(ERRORS, score.tally, strict=True)}
    return errors | {"test_loss": score.loss / size}


def accuracy_by_class(member: Member, scores: Scores, device: torch.device) -> list[float | None] | None:
    """The accuracy on each class of the test set, the mean over nodes; None for a class that has no sample."""
    if "global" not in scores or member.classes is None:
        return None
    targets = member.test.targets(torch.arange(len(member.test), device=device))
    counts = torch.bincount(targets, minlength=member.classes).tolist()
    right = [mean([score.tally[c] for score in scores["global"]]) for c in range(member.classes)]
    return [hits / n if n else None for hits, n in zip(right, counts, strict=True)]


def _spread(simulation: Simulation, values: Sequence[T], nodes: Sequence[int]) -> list[T | None]:
    """Values of these nodes, by node: None for the others."""
    spread: list[T | None] = [None] * simulation.nodes
    for node, value in zip(nodes, values, strict=True):
        spread[node] = value
    return spread


def mean(values: Sequence[float]) -> float:
    """The mean over nodes of a figure."""
    return math.fsum(values) / len(values)  # exact: plain sums differ between Python versions


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
