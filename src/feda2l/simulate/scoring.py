"""Scores of an evaluated round: which models are scored on which samples, and their place in the record."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from feda2l.engines.engine import Engine, Score, ScoreJob
from feda2l.records.round_record import Evaluation, RoundRecord, update_scores
from feda2l.round.record import add_scores, mean, spread
from feda2l.round.run import ERRORS, LiveRun, RunPlan
from feda2l.simulate.identical_runs import IdenticalRuns

# "global" and "local" have one score per node of the network, None for a node that does not count. "mean" has one score
# of the mean model, or one per node if nodes have their own test samples.
Scores = dict[str, list[Score | None]]


class Scorer(Protocol):
    def scores(self, runs: Sequence[LiveRun]) -> dict[int, Scores]:
        """Return the scores of each run by its number; empty at a process that does not write records."""


class ScoreHere:
    """Scores nodes that are all in this process.

    A model that several nodes or several runs hold is scored once.
    """

    def __init__(self, engine: Engine, identical_runs: IdenticalRuns) -> None:
        self.engine, self.identical_runs = engine, identical_runs

    def scores(self, runs: Sequence[LiveRun], *, mean_model: bool = True) -> dict[int, Scores]:
        """Return the scores of every node that counts and, by default, of their mean model."""
        jobs: dict[ScoreJob, int] = {}
        holding = self.identical_runs.holding(runs)
        wanted = {
            run.number: {
                part: [None if job is None else jobs.setdefault(job, len(jobs)) for job in wanted_jobs]
                for part, wanted_jobs in _jobs(run, mean_model or run.plan.member.tests is not None).items()
            }
            for run in runs
            if holding[run.number] is run
        }
        scores = self.engine.score(list(jobs))
        by_run = {
            number: {
                part: [None if place is None else scores[place] for place in places] for part, places in parts.items()
            }
            for number, parts in wanted.items()
        }
        return {run.number: by_run[holding[run.number].number] for run in runs}


def _jobs(run: LiveRun, mean_model: bool) -> dict[str, list[ScoreJob | None]]:
    """Return the scores to compute for a run."""
    plan, number, same, counted = run.plan, run.number, run.compared.same, list(run.counted)
    tests, jobs = plan.member.tests, dict[str, list[ScoreJob | None]]()

    def of_nodes(listed: Sequence[ScoreJob]) -> list[ScoreJob | None]:
        return spread(plan.nodes, counted, listed)

    if plan.on != "local":
        # nodes with their own test samples are scored on those, even if all hold one model
        whose = [node if tests else None for node in counted]
        global_jobs = [
            ScoreJob(run.start + same[node], number, same[node], local=False, whose=part)
            for node, part in zip(counted, whose, strict=True)
        ]
        mean = (
            global_jobs
            if run.compared.agreed
            else [ScoreJob(number, number, None, local=False, whose=w) for w in whose]
        )
        jobs["global"] = of_nodes(global_jobs)
        if mean_model or run.compared.agreed:
            jobs["mean"] = of_nodes(mean) if tests else list(mean[:1])
    if plan.on != "global":
        jobs["local"] = of_nodes([ScoreJob(run.start + node, number, node, local=True) for node in counted])
    return jobs


def put_scores(plan: RunPlan, record: RoundRecord | Evaluation, scores: Scores) -> None:
    """Add the scores of an evaluated round to its record: every node's, their mean, and the mean model's."""
    member = plan.member
    shared = [len(member.test)] * plan.nodes
    sizes = {
        "global": shared if member.tests is None else list(map(len, member.tests)),
        "local": list(map(len, member.local)),
    }

    def figures(part: str, of: str) -> list[Mapping[str, float] | None]:
        # the mean model has one score if all nodes share the test set
        return [_measured(score, size, member.classes) for score, size in zip(scores[part], sizes[of], strict=False)]

    main = "local" if plan.on == "local" else "global"
    add_scores(record, "", figures(main, main))
    if plan.on == "both":
        add_scores(record, "local_", figures("local", "local"))
    if "mean" in scores:
        measured = [values for values in figures("mean", "global") if values]
        names = measured[0] if measured else {}
        update_scores(
            record, {f"mean_model_{name.removeprefix('test_')}": mean([v[name] for v in measured]) for name in names}
        )


def _measured(score: Score | None, size: int, classes: int | None) -> Mapping[str, float] | None:
    """Return the metrics of a score over `size` samples, the main one first; None without samples."""
    if score is None or not size:
        return None
    if classes is not None:
        return {"accuracy": sum(score.tally) / size, "test_loss": score.loss / size}
    errors = {name: total / size for name, total in zip(ERRORS, score.tally, strict=True)}
    return errors | {"test_loss": score.loss / size}


def accuracy_by_class(run: LiveRun, scores: Scores) -> list[float | None] | None:
    """Return the accuracy on each class of the test set, mean over nodes; None for a class without samples.

    The result is None if it is not measured. A process that does not write records returns `[]`, so that all processes
    know whether it is measured.
    """
    member = run.plan.member
    if member.classes is None or run.plan.on == "local":
        return None
    if not scores:
        return []
    targets = member.test.targets(torch.arange(len(member.test), device=run.state.population.device))
    counts = torch.bincount(targets, minlength=member.classes).tolist()
    tallies = [score.tally for score in scores["global"] if score]
    right = [mean([tally[label] for tally in tallies]) for label in range(member.classes)]
    return [hits / n if n else None for hits, n in zip(right, counts, strict=True)]
