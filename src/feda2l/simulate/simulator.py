"""Synchronous rounds of a pack of runs: train all rows together, then let each run mix within itself."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from feda2l.simulate.engine import Engine, Score, ScoreJob
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
                parts["global"] = [
                    number(ScoreJob(simulation.start + node, run, node, local=False)) for node in simulation.same
                ]
                mean = ScoreJob(run, run, None, local=False)
                parts["mean"] = parts["global"][:1] if simulation.agreed else [number(mean)]
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
    """Put an evaluated round's accuracy and loss into its record: of every node, their mean, of the mean model."""
    nodes = record["nodes"]
    member = simulation.member
    tested = len(member.test.y)
    held = [len(chosen) for chosen in member.local]
    main = "local" if simulation.on == "local" else "global"
    for part, prefix in ((main, ""), *([("local", "local_")] if simulation.on == "both" else [])):
        sizes = [tested] * simulation.nodes if part == "global" else held
        pairs = list(zip(scores[part], sizes, strict=True))
        nodes[f"{prefix}accuracy"] = [sum(score.correct) / size if size else None for score, size in pairs]
        nodes[f"{prefix}test_loss"] = [score.loss / size if size else None for score, size in pairs]
        accuracy = [value for value in nodes[f"{prefix}accuracy"] if value is not None]
        record |= {
            f"{prefix}accuracy": _mean(accuracy),
            f"{prefix}accuracy_std": float(torch.tensor(accuracy, dtype=torch.float64).std(correction=0)),
            f"{prefix}accuracy_worst": min(accuracy),
            f"{prefix}test_loss": _mean([value for value in nodes[f"{prefix}test_loss"] if value is not None]),
        }
    if "mean" in scores:
        record["mean_model_accuracy"] = sum(scores["mean"][0].correct) / tested
        record["mean_model_loss"] = scores["mean"][0].loss / tested


def _class_accuracy(simulation: Simulation, scores: dict[str, list[Score]]) -> list[float | None] | None:
    """The accuracy on each class of the test set, the mean over nodes; None for a class that has no sample."""
    if "global" not in scores:
        return None
    member = simulation.member
    counts = torch.bincount(member.test.y, minlength=member.classes).tolist()
    right = [_mean([score.correct[c] for score in scores["global"]]) for c in range(member.classes)]
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
