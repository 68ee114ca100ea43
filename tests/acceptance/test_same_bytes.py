"""The same spec and seed give the same bytes, in any pack and after any number of stops and resumes."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

import feda2l
from feda2l.errors import FedA2LError
from run_files import SAME, needs_bf16

Start = Callable[..., "subprocess.Popen[str]"]


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in SAME}


def differing(one: Path, other: Path) -> list[str]:
    """The names of the reproducible files that are not byte-identical."""
    first, second = content(one), content(other)
    return [name for name in SAME if first[name] != second[name]]


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    tables = {key: {**base.get(key, {}), **value} for key, value in more.items() if isinstance(value, Mapping)}
    return {**base, **more, **tables}


def run(spec: Mapping[str, Any], out: Path, **options: Any) -> Path:
    """A run in this process, by default without workers."""
    spec = merged({"runtime": {"workers": 0}}, spec)
    return feda2l.run(spec, out=out, progress=False, **options).path


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def flags(spec: Mapping[str, Any]) -> list[str]:
    """A spec as `--set` flags."""
    flat = {
        f"{key}.{inner}" if inner else key: item
        for key, value in spec.items()
        for inner, item in (value.items() if isinstance(value, Mapping) else [("", value)])
    }
    return [part for key, value in flat.items() for part in ("--set", f"{key}={json.dumps(value)}")]


MLP = {"rounds": 6, "data": {"nodes": 6}}
CNN = {"rounds": 3, "data": {"nodes": 4}, "model": {"name": "small_cnn"}}
HALF = CNN | {"runtime": {"precision": "bf16"}}

# a resumed run must restore every kind of state, schedule and interval
SPECS: dict[str, dict[str, Any]] = {
    "feda2l, paper": {"rates": {"warmup_rounds": 2, "window": 3}},
    "feda2l, reference": {"rates": {"preset": "reference", "warmup_rounds": 2, "window": 3}},
    "one_cycle": {"rates": {"name": "one_cycle"}},
    "random_multiplier": {"rates": {"name": "random_multiplier", "warmup_rounds": 1, "window": 3}},
    "shuffled": {"rates": {"name": "shuffled", "warmup_rounds": 1, "window": 3}},
    "model_level": {"rates": {"name": "model_level", "warmup_rounds": 1, "window": 3}},
    "cawr": {"rates": {"name": "cawr", "period": 4}},
    "adam": {"training": {"optimizer": "adam"}, "rates": {"base": 0.001, "warmup_rounds": 2, "window": 2}},
    "adamw on a ring, memory averaged": {
        "training": {"optimizer": "adamw", "momentum_state": "average", "weight_decay": 0.01},
        "rates": {"base": 0.001},
        "topology": {"name": "ring"},
    },
    "averaged momentum on a ring": {"training": {"momentum_state": "average"}, "topology": {"name": "ring"}},
    "momentum reset": {"training": {"momentum_state": "reset"}},
    "one_peer_exponential": {"topology": {"name": "one_peer_exponential", "weights": "uniform"}},
    "evaluated every third round": {"evaluation": {"every": 3}, "topology": {"name": "ring"}},
    "evaluated on both parts": {"evaluation": {"on": "both", "every": 2}, "topology": {"name": "ring"}},
    "two epochs, small last batches": {"training": {"epochs": 2, "drop_last": False}},
    "a start of its own for every node": {"model": {"init": "per_node"}, "topology": {"name": "ring"}},
    "small_cnn": {"model": {"name": "small_cnn"}, "rounds": 5, "topology": {"name": "ring"}},
}


class Crash(Exception):
    """Imitate the end of a process: nothing is closed, written or cleaned up after it."""


def crash_at(*rounds: int) -> Callable[[dict[str, Any]], None]:
    def on_round(record: dict[str, Any]) -> None:
        if record["round"] in rounds:
            raise Crash

    return on_round


@pytest.mark.parametrize(
    "spec",
    [
        *(pytest.param(spec, id=name) for name, spec in SPECS.items()),
        pytest.param(HALF | {"rounds": 5}, marks=needs_bf16, id="small_cnn in bf16"),
    ],
)
def test_a_run_that_stops_anywhere_and_is_resumed_ends_in_the_same_bytes(spec: dict[str, Any], tmp_path: Path) -> None:
    spec = merged({"rounds": 8, "data": {"nodes": 5}, "runtime": {"checkpoint_seconds": 0}}, spec)
    whole = run(spec, tmp_path / "whole")
    broken = tmp_path / "broken"
    # in round n the checkpoint of round n - 1 is on the disk and n lines are in rounds.jsonl
    for stop in (1, 2, 4, 5, spec["rounds"]):
        with pytest.raises(Crash):
            run(spec, broken, resume=True, on_round=crash_at(stop))
        assert lines(broken / "rounds.jsonl") == stop
        assert not (broken / "summary.json").exists()
    run(spec, broken, resume=True)
    assert differing(whole, broken) == []
    # the only checkpoint is in the middle of the run
    seldom = merged(spec, {"runtime": {"checkpoint_seconds": 1000}})
    with pytest.raises(Crash):
        run(seldom, tmp_path / "seldom", on_round=crash_at(4))
    run(seldom, tmp_path / "seldom", resume=True)
    assert differing(whole, tmp_path / "seldom") == []


@pytest.mark.parametrize(
    ("spec", "engine"),
    [
        pytest.param(MLP, "batched", id="mlp"),
        pytest.param(CNN, "rows", id="small_cnn"),
        pytest.param(HALF, "rows", marks=needs_bf16, id="small_cnn in bf16"),
        pytest.param(merged(MLP, {"runtime": {"precision": "bf16"}}), "rows", marks=needs_bf16, id="mlp in bf16"),
    ],
)
def test_workers_and_repetition_change_no_byte(spec: dict[str, Any], engine: str, tmp_path: Path) -> None:
    spec = merged(spec, {"topology": {"name": "ring"}, "rates": {"warmup_rounds": 1, "window": 2}})
    first = run(spec, tmp_path / "first")
    assert json.loads((first / "environment.json").read_text())["engine"] == engine
    for workers in (0, 1, 2, 3):
        other = run(merged(spec, {"runtime": {"workers": workers}}), tmp_path / f"workers-{workers}")
        assert differing(first, other) == [], f"{workers} workers"


def test_another_seed_changes_the_records(tmp_path: Path) -> None:
    one, two = run(MLP, tmp_path / "one"), run(MLP | {"seed": 2}, tmp_path / "two")
    assert differing(one, two) == list(SAME)


PACK: dict[str, dict[str, Any]] = {
    "constant": {"rates": {"name": "constant"}},
    "feda2l": {"rates": {"warmup_rounds": 1, "window": 2}},
    "feda2l-2": {"rates": {"warmup_rounds": 1, "window": 2}, "seed": 2},
    "one-cycle": {"rates": {"name": "one_cycle"}, "seed": 3},
    "ring": {"topology": {"name": "ring"}, "data": {"nodes": 7, "alpha": 1.0}},
    "random": {"rates": {"name": "random_multiplier", "warmup_rounds": 1, "window": 2}, "rounds": 2},
    "batches": {"training": {"batch_size": 7, "drop_last": False, "epochs": 2}},
    "seldom": {"evaluation": {"every": 2, "on": "both"}, "topology": {"name": "ring", "weights": "uniform"}},
    "own-start": {"model": {"init": "per_node"}, "topology": {"name": "ring"}},
    "one-node": {"data": {"nodes": 1}},
}


@pytest.mark.parametrize(
    ("base", "workers"),
    [
        pytest.param(MLP, 0, id="mlp"),
        pytest.param(MLP, 2, id="mlp in workers"),
        pytest.param(CNN, 2, marks=pytest.mark.long, id="small_cnn in workers"),
        pytest.param(HALF, 2, marks=[pytest.mark.long, needs_bf16], id="small_cnn in bf16 in workers"),
    ],
)
def test_a_run_in_a_pack_has_the_same_bytes_as_alone(base: dict[str, Any], workers: int, tmp_path: Path) -> None:
    shared = merged(base, {"runtime": {"workers": workers}})
    specs = [merged(shared, {"name": name, **more}) for name, more in PACK.items()]
    packed = feda2l.run(specs, out=tmp_path / "pack", progress=False)
    assert {own.summary["pack"] for own in packed} == {len(PACK)}
    for spec, own in zip(specs, packed, strict=True):
        alone = run(spec, tmp_path / "alone" / spec["name"])
        assert differing(own.path, alone) == [], spec["name"]


def test_a_stopped_pack_resumes_to_the_same_bytes_in_any_combination(tmp_path: Path) -> None:
    base = merged(MLP, {"runtime": {"workers": 0, "checkpoint_seconds": 0}})
    specs = [merged(base, {"name": name, **PACK[name]}) for name in ("constant", "feda2l", "random", "ring")]
    with pytest.raises(Crash):
        feda2l.run(specs, out=tmp_path / "pack", progress=False, on_round=crash_at(4))
    # resume two together, one alone, and one as it was started
    feda2l.run(specs[:2], out=tmp_path / "pack", progress=False, resume=True)
    feda2l.run(specs[2], out=tmp_path / "pack" / "random", progress=False, resume=True)
    feda2l.run(specs, out=tmp_path / "pack", progress=False, resume=True)
    for spec in specs:
        alone = run(spec, tmp_path / "alone" / spec["name"])
        assert differing(tmp_path / "pack" / spec["name"], alone) == [], spec["name"]


FROZEN = """
from torch import nn

class PartlyFrozen(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        self[1].requires_grad_(False)
"""


def test_a_pack_keeps_each_seeds_own_frozen_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "frozen_model.py").write_text(FROZEN)
    monkeypatch.syspath_prepend(tmp_path)
    specs = [
        merged(MLP, {"name": f"s{seed}", "seed": seed, "model": {"name": "frozen_model:PartlyFrozen"}})
        for seed in (1, 2)
    ]
    specs = [merged(spec, {"runtime": {"workers": 0}}) for spec in specs]
    packed = feda2l.run(specs, out=tmp_path / "pack", progress=False)
    for spec, own in zip(specs, packed, strict=True):
        assert differing(own.path, run(spec, tmp_path / spec["name"])) == []


# a run that becomes non-finite


def test_a_non_finite_run_names_the_place_and_does_not_affect_the_others(tmp_path: Path) -> None:
    base = merged(MLP, {"runtime": {"workers": 0, "checkpoint_seconds": 0}})
    specs = [
        merged(base, {"name": "calm"}),
        merged(base, {"name": "wild", "rates": {"base": 1e6}}),
        merged(base, {"name": "calm-too", "seed": 2, "topology": {"name": "ring"}}),
    ]
    packed = feda2l.run(specs, out=tmp_path / "pack", progress=False)
    statuses = [own.summary["status"] for own in packed]
    assert statuses == ["finished", "non_finite", "finished"]
    for number in (0, 2):
        alone = run(specs[number], tmp_path / specs[number]["name"])
        assert differing(packed[number].path, alone) == []
    with pytest.raises(FedA2LError, match=r"became non-finite in round \d+: node \d+, layer fc") as caught:
        run(specs[1], tmp_path / "wild")
    assert caught.value.exit_code == 1
    summary = json.loads((tmp_path / "wild" / "summary.json").read_text())
    where = summary["non_finite"]
    assert summary["status"] == "non_finite"
    assert f"round {where['round']}: node {where['node']}, layer {where['layer']} " in str(caught.value)
    assert packed[1].summary["non_finite"] == where
    # the non-finite round is not recorded, and the checkpoint is of the last finite round
    assert summary["rounds"] == where["round"] - 1 == lines(tmp_path / "wild" / "rounds.jsonl")
    with pytest.raises(FedA2LError, match="non-finite"):
        run(specs[1], tmp_path / "wild", resume=True)


def test_a_non_finite_test_loss_is_recorded_as_null_before_the_run_ends(tmp_path: Path) -> None:
    # one step per round: it starts at a finite loss and ends where the test loss is NaN
    spec = merged(MLP, {"data": {"partition": "iid", "min_size": 1}, "training": {"batch_size": 150}})
    with pytest.raises(FedA2LError, match="became non-finite in round 2"):
        run(merged(spec, {"rates": {"base": 1e18}}), tmp_path / "out")
    (record,) = [json.loads(line) for line in (tmp_path / "out" / "rounds.jsonl").read_text().splitlines()]
    assert record["test_loss"] is None
    assert record["nodes"]["test_loss"] == [None] * 6
    assert record["train_loss"] > 0


def test_a_non_finite_run_ends_the_command_with_code_1(
    cli: Callable[..., Any], process: Callable[..., Any], tmp_path: Path
) -> None:
    outcome = process("run", *flags(merged(MLP, {"rates": {"base": 1e6}})), "--out", "out")
    assert outcome.code == 1
    assert "Traceback" not in outcome.err
    for word in ("became non-finite in round", "node", "layer fc", "rates.base"):
        assert word in outcome.err
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["status"] == "non_finite"
    assert cli("evaluate", "out").code in (0, 2)  # a checkpoint of a finite round, or a clear error


# commands on a finished run


def test_resuming_a_finished_run_changes_nothing(cli: Callable[..., Any], tmp_path: Path) -> None:
    arguments = ("run", *flags(merged(MLP, {"runtime": {"workers": 0}})), "--out", "out")
    assert cli(*arguments).code == 0
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "out").iterdir()}
    outcome = cli(*arguments, "--resume")
    assert outcome.code == 0
    assert "finished" in outcome.err
    after = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "out").iterdir()}
    assert after == before


def test_resuming_without_a_run_starts_at_round_1_and_says_so(cli: Callable[..., Any], tmp_path: Path) -> None:
    arguments = flags(merged(MLP, {"runtime": {"workers": 0}}))
    outcome = cli("run", *arguments, "--out", "fresh", "--resume")
    assert outcome.code == 0
    assert "starting at round 1" in outcome.err
    assert "round 1/6" in outcome.err
    assert differing(tmp_path / "fresh", run(MLP, tmp_path / "whole")) == []


@pytest.mark.parametrize("left", ["spec.toml.partial", "spec.toml"])
def test_a_run_killed_before_its_first_round_can_be_resumed(left: str, tmp_path: Path) -> None:
    whole = run(MLP, tmp_path / "whole")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / left).write_bytes((whole / "spec.toml").read_bytes())
    run(MLP, folder, resume=True)
    assert differing(whole, folder) == []
    assert sorted(os.listdir(folder)) == sorted(os.listdir(whole))


@pytest.mark.parametrize(
    "more",
    [
        {"rates": {"horizon": 12, "name": "one_cycle"}},
        {"rates": {"horizon": 9, "warmup_rounds": 2, "window": 3}},
        {"rates": {"horizon": 9, "name": "cosine"}, "topology": {"name": "ring"}, "training": {"optimizer": "adam"}},
        {"rates": {"horizon": 9, "name": "constant"}, "evaluation": {"every": 3}},
        {"rates": {"horizon": 9, "name": "constant"}, "evaluation": {"every": 3, "on": "both"}},
    ],
    ids=["one_cycle", "feda2l", "cosine", "evaluated every third round", "evaluated on both parts"],
)
def test_an_extended_run_equals_a_run_of_that_length_from_the_start(more: dict[str, Any], tmp_path: Path) -> None:
    spec = merged(MLP, more)
    extended = run(spec | {"rounds": 4}, tmp_path / "extended")
    run(spec | {"rounds": 5}, tmp_path / "extended", resume=True)
    run(spec | {"rounds": 9}, tmp_path / "extended", resume=True)
    assert differing(extended, run(spec | {"rounds": 9}, tmp_path / "whole")) == []


def test_an_extended_run_keeps_the_horizon_it_started_with(tmp_path: Path) -> None:
    spec = merged(MLP, {"rates": {"name": "one_cycle"}})
    extended = run(spec | {"rounds": 4}, tmp_path / "extended")
    run(spec | {"rounds": 9}, tmp_path / "extended", resume=True)
    assert feda2l.Run(extended).spec.rates.horizon == 4
    given = merged(spec, {"rounds": 9, "rates": {"horizon": 4}})
    assert differing(extended, run(given, tmp_path / "given")) == []


# real processes, real signals


def wait_for(running: "subprocess.Popen[str]", seen: Callable[[], bool], seconds: float = 60) -> bool:
    """Wait for a condition; False if the process ended before."""
    end = time.monotonic() + seconds
    while not seen():
        if running.poll() is not None:
            return False
        assert time.monotonic() < end, "nothing was seen"
        time.sleep(0.0003)
    return True


def alive(session: int) -> list[int]:
    """The running processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended between the listing and the reading
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(stat.parent.name))
    return found


def gone(session: int, seconds: float = 2) -> bool:
    """Whether all processes of the session end in time."""
    end = time.monotonic() + seconds
    while alive(session):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def maps_shared_files(pid: int) -> bool:
    return "/dev/shm/" in Path(f"/proc/{pid}/maps").read_text()


KILLED = merged(
    {"rounds": 12, "data": {"nodes": 6}, "topology": {"name": "ring"}},
    {"rates": {"warmup_rounds": 2, "window": 3}, "runtime": {"checkpoint_seconds": 0, "workers": 2}},
)


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.long), 4])
def test_kill_9_at_many_moments_and_resume_give_the_same_bytes(start: Start, tmp_path: Path, every: int) -> None:
    folder = tmp_path / "out"
    rounds, partial = folder / "rounds.jsonl", folder / "checkpoint.partial"
    moments: list[tuple[Callable[[], bool], float]] = [
        (folder.exists, 0),
        ((folder / "spec.toml").exists, 0),
        (lambda: lines(rounds) >= 1, 0),
        (partial.exists, 0),
        (lambda: lines(rounds) >= 4, 0.002),
        (lambda: lines(rounds) >= 6 and partial.exists(), 0),
        (lambda: lines(rounds) >= 8, 0.01),
        (lambda: lines(rounds) >= 12, 0),
        (lambda: any(folder.glob("*.parquet*")), 0),
        ((folder / "layers.parquet").exists, 0),
    ]
    kills = 0
    for seen, pause in moments[::every]:
        running = start("run", *flags(KILLED), "--out", "out", "--resume", "--quiet")
        if not wait_for(running, seen):
            continue  # it ended before
        time.sleep(pause)
        running.kill()
        running.wait()
        kills += running.returncode == -signal.SIGKILL
        assert gone(running.pid), "a worker outlived its parent"
    assert kills >= 8 // every
    last = start("run", *flags(KILLED), "--out", "out", "--resume", "--quiet")
    _, err = last.communicate(timeout=60)
    assert last.returncode == 0, err
    whole = run(merged(KILLED, {"runtime": {"workers": 0}}), tmp_path / "whole")
    assert differing(folder, whole) == []
    assert sorted(os.listdir(folder)) == sorted(os.listdir(whole))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "checkpoint_seconds"),
    [("adam", 0), ("averaged momentum on a ring", 0.2), ("one_cycle", 0.1), ("small_cnn", 0)],
)
def test_kill_9_at_random_moments_gives_the_same_bytes(
    name: str, checkpoint_seconds: float, start: Start, tmp_path: Path
) -> None:
    spec = merged({"data": {"nodes": 6}, "runtime": {"checkpoint_seconds": checkpoint_seconds}}, SPECS[name])
    spec["rounds"] = 40
    rounds = tmp_path / "out" / "rounds.jsonl"
    random = Random(name)
    for _ in range(12):
        before = lines(rounds)
        running = start("run", *flags(spec), "--out", "out", "--resume", "--quiet")
        wait_for(running, lambda before=before: lines(rounds) != before)
        time.sleep(random.uniform(0, 0.3))
        running.kill()
        running.wait()
        assert gone(running.pid)
    assert differing(run(spec, tmp_path / "out", resume=True), run(spec, tmp_path / "whole")) == []


def test_a_killed_run_leaves_no_worker_and_no_shared_memory(start: Start, tmp_path: Path) -> None:
    spec = merged(MLP, {"rounds": 100_000, "runtime": {"workers": 2}})
    running = start("run", *flags(spec), "--out", "out", "--quiet")
    assert wait_for(running, lambda: lines(tmp_path / "out" / "rounds.jsonl") >= 2)
    processes = alive(running.pid)
    assert len(processes) == 3  # the run and two workers
    # memory without a name in the file system cannot be left behind
    assert not any(maps_shared_files(pid) for pid in processes)
    running.kill()
    running.wait()
    assert gone(running.pid)


def test_a_killed_worker_ends_the_run_with_a_message(start: Start, tmp_path: Path) -> None:
    spec = merged(MLP, {"rounds": 100_000, "runtime": {"workers": 2, "checkpoint_seconds": 0}})
    running = start("run", *flags(spec), "--out", "out", "--quiet")
    assert wait_for(running, lambda: lines(tmp_path / "out" / "rounds.jsonl") >= 2)
    worker = next(pid for pid in alive(running.pid) if pid != running.pid)
    os.kill(worker, signal.SIGKILL)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 1
    assert "worker" in err
    assert "--resume" in err
    assert "Traceback" not in err
    assert gone(running.pid)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_a_signal_ends_the_run_after_the_round_and_it_can_be_resumed(
    number: signal.Signals, start: Start, tmp_path: Path
) -> None:
    spec = merged(
        {"rounds": 15, "data": {"nodes": 6}, "training": {"epochs": 2}},
        {"rates": {"name": "one_cycle"}, "runtime": {"workers": 2, "checkpoint_seconds": 1000}},
    )
    folder = tmp_path / "out"
    running = start("run", *flags(spec), "--out", "out")
    assert wait_for(running, lambda: lines(folder / "rounds.jsonl") >= 2)
    os.killpg(running.pid, number)  # a terminal signals the whole group, and so does `timeout`
    _, err = running.communicate(timeout=30)
    assert running.returncode == 130, err
    assert "Traceback" not in err
    assert "stopping after this round" in err
    assert "--resume" in err
    assert gone(running.pid)
    done = lines(folder / "rounds.jsonl")
    assert 2 <= done < 15
    # saved because of the signal: no other checkpoint was due
    outcome = start("run", *flags(spec), "--out", "out", "--resume")
    _, err = outcome.communicate(timeout=60)
    assert outcome.returncode == 0, err
    assert f"resuming after round {done}" in err
    assert differing(folder, run(merged(spec, {"runtime": {"workers": 0}}), tmp_path / "whole")) == []


def test_a_second_ctrl_c_stops_at_once(start: Start, tmp_path: Path) -> None:
    spec = merged(MLP, {"training": {"epochs": 100_000}, "runtime": {"workers": 2}})  # a round takes hours
    running = start("run", *flags(spec), "--out", "out")
    assert wait_for(running, lambda: len(alive(running.pid)) == 3)
    time.sleep(0.5)
    os.killpg(running.pid, signal.SIGINT)
    time.sleep(0.5)
    assert running.poll() is None
    os.killpg(running.pid, signal.SIGINT)
    began = time.monotonic()
    _, err = running.communicate(timeout=30)
    assert time.monotonic() - began < 5
    assert running.returncode == 130
    assert "Traceback" not in err
    assert gone(running.pid)
    assert lines(tmp_path / "out" / "rounds.jsonl") == 0
