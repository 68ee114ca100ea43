"""Tracker for MLflow. It writes to MLFLOW_TRACKING_URI, or by default to `mlflow.db` in the current folder."""

import logging
import os
import time

from feda2l.plain_values import PlainDict, PlainMapping
from feda2l.trackers import TimedRecord, TrackedRun
from feda2l.trackers.figures import figures, outcome

PARAMETERS = 100  # MLflow accepts at most this many per call
ENDED = {"finished": "FINISHED", "non_finite": "FAILED", "stopped": "KILLED"}
# by default the client retries for many minutes if a server does not answer
HASTE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


class MlflowTracker:
    """One MLflow run per run, in the experiment MLFLOW_EXPERIMENT_NAME (default: feda2l), also after a resume."""

    def begin(self, run: TrackedRun) -> None:
        for name, value in HASTE.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it logs every new table
        self.client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db"))
        if (known := run.tracker_state.get("id")) is not None:
            self.id = known
            self.client.update_run(self.id, status="RUNNING")
            return
        self.id = run.tracker_state["id"] = self._new_run(run.spec.name)
        parameters = [Param(key, str(value)) for key, value in _flat(run.spec.model_dump(exclude_none=True)).items()]
        for first in range(0, len(parameters), PARAMETERS):
            self.client.log_batch(self.id, params=parameters[first : first + PARAMETERS])

    def round(self, record: TimedRecord) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(key, value, now, record["round"]) for key, value in figures(record).items()]
        self.client.log_batch(self.id, metrics=metrics)

    def end(self, summary: PlainMapping) -> None:
        results = outcome(summary)
        status = results.pop("status")
        for key, value in results.items():
            self.client.log_metric(self.id, key, value)
        self.client.set_terminated(self.id, ENDED[status])

    def _new_run(self, name: str) -> str:
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "feda2l")
        existing = self.client.get_experiment_by_name(title)
        experiment = existing.experiment_id if existing else self.client.create_experiment(title)
        identity: str = self.client.create_run(experiment, run_name=name).info.run_id
        return identity


def _flat(values: PlainMapping) -> PlainDict:
    """Flatten a spec to keys as in `--set`: section.key."""
    flat: PlainDict = {}
    for key, value in values.items():
        flat |= {f"{key}.{inner}": item for inner, item in value.items()} if isinstance(value, dict) else {key: value}
    return flat
