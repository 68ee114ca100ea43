"""The files of a run folder that must be equal byte by byte, and runs that are interrupted."""

from pathlib import Path
from typing import Any

import pytest

import feda2l
from feda2l.runs.device import cpu_has_bf16

needs_bf16 = pytest.mark.skipif(not cpu_has_bf16(), reason="this CPU has no instructions for bf16")
SAME = ("rounds.jsonl", "rounds.parquet", "layers.parquet", "checkpoint.safetensors")


def content(run: feda2l.Run) -> dict[str, bytes]:
    return {name: (run.path / name).read_bytes() for name in SAME}


def stopped(spec: dict[str, Any], out: Path, after: int) -> None:
    """Interrupt a run at the end of round `after`, so that its checkpoint holds the round before."""

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == after:
            raise KeyboardInterrupt

    runtime = {**spec["runtime"], "checkpoint_seconds": 0}
    with pytest.raises(KeyboardInterrupt):
        feda2l.run({**spec, "runtime": runtime}, out=out, progress=False, on_round=stop)
