"""`feda2l swarm`: real processes give the simulator's bits and leave nothing behind."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from folders import demand_same, demand_same_state

import feda2l
from feda2l.cli.main import main
from feda2l.errors import FedA2LError
from feda2l.runs.evaluate import evaluate
from feda2l.simulate.checkpoint import read_checkpoint
from feda2l.spec.spec import Spec
from feda2l.swarm import swarm_process
from feda2l.swarm.swarm import SwarmOptions, swarm
from feda2l.swarm.swarm_folder import free_ports

SMALL: dict[str, Any] = {
    "name": "small",
    "rounds": 4,
    "data": {"name": "digits", "nodes": 3, "alpha": 0.5},
    "topology": {"name": "ring"},
    "rates": {"name": "feda2l", "warmup_rounds": 1, "window": 2, "base": 0.05},
}
FIVE = SMALL | {"data": SMALL["data"] | {"nodes": 5}}
WAIT = 240.0  # the most seconds for any step; the machine may be busy


def _command(values: dict[str, Any], folder: Path, *more: str) -> list[str]:
    """The command of a swarm whose folder is `folder / "swarm"`."""
    folder.mkdir(exist_ok=True)
    (folder / "spec.toml").write_text(tomli_w.dumps(values))
    return [sys.executable, "-m", "feda2l", "swarm", str(folder / "spec.toml"), "--out", str(folder / "swarm"), *more]


def _swarm(values: dict[str, Any], folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_command(values, folder, *more), capture_output=True, text=True, timeout=WAIT)


@contextlib.contextmanager
def _started(values: dict[str, Any], folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A running swarm."""
    process = subprocess.Popen(
        _command(values, folder, *more), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        _until(lambda: not _nodes(folder))


def _nodes(folder: Path) -> dict[str, int]:
    """The process ids of a swarm's nodes by name."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode().split("\0")
            config = words[words.index("--config") + 1] if "--config" in words else ""
            if config.startswith(f"{folder}{os.sep}") and "-c" not in words:
                found[Path(config).parent.name] = int(path.parent.name)
    return found


def _round(folder: Path, node: str) -> int:
    path = folder / "swarm" / "nodes" / node / "state" / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _until(true: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < end, "it took too long"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.05)


def _check(values: dict[str, Any], folder: Path, *more: str) -> Path:
    simulated = feda2l.run(values, out=folder / "simulated", progress=False)
    done = _swarm(values, folder, *more)
    assert done.returncode == 0, done.stderr
    demand_same(folder / "swarm", simulated.path)
    return folder / "swarm"


def test_a_swarm_gives_the_simulators_bits(tmp_path):
    simulated = feda2l.run(SMALL, out=tmp_path / "simulated", progress=False)
    folder = swarm(Spec.parse(SMALL), tmp_path / "swarm", SwarmOptions(shown=False)).path
    demand_same(folder, simulated.path)
    assert evaluate(folder)["accuracy"] == feda2l.Run(folder).summary["accuracy"]["final"]
    assert not _nodes(tmp_path)
    assert not [*folder.rglob("*.key"), *folder.rglob("*.pem")]


def test_a_directed_graph(tmp_path):
    """Processes start one after the other, so a node is ahead of one for which it never waits."""
    _check(FIVE | {"algorithm": {"name": "push_sum"}, "topology": {"name": "directed_ring"}}, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "fedyogi", "fedntd", "fedawa", "dfedsam"])
@pytest.mark.parametrize("topology", ["ring", "full"])
def test_the_papers_algorithms(tmp_path, algorithm, topology):
    _check(FIVE | {"algorithm": {"name": algorithm}, "topology": {"name": topology}}, tmp_path)


FEW = """
from dataclasses import replace
from pathlib import Path

from feda2l import data

def few():
    whole = data.load("cifar10", Path({folder!r}))
    train, test = slice(0, 240), slice(0, 20)
    return replace(
        whole,
        train_x=whole.train_x[train],
        train_y=whole.train_y[train],
        test_x=whole.test_x[test],
        test_y=whole.test_y[test],
    )
"""


@pytest.mark.long
def test_a_resnet_with_averaged_statistics(tmp_path, official, module, monkeypatch):
    """A few steps on the first images of CIFAR-10: evaluating the whole test set would take minutes per round."""
    name = module(FEW.format(folder=str(official)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    values = {
        "name": "deep",
        "rounds": 2,
        "data": {"name": f"{name}:few", "nodes": 3, "partition": "iid", "train_fraction": 0.5},
        "model": {"name": "resnet18"},
        "topology": {"name": "ring"},
        "rates": {"name": "feda2l", "warmup_rounds": 1, "base": 0.01},
    }
    folder = _check(values, tmp_path)
    state = read_checkpoint(folder / "checkpoint.safetensors")
    assert any(key.startswith("buffers.") and key.endswith("running_var") for key in state)


@pytest.mark.long
def test_plaintext_and_bf16(tmp_path):
    _check(SMALL, tmp_path / "plain", "--insecure")
    done = _swarm(SMALL, tmp_path / "bf16", "--wire", "bf16", "--keep")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "bf16" / "swarm"
    assert json.loads((folder / "environment.json").read_text())["wire"] == "bf16"
    keys = [*folder.rglob("*.key")]
    assert len(keys) == 3
    assert {key.stat().st_mode & 0o777 for key in keys} == {0o600}
    again = _swarm(SMALL | {"rounds": 5}, tmp_path / "bf16", "--resume")
    assert again.returncode == 2
    assert "started with bf16" in again.stderr


@pytest.mark.long
def test_a_killed_node_is_reported_by_name(tmp_path):
    values = SMALL | {"rounds": 60}
    with _started(values, tmp_path) as process:
        _until(lambda: _round(tmp_path, "n1") >= 5, process)
        os.kill(_nodes(tmp_path)["n1"], signal.SIGKILL)
        _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 1
    assert "n1 failed after round" in err
    assert "killed by SIGKILL" in err
    assert "1 of 3 nodes failed" in err
    assert "Traceback" not in err
    run = feda2l.Run(tmp_path / "swarm")
    assert run.summary["rounds"] == 60
    accuracy = run.rounds.filter(run.rounds["round"] == 60)["accuracy"].to_list()
    assert accuracy[1] is None
    assert min(accuracy[0], accuracy[2]) > 0.8
    assert evaluate(run.path)["accuracy"] == run.summary["accuracy"]["final"]
    report = [sys.executable, "-m", "feda2l", "report", str(run.path), "--out", str(tmp_path / "report")]
    assert subprocess.run(report, capture_output=True, text=True, timeout=WAIT).returncode == 0
    assert (tmp_path / "report" / "index.html").exists()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_swarm_continues_with_resume(tmp_path, number):
    values = SMALL | {"rounds": 100}
    with _started(values, tmp_path) as process:
        _until(lambda: _round(tmp_path, "n0") >= 3, process)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted; run the same command again with --resume" in err
    assert not _nodes(tmp_path)
    before = {name: _round(tmp_path, name) for name in ("n0", "n1", "n2")}
    assert 3 <= min(before.values()) <= max(before.values()) < 100
    config = (tmp_path / "swarm" / "nodes" / "n0" / "node.toml").read_text()
    done = _swarm(values, tmp_path, "--resume")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "swarm" / "nodes" / "n0" / "node.toml").read_text() == config  # the same run name and ports
    assert feda2l.Run(tmp_path / "swarm").summary["rounds"] == 100
    again = _swarm(values, tmp_path, "--resume")
    assert again.returncode == 0
    assert "already finished" in again.stderr


@pytest.mark.long
def test_more_rounds(tmp_path):
    """A finished swarm with more rounds gives the same bits as a longer run."""
    rates = SMALL["rates"] | {"horizon": 6}
    assert _swarm(SMALL | {"rates": rates}, tmp_path).returncode == 0
    longer = SMALL | {"rounds": 6, "rates": rates}
    done = _swarm(longer, tmp_path, "--resume")
    assert done.returncode == 0, done.stderr
    simulated = feda2l.run(longer, out=tmp_path / "simulated", progress=False)
    demand_same_state(tmp_path / "swarm", simulated.path)


@pytest.mark.long
def test_no_node_outlives_its_swarm(tmp_path):
    with _started(SMALL | {"rounds": 10_000}, tmp_path) as process:
        _until(lambda: _round(tmp_path, "n0") >= 2, process)
        assert len(_nodes(tmp_path)) == 3
        process.kill()
        process.wait()
        end = time.monotonic() + 5
        while _nodes(tmp_path):
            assert time.monotonic() < end
            time.sleep(0.05)


@pytest.mark.long
def test_a_fault_plan(tmp_path):
    """One node crashes and restarts, one hangs and continues; neither is a failure, and both are present at the end."""
    slow = [
        # slow rounds, so that a restarted process can catch up
        {"kind": "delay", "node": node, "round": 4, "rounds": 8 if node == 2 else 14, "seconds": 1.0}
        for node in (0, 2, 3, 4)
    ]
    # it wakes when the others have completed round 14 and asks when their messages of round 15 exist, also when busy:
    # otherwise it would continue from those of round 14 and record round 13 as the round of its return
    slow.append({"kind": "delay", "node": 2, "round": 12, "seconds": 6.0})
    plan = {
        "deadline": 10.0,
        "fault": [
            {"kind": "crash", "node": 1, "round": 4},
            {"kind": "restart", "node": 1, "round": 6},
            {"kind": "hang", "node": 2, "round": 12, "rounds": 3},
            *slow,
        ],
    }
    (tmp_path / "plan.toml").write_text(tomli_w.dumps(plan))
    done = _swarm(FIVE | {"rounds": 20}, tmp_path, "--faults", str(tmp_path / "plan.toml"))
    assert done.returncode == 0, done.stderr
    assert "n1 crashed in round 4, as planned" in done.stderr
    assert "n1 restarts" in done.stderr
    assert "n2 hangs in round 12, as planned" in done.stderr
    run = feda2l.Run(tmp_path / "swarm")
    received = [record["nodes"]["received"] for record in run.folder.read()]
    assert [received[round - 1][1] for round in (4, 5)] == [None, None]
    assert [received[round - 1][2] for round in (12, 13)] == [None, None]
    assert min(received[-1][node] or 0 for node in (1, 2)) > 0
    assert run.summary["faults"]["missed"] >= 4
    assert (tmp_path / "swarm" / "faults.toml").read_text() == (tmp_path / "plan.toml").read_text()
    assert evaluate(run.path)["accuracy"] == run.summary["accuracy"]["final"]


@pytest.mark.long
def test_a_network_that_does_not_start(tmp_path):
    """A node's port is taken after it was chosen: this is reported at once, and no node waits."""
    with _started(SMALL, tmp_path) as process, socket.socket() as taken:
        config = tmp_path / "swarm" / "nodes" / "n1" / "node.toml"
        _until(config.exists, process)
        port = int(config.read_text().partition('listen = "127.0.0.1:')[2].partition('"')[0])
        taken.bind(("127.0.0.1", port))
        taken.listen()
        _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 1, err
    assert "the network did not start" in err
    assert "n1 failed after round 0" in err
    assert str(port) in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"data": {"nodes": 1}}, "at least 2 nodes"),
        ({"topology": {"name": "one_peer_exponential"}, "data": {"nodes": 4}}, "changes from round to round"),
        ({"topology": {"name": "isolated"}}, "has no links"),
        ({"algorithm": {"name": "dfedhpo", "consensus": True}}, "algorithm.consensus"),
        ({"model": {"name": "mlp", "loss": "mse"}}, "model.loss"),
        ({"faults": "nowhere.toml"}, "nowhere.toml"),
    ],
)
def test_a_spec_that_cannot_be_a_swarm(tmp_path, changes, problem, monkeypatch):
    monkeypatch.setattr(swarm_process.subprocess, "Popen", _nothing_starts)
    with pytest.raises(FedA2LError, match=problem):
        swarm(Spec.parse(changes), tmp_path / "out")
    assert not (tmp_path / "out" / "spec.toml").exists()


def _nothing_starts(*_: object, **__: object) -> None:
    raise AssertionError("a process was started")


def test_a_folder_of_another_run(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(FedA2LError, match="not empty"):
        swarm(Spec.parse({}), tmp_path / "full")
    with pytest.raises(FedA2LError, match="not the folder of a swarm"):
        swarm(Spec.parse({}), tmp_path / "nowhere", SwarmOptions(resume=True))
    (tmp_path / "file").write_text("")
    with pytest.raises(FedA2LError, match="cannot be written"):
        swarm(Spec.parse(SMALL), tmp_path / "file")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--nodes", "1"], "--nodes 1: a swarm needs at least 2 nodes"),
        (["--set", "rounds=none"], "rounds"),
        (["nowhere.toml"], "there is no such file"),
        (["--wire", "fp8"], "fp8"),
    ],
)
def test_the_command_line_names_the_mistake(tmp_path, words, problem, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["feda2l", "swarm", "--out", str(tmp_path / "out"), *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_former_ports_are_reused_if_they_are_free():
    first = free_ports([0, 0, 0])
    assert len(set(first)) == 3
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first[1]))
        taken.listen()
        again = free_ports(first)
    assert again[0] == first[0]
    assert again[2] == first[2]
    assert again[1] not in first
