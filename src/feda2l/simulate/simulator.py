"""Synchronous rounds of a pack of runs: train all rows together, then let each run mix within itself."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from feda2l.simulate.engine import ERRORS, Engine, Score, ScoreJob
from feda2l.simulate.simulation import Simulation


class Completed(NamedTuple):
    """A run's round: its record (None if the run diverged in it) and how many seconds each part took."""

    simulation: Simulation
    record: dict[str, Any] | None
    seconds: dict[str, float]


class Simulator:
    """Runs that share a model and a data set, as one population."""

    def __init__(self, engine: Engine, simulations: Sequence[Simulation]) -> None:
        self.engine, self.simulations = engine, simulations

    def rounds(self) -> Iterator[list[Completed]]:
        """One list a round of the pack, until no run is active; each run counts its own rounds."""
        while active := [simulation for simulation in self.simulations if simulation.active]:
            with one_thread():
                completed = self._round(active)
            yield completed

    def _round(self, active: list[Simulation]) -> list[Completed]:
        clock = _Clock()
        jobs = [job for simulation in active for job in simulation.jobs()]
        losses = self.engine.train(jobs)
        shared = clock.lap()
        completed: list[Completed] = []
        position = 0
        for simulation in active:
            own = losses[position : position + simulation.nodes]
            own_jobs = jobs[position : position + simulation.nodes]
            position += simulation.nodes
            sigma = simulation.divergence(own)
            adapting = clock.lap()
            if simulation.diverged:
                completed.append(Completed(simulation, None, {"train": shared}))
                continue
            simulation.mix()
            if simulation.buffers == "recalibrate":
                self.engine.recalibrate(own_jobs)
            mixing = clock.lap()
            layers = simulation.adapt(sigma)
            seconds = {"train": shared, "mix": mixing, "adapt": adapting + clock.lap()}
            simulation.compare()
            record = _record(simulation, own, layers)
            completed.append(Completed(simulation, record, seconds | {"evaluate": clock.lap()}))
        scores = self._evaluate([done.simulation for done in completed if done.record and done.simulation.due])
        evaluating = clock.lap()
        for simulation, record_, seconds in completed:
            if record_ and simulation.number in scores:
                _add_scores(simulation, record_, scores[simulation.number])
                if not simulation.active:
                    simulation.class_accuracy = _class_accuracy(simulation, scores[simulation.number])
                seconds["evaluate"] += evaluating
        return completed

    def _evaluate(self, simulations: list[Simulation]) -> dict[int, dict[str, list[Score]]]:
        """The scores of every node and of the mean model, by run; a model that several nodes hold is scored once."""
        jobs: dict[ScoreJob, int] = {}

        def number(job: ScoreJob) -> int:
            return jobs.setdefault(job, len(jobs))

        wanted: dict[int, dict[str, list[int]]] = {}
        for simulation in simulations:
            run, parts = simulation.number, wanted.setdefault(simulation.number, {})
            if simulation.on != "local":
                # nodes with test samples of their own answer for those, also where they hold one model
                whose = range(simulation.nodes) if simulation.member.tests else [None] * simulation.nodes
                asked = [(simulation.start + node, node) for node in simulation.same]
                parts["global"] = [
                    number(ScoreJob(row, run, node, local=False, whose=part))
                    for (row, node), part in zip(asked, whose, strict=True)
                ]
                parts["mean"] = parts["global"]
                if not simulation.agreed:
                    parts["mean"] = [number(ScoreJob(run, run, None, local=False, whose=part)) for part in whose]
                if not simulation.member.tests:
                    parts["mean"] = parts["mean"][:1]
            if simulation.on != "global":
                parts["local"] = [
                    number(ScoreJob(simulation.start + node, run, node, local=True)) for node in range(simulation.nodes)
                ]
        scores = self.engine.score(list(jobs))
        return {run: {key: [scores[i] for i in ids] for key, ids in parts.items()} for run, parts in wanted.items()}

    def evaluate(self, simulation: Simulation) -> dict[str, Any]:
        """The scores of a run's aggregated models as they stand, and the accuracy by class (mean over nodes)."""
        with one_thread():
            simulation.compare()
            scores = self._evaluate([simulation])[simulation.number]
        record: dict[str, Any] = {"round": simulation.round, "nodes": {}}
        _add_scores(simulation, record, scores)
        if by_class := _class_accuracy(simulation, scores):
            record["class_accuracy"] = by_class
        return record


def _record(simulation: Simulation, losses: list[float], layers: dict[str, Any]) -> dict[str, Any]:
    """What every round records: losses, disagreement, bytes, multipliers, and the layers' rates and signals."""
    disagreement, sent = simulation.disagreement(), simulation.bytes_sent()
    return {
        "round": simulation.round,
        "train_loss": _mean(losses),
        "disagreement": float(disagreement.sum()),
        "bytes_sent": sum(sent),
        "multiplier_min": simulation.multiplier_range[0],
        "multiplier_max": simulation.multiplier_range[1],
        "multiplier_change": simulation.multiplier_change,
        "nodes": {"train_loss": losses, "bytes_sent": sent},
        "layers": {"name": [layer.name for layer in simulation.layers], "disagreement": disagreement.tolist()} | layers,
    }


def _add_scores(simulation: Simulation, record: dict[str, Any], scores: dict[str, list[Score]]) -> None:
    """Put an evaluated round's figures into its record: of every node, their mean, of the mean model."""
    nodes = record["nodes"]
    member = simulation.member
    tested = [len(member.test)] * simulation.nodes if member.tests is None else [len(own) for own in member.tests]
    held = [len(chosen) for chosen in member.local]
    main = "local" if simulation.on == "local" else "global"
    for part, prefix in ((main, ""), *([("local", "local_")] if simulation.on == "both" else [])):
        sizes = tested if part == "global" else held
        found = [_measured(score, size, member.classes) for score, size in zip(scores[part], sizes, strict=True)]
        first, *others = next(filter(None, found))
        for name in (first, *others):
            nodes[prefix + name] = [values[name] if values else None for values in found]
            record[prefix + name] = _mean([values[name] for values in found if values])
        values = [values[first] for values in found if values]
        record[f"{prefix}{first}_std"] = float(torch.tensor(values, dtype=torch.float64).std(correction=0))
        record[f"{prefix}{first}_worst"] = min(values) if first == "accuracy" else max(values)
    if "mean" in scores:
        asked = zip(scores["mean"], tested, strict=False)  # one score where all nodes share the test set
        found = [_measured(score, size, member.classes) for score, size in asked]
        for name in next(filter(None, found)):
            record["mean_model_" + name.removeprefix("test_")] = _mean([values[name] for values in found if values])


def _measured(score: Score, size: int, classes: int | None) -> dict[str, float]:
    """What a score over `size` samples comes to, what matters most first; nothing where there was no sample."""
    if not size:
        return {}
    if classes is not None:
        return {"accuracy": sum(score.tally) / size, "test_loss": score.loss / size}
    errors = {name: total / size for name, total in zip(ERRORS, score.tally, strict=True)}
    return errors | {"test_loss": score.loss / size}


def _class_accuracy(simulation: Simulation, scores: dict[str, list[Score]]) -> list[float | None] | None:
    """The accuracy on each class of the test set, the mean over nodes; None for a class that has no sample."""
    member = simulation.member
    if "global" not in scores or member.classes is None:
        return None
    device = simulation.population.device
    targets = member.test.targets(torch.arange(len(member.test), device=device))
    counts = torch.bincount(targets, minlength=member.classes).tolist()
    right = [_mean([score.tally[c] for score in scores["global"]]) for c in range(member.classes)]
    return [hits / n if n else None for hits, n in zip(right, counts, strict=True)]


def _mean(values: Sequence[float]) -> float:
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
