"""Every algorithm on the GPU engines against the CPU engine. Skipped without a GPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from rounds_on_devices import CPU, SMALL, difference, merged, rounds
from torch import nn

import feda2l
from feda2l import data
from feda2l.algorithms import ALGORITHMS, Algorithm
from feda2l.runs.assemble import assemble, populate
from feda2l.runs.datasets import Loaded
from feda2l.simulate.search import search
from feda2l.spec.spec import Spec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

# CHOCO's top-k and FedYogi's sign depend on comparisons, which rounding can flip, so their tolerance is larger
LOOSE = {"choco": 2e-3, "fedyogi": 1e-3}
PLAIN = [name for name, kind in ALGORITHMS.items() if kind.rate_search is Algorithm.rate_search]
LOCAL = ["fedprox", "fedntd", "dfedsam", "qg_dsgdm", "gradient_tracking"]


class WithStatistics(nn.Sequential):
    """A convolution, its BatchNorm and a linear layer."""

    def __init__(self, classes: int, input: tuple[int, int, int]) -> None:
        super().__init__(
            nn.Conv2d(input[0], 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, classes)
        )


def chosen(name: str, *others: dict[str, Any]) -> dict[str, Any]:
    return merged(SMALL, {"algorithm": {"name": name}, "rates": {"base": 0.02}}, *others)


@pytest.mark.parametrize("name", PLAIN)
def test_rounds_match_the_cpu(name: str) -> None:
    cpu, records, expected = rounds(chosen(name, {"runtime": {"engine": "rows"}}), 3, "cpu")
    for engine in ("rows", "batched"):
        gpu, found, run = rounds(chosen(name, {"runtime": {"engine": engine}}), 3, "cuda")
        assert difference(cpu.base, gpu.base) < LOOSE.get(name, 1e-5), engine
        assert found[-1]["bytes_sent"] == records[-1]["bytes_sent"]
        for key, values in run.live.state.small_state.items():
            torch.testing.assert_close(
                values, expected.live.state.small_state[key], rtol=1e-3, atol=1e-6, equal_nan=True
            )


@pytest.mark.parametrize("name", ["fedntd", "dfedsam", "fedprox"])
@pytest.mark.parametrize("policy", ["average", "local", "recalibrate"])
def test_statistics_match_the_cpu(name: str, policy: str) -> None:
    changed = {"model": {"name": f"{__name__}:WithStatistics"}, "algorithm": {"buffers": policy}}
    cpu, _, _ = rounds(chosen(name, changed), 3, "cpu")
    gpu, _, _ = rounds(chosen(name, changed), 3, "cuda")
    assert difference(cpu.base, gpu.base) < 1e-4
    for key, values in cpu.buffers.items():
        torch.testing.assert_close(gpu.buffers[key].cpu(), values, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", LOCAL)
def test_smaller_last_batches_match_the_cpu(name: str) -> None:
    odd = {"training": {"drop_last": False, "batch_size": 8}}
    cpu, _, _ = rounds(chosen(name, odd, {"runtime": {"engine": "rows"}}), 2, "cpu")
    gpu, _, _ = rounds(chosen(name, odd, {"runtime": {"engine": "rows"}}), 2, "cuda")
    assert difference(cpu.base, gpu.base) < 1e-5


@pytest.mark.parametrize("name", ["fedprox", "fedntd", "qg_dsgdm"])
def test_bf16_is_close_to_fp32(name: str) -> None:
    for engine in ("rows", "batched"):
        exact, _, _ = rounds(chosen(name, {"runtime": {"engine": engine}}), 3, "cuda")
        half, _, _ = rounds(chosen(name, {"runtime": {"engine": engine, "precision": "bf16"}}), 3, "cuda")
        assert 0 < difference(exact.base, half.base) < 0.02


@pytest.mark.parametrize("engine", ["rows", "batched"])
def test_packed_algorithms_match_separate_runs(engine: str, tmp_path: Path) -> None:
    runtime = {"device": "cuda", "engine": engine, "deterministic": engine == "rows"}
    specs = [chosen(name, {"name": name, "rounds": 3, "runtime": runtime}) for name in PLAIN]
    packed = feda2l.run(specs, out=tmp_path / "packed", progress=False)
    for spec, together in zip(specs, packed, strict=True):
        alone = feda2l.run(spec, out=tmp_path / spec["name"], progress=False)
        for node in range(4):
            first, second = alone.state(node), together.state(node)
            for key, value in first.items():
                if engine == "rows":
                    assert torch.equal(value, second[key]), (spec["name"], key)
                else:
                    tolerance = LOOSE.get(spec["name"], 1e-5)
                    assert difference(value, second[key]) < 10 * tolerance, (spec["name"], key)


@pytest.mark.parametrize("name", ["fedyogi", "fedawa", "gradient_tracking", "choco", "push_sum", "dfedhpo"])
def test_an_extended_run_has_the_same_bytes(name: str, tmp_path: Path) -> None:
    runtime = {"device": "cuda", "engine": "rows", "deterministic": True}
    own = {"algorithm": {"trials": 2, "eval_epochs": 1}} if name == "dfedhpo" else {}
    spec = chosen(name, own, {"runtime": runtime, "rates": {"horizon": 4}})
    feda2l.run(merged(spec, {"rounds": 4}), out=tmp_path / "whole", progress=False)
    feda2l.run(merged(spec, {"rounds": 2}), out=tmp_path / "parts", progress=False)
    feda2l.run(merged(spec, {"rounds": 4}), out=tmp_path / "parts", resume=True, progress=False)
    for file in ("rounds.jsonl", "checkpoint.safetensors"):
        assert (tmp_path / "parts" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_a_rate_search_matches_the_cpu() -> None:
    found = {}
    for device in ("cpu", "cuda"):
        spec = chosen("dfedhpo", {"algorithm": {"trials": 3, "eval_epochs": 1}, "runtime": {"device": device}})
        place = CPU if device == "cpu" else torch.device("cuda", 0)
        run = assemble(Spec.parse(spec), Loaded.of(data.load("digits"), place))
        engine = populate([run])
        engine.start(0)
        found[device] = search(engine, run.live)["rates"]
        engine.close()
    assert found["cuda"] == pytest.approx(found["cpu"], rel=1e-3)
