"""A run resumes with any number of ranks after a stop, a kill -9 and a restart by torchrun."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from launch import differing, finish, rounds_done, run_alone, torchrun, wait_until

import feda2l

SPEC: dict[str, Any] = {
    "name": "ring",
    "rounds": 6,
    "data": {"nodes": 5},
    "topology": {"name": "ring"},
    "rates": {"name": "feda2l", "warmup_rounds": 1, "window": 3},
}
LONG = SPEC | {"rounds": 60, "runtime": {"checkpoint_seconds": 0.2}}


def write(folder: Path, spec: dict[str, Any]) -> Path:
    path = folder / "spec.toml"
    path.write_text(tomli_w.dumps(spec))
    return path


def run_command(spec: Path, out: Path, *more: str) -> tuple[str | Path, ...]:
    return "-m", "feda2l", "run", spec, "--out", out, "--quiet", *more


def processes_of(job: subprocess.Popen[str]) -> dict[int, int]:
    """Return the process of each rank: torchrun's children with RANK in their environment."""
    found = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            values = (path / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        rank = next((int(value[5:]) for value in values if value.startswith(b"RANK=")), None)
        if parent == job.pid and rank is not None:
            found[rank] = int(path.name)
    return found


@pytest.mark.long
def test_a_run_resumes_with_other_numbers_of_ranks(tmp_path):
    """Two rounds on two ranks, two in one process, two on three ranks."""
    out = tmp_path / "run"
    for ranks, rounds in ((2, 2), (1, 4), (3, 6)):
        spec = write(tmp_path, SPEC | {"rounds": rounds, "rates": SPEC["rates"] | {"horizon": 6}})
        if ranks == 1:
            subprocess.run([sys.executable, *run_command(spec, out, "--resume")], check=True)
        else:
            code, output = finish(torchrun(ranks, *run_command(spec, out, "--resume")))
            assert code == 0, output
    alone = run_alone(SPEC | {"rates": SPEC["rates"] | {"horizon": 6}}, tmp_path / "alone")
    assert not differing(out, alone)


@pytest.mark.long
def test_a_killed_rank_ends_the_job_and_a_restart_resumes(tmp_path):
    """After kill -9 of rank 1, torchrun restarts all ranks, and they resume from the checkpoint."""
    spec, out = write(tmp_path, LONG), tmp_path / "run"
    job = torchrun(2, *run_command(spec, out), options=("--max-restarts=1",))
    wait_until(lambda: (out / "checkpoint.safetensors").exists() and len(processes_of(job)) == 2)
    assert rounds_done(out) < LONG["rounds"]
    os.kill(processes_of(job)[1], signal.SIGKILL)
    code, output = finish(job)
    assert code == 0, output
    assert "another rank is gone" in output
    assert not differing(out, run_alone(LONG, tmp_path / "alone"))


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 2])
def test_without_restarts_the_job_ends_with_a_checkpoint(tmp_path, victim):
    spec, out = write(tmp_path, LONG), tmp_path / "run"
    job = torchrun(3, *run_command(spec, out))
    wait_until(lambda: (out / "checkpoint.safetensors").exists() and len(processes_of(job)) == 3)
    pids = processes_of(job)
    killed = time.monotonic()
    os.kill(pids[victim], signal.SIGKILL)
    code, output = finish(job, 60)
    assert code != 0
    assert time.monotonic() - killed < 35, "torchrun waits 30 s at most"
    assert "another rank is gone" in output
    assert "--resume" in output
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())
    done = feda2l.run(LONG, out=out, resume=True, progress=False)
    assert not differing(done.path, run_alone(LONG, tmp_path / "alone"))


@pytest.mark.long
@pytest.mark.parametrize("to_all", [True, False])
def test_sigterm_stops_all_ranks_after_the_same_round(tmp_path, to_all):
    """The signal goes to torchrun, which forwards it to all ranks, or to one rank, which informs the others."""
    spec, out = write(tmp_path, LONG | {"runtime": {"checkpoint_seconds": 1000}}), tmp_path / "run"
    job = torchrun(2, *run_command(spec, out))
    wait_until(lambda: rounds_done(out) > 2)
    os.kill(job.pid if to_all else processes_of(job)[1], signal.SIGTERM)
    code, output = finish(job, 60)
    assert code != 0
    assert output.count("interrupted; run the same command again with --resume") == 1, output
    assert (out / "checkpoint.safetensors").exists()
    done = rounds_done(out)
    assert feda2l.run(LONG, out=out, resume=True, progress=False).path == out
    assert done < LONG["rounds"]
    assert not differing(out, run_alone(LONG, tmp_path / "alone"))
