"""Trackers receive every event of a run once, and cannot affect the run."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import feda2l
from feda2l.errors import FedA2LError
from feda2l.trackers import TrackedRun, observers
from run_files import SAME

SPEC = {"name": "small", "rounds": 3, "data": {"nodes": 4}, "runtime": {"workers": 0}}


class Listener:
    """A user tracker that stores all calls by run."""

    received: dict[str, list[Any]]

    def begin(self, run: TrackedRun) -> None:
        self.own = self.received.setdefault(run.path.name, [])
        self.own.append(("begin", run.round, run.tracker_state.setdefault("id", run.spec.name)))

    def round(self, record: Mapping[str, Any]) -> None:
        assert record["seconds"] > 0
        self.own.append(record["round"])

    def end(self, summary: Mapping[str, Any]) -> None:
        self.own.append(("end", summary["status"]))


@pytest.fixture
def listener() -> type[Listener]:
    return type("Listener", (Listener,), {"received": {}})


@pytest.fixture(scope="module")
def untracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return feda2l.run(SPEC, out=tmp_path_factory.mktemp("untracked") / "run", progress=False).path


def track(tracker: Any, out: Path, spec: Mapping[str, Any] = SPEC, **options: Any) -> feda2l.Run:
    return feda2l.run(spec, out=out, trackers=[tracker], progress=False, **options)


def same_bytes(a: Path, b: Path) -> bool:
    return all((a / name).read_bytes() == (b / name).read_bytes() for name in SAME)


def test_a_tracker_receives_start_rounds_and_end(listener: type[Listener], untracked: Path, tmp_path: Path) -> None:
    done = track(listener, tmp_path / "run")
    assert listener.received == {"run": [("begin", 0, "small"), 1, 2, 3, ("end", "finished")]}
    assert same_bytes(done.path, untracked)


def test_each_packed_run_has_its_own_tracker(listener: type[Listener], tmp_path: Path) -> None:
    feda2l.run(
        [SPEC | {"name": "a"}, SPEC | {"name": "b", "rounds": 2}], out=tmp_path, trackers=[listener], progress=False
    )
    assert listener.received == {
        "a": [("begin", 0, "a"), 1, 2, 3, ("end", "finished")],
        "b": [("begin", 0, "b"), 1, 2, ("end", "finished")],
    }


def test_a_study_tracks_its_runs(listener: type[Listener], tmp_path: Path) -> None:
    study = tmp_path / "two.toml"
    study.write_text(
        'name = "two"\nseeds = [1, 2]\n[base]\nrounds = 2\ndata.nodes = 4\nruntime.workers = 0\n'
        '[axes]\n"rates.name" = ["constant"]\n'
    )
    outcome = feda2l.study(study, out=tmp_path / "out", trackers=[listener], progress=False)
    assert len(outcome.runs) == 2
    assert sorted(listener.received) == sorted(run.path.name for run in outcome.runs)
    for received in listener.received.values():
        assert received[1:] == [1, 2, ("end", "finished")]


class Stop(Exception):
    """Stop a run from its on_round, as with Ctrl-C. The checkpoint may be some rounds behind."""


def interrupt(out: Path, at: int, tracker: Any = None) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["round"] == at:
            raise Stop

    spec = SPEC | {"rounds": 5, "runtime": {"workers": 0, "checkpoint_seconds": 0}}
    with pytest.raises(Stop):
        feda2l.run(spec, out=out, trackers=[tracker] if tracker else [], on_round=stop, progress=False)


def test_a_resumed_run_sends_no_round_twice(listener: type[Listener], tmp_path: Path) -> None:
    interrupt(tmp_path / "run", 4, listener)  # round 4 was sent, the checkpoint is of round 3
    track(listener, tmp_path / "run", SPEC | {"rounds": 5}, resume=True)
    assert listener.received["run"] == [
        *(("begin", 0, "small"), 1, 2, 3, 4, ("end", "stopped")),
        *(("begin", 3, "small"), 5, ("end", "finished")),
    ]


def test_a_tracker_added_later_receives_earlier_rounds(listener: type[Listener], tmp_path: Path) -> None:
    interrupt(tmp_path / "run", 4)
    track(listener, tmp_path / "run", SPEC | {"rounds": 5}, resume=True)
    assert listener.received["run"] == [("begin", 3, "small"), 1, 2, 3, 4, 5, ("end", "finished")]


@pytest.mark.parametrize("hook", ["__init__", "begin", "round", "end"])
def test_a_tracker_that_raises_prints_one_message_and_stops(
    hook: str, listener: type[Listener], untracked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise SystemExit("out of order\nand more lines")

    done = track(type("Broken", (listener,), {hook: fail}), tmp_path / "run")
    assert done.summary["status"] == "finished"
    assert same_bytes(done.path, untracked)
    assert capsys.readouterr().err == (
        "feda2l: tracker Broken stopped: SystemExit: out of order; the run continues without it. "
        "See: feda2l explain tracker\n"
    )


@pytest.mark.parametrize("hook", ["begin", "round", "end"])
def test_a_blocking_tracker_does_not_delay_the_run(
    hook: str,
    listener: type[Listener],
    untracked: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observers, "PATIENCE", 0.2)
    release = threading.Event()
    done = track(type("Stuck", (listener,), {hook: lambda *_: release.wait()}), tmp_path / "run")
    assert same_bytes(done.path, untracked)
    said = capsys.readouterr().err
    assert said.startswith("feda2l: tracker Stuck stopped: ")
    assert said.count("\n") == 1
    release.set()


def test_a_tracker_that_is_too_slow_is_stopped(
    listener: type[Listener], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "BACKLOG", 2)
    release = threading.Event()
    track(type("Slow", (listener,), {"begin": lambda *_: release.wait()}), tmp_path / "run", SPEC | {"rounds": 6})
    assert "tracker Slow stopped: it is 2 rounds behind" in capsys.readouterr().err
    release.set()


def test_workers_are_not_forked_during_a_call() -> None:
    entered, release = threading.Event(), threading.Event()

    def call() -> None:
        entered.set()
        release.wait()

    with observers.Observers([Listener]) as watched:
        watched.observers[0].tell(call)
        assert entered.wait(10)
        threading.Timer(0.1, release.set).start()
        with watched.at_rest():
            assert release.is_set()
            assert watched.observers[0].calling.locked()


def test_an_unknown_or_missing_tracker_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(FedA2LError, match="did you mean 'wandb'"):
        track("wandbb", tmp_path / "run")
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(FedA2LError, match=r"pip install 'feda2l\[wandb\]'"):
        track("wandb", tmp_path / "run")
    assert not (tmp_path / "run").exists()
