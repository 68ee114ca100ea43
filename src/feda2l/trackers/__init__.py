"""Trackers send the rounds of a run in progress to TensorBoard, Weights & Biases, MLflow or your own class.

What a run writes to its folder is in `records`.

>>> sorted(TRACKERS)
['mlflow', 'tensorboard', 'wandb']
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from feda2l.errors import FedA2LError
from feda2l.names import look_up
from feda2l.records.round_record import TimedRecord

if TYPE_CHECKING:
    from feda2l.spec.spec import Spec

__all__ = ["TRACKERS", "MakeTracker", "TimedRecord", "TrackedRun", "Tracker", "TrackerLike", "find_tracker"]

# name: the package that it needs, and our class
TRACKERS = {
    "tensorboard": ("tensorboard", "TensorBoardTracker"),
    "wandb": ("wandb", "WandbTracker"),
    "mlflow": ("mlflow", "MlflowTracker"),
}


@dataclass(frozen=True)
class TrackedRun:
    """A run that a tracker begins to follow, or goes on with."""

    spec: "Spec"  # resolved: every default filled in
    path: Path  # the run folder
    round: int  # rounds that are done already: above 0 for a resumed run
    tracker_state: dict[str, Any]  # the tracker's own, for example an id; kept in the run folder from start to start


class Tracker(Protocol):
    """One run's observer. Whatever it raises is said once and it is dropped; the run goes on.

    `memory["round"]` is the last round it was told. A round is told once: what a resumed run computes again is left
    out, unless `begin` sets `memory["round"]` back.
    """

    def begin(self, run: TrackedRun) -> None:
        """Before the first round, also of a resumed run."""

    def round(self, record: TimedRecord) -> None:
        """After a round: its line of `rounds.jsonl`, and the `seconds` it took; see `feda2l.trackers.figures`."""

    def end(self, summary: Mapping[str, Any]) -> None:
        """After the last round: `summary.json`, or `{"status": "stopped"}` when the run can go on later."""


MakeTracker = Callable[[], Tracker]  # called once a run: a class will do
TrackerLike = str | MakeTracker


def find_tracker(wanted: TrackerLike) -> tuple[str, MakeTracker]:
    """A tracker's name and class, from its name; your own class is named as it is."""
    if not isinstance(wanted, str):
        return getattr(wanted, "__name__", type(wanted).__name__), wanted
    package, kind = look_up(wanted, TRACKERS, "tracker")
    if find_spec(package) is None:
        raise FedA2LError(f"--track {wanted} needs {package}: pip install 'feda2l[{wanted}]'", see="missing-extra")
    make: MakeTracker = getattr(import_module(f"feda2l.trackers.{wanted}"), kind)
    return wanted, make
