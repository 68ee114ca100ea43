"""Start real torchrun jobs on this host, and the runs that they are compared with."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import feda2l

SAME = ("checkpoint.safetensors", "rounds.jsonl", "rounds.parquet", "layers.parquet")


def torchrun(
    ranks: int, *command: str | Path, options: tuple[str, ...] = (), cwd: Path | None = None
) -> subprocess.Popen[str]:
    """Start `python COMMAND` on some ranks. They can import `users_models` and the examples."""
    port, here = _free_port(), f"{Path(__file__).parent}:{Path(__file__).parents[2] / 'examples'}"
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={port}"]
    return subprocess.Popen(
        [*launcher, *options, *map(str, command)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{here}:{os.environ.get('PYTHONPATH', '')}"},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(job: subprocess.Popen[str], seconds: float = 240) -> tuple[int, str]:
    """Wait for a job. Return its exit code and its output."""
    try:
        output, _ = job.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.kill(job.pid, signal.SIGTERM)  # torchrun then ends its ranks, which are in other sessions
        job.communicate(timeout=60)
        raise
    return job.returncode, output


def run_on_ranks(ranks: int, runs: Mapping[str, Mapping[str, Any]], folder: Path) -> str:
    """Run specs one after the other in one job, which saves start-up time. Folders have the names of the specs."""
    (folder / "specs.json").write_text(json.dumps(runs))
    code, output = finish(torchrun(ranks, Path(__file__).with_name("many.py"), folder))
    assert code == 0, output
    return output


def differing(a: Path, b: Path) -> list[str]:
    """Return the files that should be equal but differ."""
    return [name for name in SAME if (a / name).read_bytes() != (b / name).read_bytes()]


def run_alone(spec: Mapping[str, Any], out: Path) -> Path:
    return feda2l.run(dict(spec), out=out, progress=False).path


def wait_until(true: Any, seconds: float = 120) -> None:
    start = time.monotonic()
    while not true():
        assert time.monotonic() - start < seconds, "it did not come to pass"
        time.sleep(0.05)


def rounds_done(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port
