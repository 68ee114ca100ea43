"""Effects of a GPU failure on a run. The tests raise torch's own errors where the GPU would raise them."""

from pathlib import Path
from typing import Any

import pytest
import torch

import feda2l
from feda2l.engines.engine import RowEngine
from feda2l.errors import RunFailed

SPEC: dict[str, Any] = {
    "rounds": 6,
    "data": {"nodes": 4},
    "model": {"name": "small_cnn"},
    "runtime": {"checkpoint_seconds": 0, "workers": 0, "device": "cpu"},
}


def test_a_run_can_resume_after_a_gpu_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = feda2l.run(SPEC, out=tmp_path / "whole", progress=False)
    train = RowEngine.train

    def fails_in_round_4(self: RowEngine, jobs: Any) -> list[float]:
        if jobs[0].round == 4:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        return train(self, jobs)

    with monkeypatch.context() as patch:
        patch.setattr(RowEngine, "train", fails_in_round_4)
        with pytest.raises(RunFailed, match=r"illegal memory access.*--resume"):
            feda2l.run(SPEC, out=tmp_path / "cut", progress=False)
    feda2l.run(SPEC, out=tmp_path / "cut", resume=True, progress=False)
    for name in ("rounds.jsonl", "checkpoint.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (whole.path / name).read_bytes()


def test_runs_that_exceed_gpu_memory_train_in_smaller_packs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train = RowEngine.train

    def holds_two_runs(self: RowEngine, jobs: Any) -> list[float]:
        if len(self.members) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return train(self, jobs)

    monkeypatch.setattr(RowEngine, "train", holds_two_runs)
    specs = [SPEC | {"name": f"run-{seed}", "seed": seed, "rounds": 2} for seed in range(1, 6)]
    runs = feda2l.run(specs, out=tmp_path)
    assert [run.summary["pack"] for run in runs] == [2, 2, 1, 2, 2]  # 5 -> 2 and 3, 3 -> 1 and 2
    assert "do not fit into GPU memory together" in capsys.readouterr().err
