"""Trackers at work beside a run, each kind in a thread of its own, so that none can hurt or hold up the run."""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from feda2l.records.round_record import RoundRecord, TimedRecord
from feda2l.records.round_timings import RoundTimings, total_seconds
from feda2l.trackers import MakeTracker, TrackedRun, Tracker, TrackerLike, find_tracker

if TYPE_CHECKING:
    from feda2l.records.run_folder import RunFolder
    from feda2l.spec.spec import Spec

PATIENCE = 60.0  # seconds that a single call may take, and all that is left to tell when the runs are over
BACKLOG = 10_000  # rounds that a tracker may be behind


class Observers:
    """The trackers of a process, told of every run; without any, nothing happens."""

    def __init__(self, trackers: Sequence[TrackerLike] = (), say: Callable[[str], None] | None = None) -> None:
        self.observers = [Observer(*find_tracker(wanted), say or _say) for wanted in trackers]

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

    def end(self, folder: "RunFolder", summary: Mapping[str, Any]) -> None:
        for observer in self.observers:
            observer.tell(partial(observer.end, folder, summary))

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """No tracker is in the middle of a call: the moment to fork, for a lock that is held then is held forever."""
        with ExitStack() as stack:
            for observer in self.observers:
                if observer.calling.acquire(timeout=0 if observer.dropped else PATIENCE):
                    stack.callback(observer.calling.release)
            yield


class Observer:
    """One kind of tracker, with an instance a run. The run only puts down what to tell; the thread does it."""

    def __init__(self, name: str, make: MakeTracker, say: Callable[[str], None]) -> None:
        self.name, self.make, self.say = name, make, say
        self.followed: dict[RunFolder, tuple[Tracker, TrackedRun]] = {}  # the thread's own
        self.waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(BACKLOG)
        self.calling = threading.Lock()  # held by the thread during a call
        self.since: float | None = None  # when the call that goes on began
        self.failure = ""  # why the thread gave up
        self.dropped = False
        self.thread: threading.Thread | None = None

    # --- the run's side: never waits ---------------------------------------------------------------------------

    def tell(self, call: Callable[[], None] | None) -> None:
        if self.dropped:
            return
        since = self.since
        if self.failure:
            self._drop(self.failure)
        elif since is not None and time.monotonic() - since > PATIENCE:
            self._drop(f"it has not answered for {PATIENCE:.0f} seconds")
        else:
            try:
                self.waiting.put_nowait(call)
            except queue.Full:
                self._drop(f"it is {BACKLOG:,} rounds behind")
        if self.thread is None and not self.dropped:
            self.thread = threading.Thread(target=self._work, name=f"tracker {self.name}", daemon=True)
            self.thread.start()

    def close(self) -> None:
        """Let the tracker come to its end, but not for long."""
        if self.thread is None:
            return
        self.tell(None)
        if not self.dropped:
            self.thread.join(PATIENCE)
            if self.thread.is_alive():
                self._drop(f"the runs are over, and {PATIENCE:.0f} seconds later it is not")
            elif self.failure:
                self._drop(self.failure)

    def _drop(self, why: str) -> None:
        self.dropped = True
        self.say(f"{self.name} no longer tracks: {why}; the run continues without it. See: feda2l explain tracker")

    # --- the thread's side -------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (call := self.waiting.get()) is not None and not self.dropped:
            with self.calling:
                self.since = time.monotonic()
                try:
                    call()
                except BaseException as error:  # of a library or a user's class: it may raise anything
                    words = str(error).strip().splitlines()
                    self.failure = f"{type(error).__name__}: {words[0]}" if words else type(error).__name__
                    return
                self.since = None

    def begin(self, spec: "Spec", folder: "RunFolder", round: int) -> None:
        """Begin, and tell the rounds that were done before anyone tracked them."""
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

    def end(self, folder: "RunFolder", summary: Mapping[str, Any]) -> None:
        if folder in self.followed:  # a pack that failed in its last steps has ended some already
            tracker, run = self.followed.pop(folder)
            tracker.end(summary)
            self._keep(folder, run.tracker_state)

    def _read(self, folder: "RunFolder") -> dict[str, Any]:
        try:
            tracker_state: dict[str, Any] = json.loads(folder.tracker(self.name).read_bytes())
        except (OSError, ValueError):  # none yet
            return {}
        return tracker_state

    def _keep(self, folder: "RunFolder", tracker_state: Mapping[str, Any]) -> None:
        path = folder.tracker(self.name)
        temporary = path.with_name(path.name + ".partial")
        temporary.write_text(json.dumps(tracker_state))
        os.replace(temporary, path)


def timed(record: RoundRecord, timing: RoundTimings) -> TimedRecord:
    """A round's record with the seconds it took."""
    return {**record, "seconds": total_seconds(timing)}


def _say(text: str) -> None:
    print(f"feda2l: {text}", file=sys.stderr, flush=True)
