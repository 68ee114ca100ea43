"""Run each kind of tracker in its own thread, so that a tracker can neither break nor delay the run."""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Self

from feda2l.plain_values import PlainDict, PlainMapping
from feda2l.records.round_record import RoundRecord, TimedRecord
from feda2l.records.round_timings import RoundTimings, total_seconds
from feda2l.trackers import MakeTracker, TrackedRun, Tracker, TrackerLike, find_tracker

if TYPE_CHECKING:
    from feda2l.records.run_folder import RunFolder
    from feda2l.spec.spec import Spec

PATIENCE = 60.0  # seconds allowed for a single call, and for all remaining calls after the runs have ended
BACKLOG = 10_000  # maximum number of rounds that a tracker may be behind


class Observers:
    """All trackers of a process. Each tracker receives every run."""

    def __init__(self, trackers: Sequence[TrackerLike] = (), print_note: Callable[[str], None] | None = None) -> None:
        self.observers = [TrackerThread(*find_tracker(wanted), print_note or _print) for wanted in trackers]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for observer in self.observers:
            observer.close()

    def begin(self, spec: "Spec", folder: "RunFolder", round: int) -> None:
        for observer in self.observers:
            observer.tell(partial(observer.begin, spec, folder, round))

    def round(self, folder: "RunFolder", record: RoundRecord, timing: RoundTimings) -> None:
        for observer in self.observers:
            observer.tell(partial(observer.round, folder, timed(record, timing)))

    def end(self, folder: "RunFolder", summary: PlainMapping) -> None:
        for observer in self.observers:
            observer.tell(partial(observer.end, folder, summary))

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Context in which no tracker is inside a call. Fork only here: a lock that is held at a fork stays locked."""
        with ExitStack() as stack:
            for observer in self.observers:
                if observer.calling.acquire(timeout=0 if observer.dropped else PATIENCE):
                    stack.callback(observer.calling.release)
            yield


class TrackerThread:
    """One kind of tracker, with one instance per run. The run only queues calls; a thread executes them."""

    def __init__(self, name: str, make: MakeTracker, print_note: Callable[[str], None]) -> None:
        self.name, self.make, self.print_note = name, make, print_note
        self.followed: dict[RunFolder, tuple[Tracker, TrackedRun]] = {}  # used by the thread only
        self.waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(BACKLOG)
        self.calling = threading.Lock()  # held by the thread during a call
        self.since: float | None = None  # start time of the call in progress
        self.failure = ""  # why the thread stopped
        self.dropped = False
        self.thread: threading.Thread | None = None

    # --- called by the run: never waits ------------------------------------------------------------------------

    def tell(self, call: Callable[[], None] | None) -> None:
        if self.dropped:
            return
        since = self.since
        if self.failure:
            self._drop(self.failure)
        elif since is not None and time.monotonic() - since > PATIENCE:
            self._drop(f"no response for {PATIENCE:.0f} seconds")
        else:
            try:
                self.waiting.put_nowait(call)
            except queue.Full:
                self._drop(f"it is {BACKLOG:,} rounds behind")
        if self.thread is None and not self.dropped:
            self.thread = threading.Thread(target=self._work, name=f"tracker {self.name}", daemon=True)
            self.thread.start()

    def close(self) -> None:
        """Wait until the tracker has processed its queue, for at most `PATIENCE` seconds."""
        if self.thread is None:
            return
        self.tell(None)
        if not self.dropped:
            self.thread.join(PATIENCE)
            if self.thread.is_alive():
                self._drop(f"it did not finish within {PATIENCE:.0f} seconds after the runs")
            elif self.failure:
                self._drop(self.failure)

    def _drop(self, why: str) -> None:
        self.dropped = True
        self.print_note(
            f"tracker {self.name} stopped: {why}; the run continues without it. See: feda2l explain tracker"
        )

    # --- called by the thread ----------------------------------------------------------------------------------

    def _work(self) -> None:
        while (call := self.waiting.get()) is not None and not self.dropped:
            with self.calling:
                self.since = time.monotonic()
                try:
                    call()
                except BaseException as error:  # a library or a user's class may raise anything
                    lines = str(error).strip().splitlines()
                    self.failure = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
                    return
                self.since = None

    def begin(self, spec: "Spec", folder: "RunFolder", round: int) -> None:
        """Start to track a run, and send the rounds that were completed before the tracker was added."""
        run = TrackedRun(spec, folder.path, round, self._read(folder))
        tracker = self.make()
        tracker.begin(run)
        self.followed[folder] = tracker, run
        self._keep(folder, run.tracker_state)
        if run.tracker_state.get("round", 0) < round:
            for record, timing in zip(folder.read()[:round], folder.read_timings(), strict=False):
                self.round(folder, timed(record, timing))

    def round(self, folder: "RunFolder", record: TimedRecord) -> None:
        tracker, run = self.followed[folder]
        if record["round"] > run.tracker_state.get("round", 0):
            tracker.round(record)
            run.tracker_state["round"] = record["round"]
            self._keep(folder, run.tracker_state)

    def end(self, folder: "RunFolder", summary: PlainMapping) -> None:
        if folder in self.followed:  # a pack that failed during its end may have ended some runs already
            tracker, run = self.followed.pop(folder)
            tracker.end(summary)
            self._keep(folder, run.tracker_state)

    def _read(self, folder: "RunFolder") -> PlainDict:
        try:
            tracker_state: PlainDict = json.loads(folder.tracker(self.name).read_bytes())
        except (OSError, ValueError):  # no file yet
            return {}
        return tracker_state

    def _keep(self, folder: "RunFolder", tracker_state: PlainMapping) -> None:
        path = folder.tracker(self.name)
        temporary = path.with_name(path.name + ".partial")
        temporary.write_text(json.dumps(tracker_state))
        os.replace(temporary, path)


def timed(record: RoundRecord, timing: RoundTimings) -> TimedRecord:
    """Return a round's record with its duration in seconds."""
    return {**record, "seconds": total_seconds(timing)}


def _print(text: str) -> None:
    print(f"feda2l: {text}", file=sys.stderr, flush=True)
