"""One rank with a GPU and nccl against a run without ranks. Skipped without a GPU."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

SPEC: dict[str, Any] = {
    "rounds": 4,
    "data": {"nodes": 5},
    "topology": {"name": "ring"},
    "rates": {"name": "feda2l", "warmup_rounds": 1, "window": 2},
    "runtime": {"device": "cuda", "deterministic": True},
}
RANK = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
ALONE = [sys.executable]
SAYS = {"NCCL_DEBUG": "VERSION"}


def run(launcher: list[str], spec: Path, out: Path) -> str:
    # nccl prints its version when it connects
    job = [*launcher, "-m", "feda2l", "run", str(spec), "--out", str(out), "--quiet"]
    done = subprocess.run(job, capture_output=True, text=True, timeout=300, env=os.environ | SAYS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(("model", "algorithm"), [("mlp", "fedawa"), ("small_cnn", "fedavg")])
def test_one_rank_has_the_same_bytes_as_no_rank(tmp_path: Path, model: str, algorithm: str) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(tomli_w.dumps(SPEC | {"model": {"name": model}, "algorithm": {"name": algorithm}}))
    assert "NCCL version" not in run(ALONE, spec, tmp_path / "alone")
    assert "NCCL version" in run(RANK, spec, tmp_path / "rank")
    for name in ("rounds.jsonl", "checkpoint.safetensors"):
        assert (tmp_path / "rank" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes(), name
