"""What a study determines before its runs: one tuned key per cell, and targets. Both are saved beside the trials."""

import json
import math
from dataclasses import dataclass
from typing import Any

from feda2l.errors import RunFailed
from feda2l.records.round_record import known
from feda2l.records.run_folder import RunFolder
from feda2l.spec.spec import Spec
from feda2l.studies.cells import StudyCell, target_of
from feda2l.studies.study import Study, TargetSection, TuneSection
from feda2l.studies.study_folder import Job, StudyFolder


@dataclass(frozen=True)
class Stages:
    """The first stages of a study."""

    study: Study
    folder: StudyFolder

    def trials(self, cell: StudyCell) -> list[Job]:
        """The trials of a cell, one per value of `[tune]`; all cells have the same rounds and start."""
        tune = self.study.tuning
        if tune is None or not cell.tuned:
            return []
        whole = cell.spec(tune.seed)
        rounds = tune.rounds or -(-whole.rounds // 5)
        changes = {
            "rounds": min(rounds, whole.rounds),
            "rates.horizon": whole.rates.horizon or whole.rounds,  # a shorter run keeps its schedule
            "evaluation.on": "global" if whole.data.forecasts else "local",
        }
        return [
            Job(
                cell.spec(tune.seed, name=f"tune-{cell.name}-{value}", **changes, **{tune.key: value}),
                self.folder.stage("tune", cell.name, str(value)),
                cell,
            )
            for value in tune.values
        ]

    def tuned(self, cell: StudyCell) -> dict[str, Any]:
        """The best value of the tuned key, from the folders of the trials."""
        tune = self.study.tuning
        trials = self.trials(cell)
        if tune is None or not trials:
            return {}
        scores = {value: _score(trial, tune) for value, trial in zip(tune.values, trials, strict=True)}
        if not any(math.isfinite(score) for score in scores.values()):
            why = "; ".join(f"{trial.spec.name}: {trial.error()}" for trial in trials)
            raise RunFailed(f"tune: no trial of {cell.name} finished: {why}")
        best = max(tune.values, key=lambda value: scores[value])
        facts = {"key": tune.key, "value": best, "scores": [[value, _known(score)] for value, score in scores.items()]}
        self._keep(self.folder.stage("tune", cell.name), "chosen.json", facts)
        return {tune.key: best}

    def source(self, cell: StudyCell) -> StudyCell:
        """The cell whose run gives the target of a cell."""
        assert self.study.target_from is not None
        source = target_of(cell, self.study.cells, self.study.target_from.cell)
        assert source is not None  # the study has been validated
        return source

    def target_job(self, source: StudyCell, found: dict[str, Any]) -> Job:
        """The run that gives the targets."""
        assert self.study.target_from is not None
        spec = source.spec(self.study.target_from.seed, name=f"target-{source.name}", **found)
        return Job(_without_target(spec), self.folder.stage("target", source.name), source)

    def target(self, job: Job) -> float:
        """A share of the best smoothed accuracy, or the best MSE divided by that share."""
        wanted = self.study.target_from
        assert wanted is not None
        if job.state() != "finished":
            raise RunFailed(f"target_from: {job.spec.name} did not finish: {job.error()}")
        found = _target(job.summary(), wanted)
        self._keep(job.folder, "target.json", {"cell": job.cell.name, "share": wanted.share, "target": found})
        return found

    def _keep(self, folder: RunFolder, name: str, facts: dict[str, Any]) -> None:
        folder.write(folder.path / name, (json.dumps(facts, indent=2) + "\n").encode())


def _without_target(spec: Spec) -> Spec:
    values = spec.model_dump(exclude_unset=True)
    values.get("evaluation", {}).pop("target", None)
    return Spec.parse(values)


def _target(summary: dict[str, Any], wanted: TargetSection) -> float:
    values = summary[summary["metric"]]
    best = float(values["best"] if values["best_smoothed"] is None else values["best_smoothed"])
    return best / wanted.share if summary["metric"] == "mse" else best * wanted.share


def _score(trial: Job, tune: TuneSection) -> float:
    """The score of a trial over its last ten evaluations or rounds; larger is better."""
    summary = trial.summary()
    if trial.state() != "finished":
        return -math.inf
    by = tune.by or ("train_loss" if summary["metric"] == "mse" else "accuracy")
    if by == "accuracy":
        return float(summary[summary["metric"]]["last_10"])
    losses = known(record["train_loss"] for record in trial.folder.read()[-10:])
    return -math.fsum(losses) / len(losses)


def _known(score: float) -> float | None:
    return score if math.isfinite(score) else None
