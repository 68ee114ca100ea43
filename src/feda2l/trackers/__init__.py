"""Trackers send the rounds of a run in progress to TensorBoard, Weights & Biases, MLflow or your own class.

Package `records` describes the files that a run writes to its own folder.

>>> sorted(TRACKERS)
['mlflow', 'tensorboard', 'wandb']
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from feda2l.errors import FedA2LError
from feda2l.names import look_up
from feda2l.plain_values import PlainDict, PlainMapping
from feda2l.records.round_record import TimedRecord

if TYPE_CHECKING:
    from feda2l.spec.spec import Spec

__all__ = ["TRACKERS", "MakeTracker", "TimedRecord", "TrackedRun", "Tracker", "TrackerLike", "find_tracker"]

# name: (required package, tracker class)
TRACKERS = {
    "tensorboard": ("tensorboard", "TensorBoardTracker"),
    "wandb": ("wandb", "WandbTracker"),
    "mlflow": ("mlflow", "MlflowTracker"),
}


@dataclass(frozen=True)
class TrackedRun:
    """A run that a tracker starts or resumes to follow."""

    spec: "Spec"  # resolved: every default filled in
    path: Path  # the run folder
    round: int  # number of rounds already completed; above 0 for a resumed run
    tracker_state: PlainDict  # private state of the tracker, such as an id; saved in the run folder


class Tracker(Protocol):
    """Interface of a tracker of one run. If it raises, one message is printed, the tracker stops and the run continues.

    `tracker_state["round"]` is the last round that the tracker received. Each round is sent once: rounds that a
    resumed run computes again are skipped, unless `begin` lowers `tracker_state["round"]`.
    """

    def begin(self, run: TrackedRun) -> None:
        """Called before the first round, also when a run resumes."""

    def round(self, record: TimedRecord) -> None:
        """Called after a round with its line of `rounds.jsonl` plus its `seconds`; see `feda2l.trackers.figures`."""

    def end(self, summary: PlainMapping) -> None:
        """Called after the last round with `summary.json`, or with `{"status": "stopped"}` if the run can resume."""


MakeTracker = Callable[[], Tracker]  # called once per run, for example a class
TrackerLike = str | MakeTracker


def find_tracker(wanted: TrackerLike) -> tuple[str, MakeTracker]:
    """Return the name and the class of a tracker, given its name or your own class."""
    if not isinstance(wanted, str):
        return getattr(wanted, "__name__", type(wanted).__name__), wanted
    package, kind = look_up(wanted, TRACKERS, "tracker")
    if find_spec(package) is None:
        raise FedA2LError(f"--track {wanted} needs {package}; run pip install 'feda2l[{wanted}]'", see="missing-extra")
    make: MakeTracker = getattr(import_module(f"feda2l.trackers.{wanted}"), kind)
    return wanted, make
