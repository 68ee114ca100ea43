"""Forecasting on the GPU engine against the CPU engine. Skipped without a GPU."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rounds_on_devices import difference, merged, rounds

import feda2l
from feda2l.models.timer import Timer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


class Plain(Timer):
    """A small Timer without dropout."""

    def __init__(self, input: tuple[int, ...], horizon: int) -> None:
        super().__init__(input=input, horizon=horizon, patch=8, width=32, heads=4, hidden=64, dropout=0.0)


class Dropping(Timer):
    """A small Timer with dropout."""

    def __init__(self, input: tuple[int, ...], horizon: int) -> None:
        super().__init__(input=input, horizon=horizon, patch=8, width=32, heads=4, hidden=64, dropout=0.3)


@pytest.fixture
def series(tmp_path: Path) -> dict[str, Any]:
    """Three sites, two variates, 300 time steps: waves with a trend."""
    lines = ["site,height,width"]
    for site in range(3):
        for moment in range(300):
            wave = math.sin(moment / (5 + site))
            lines.append(f"site {site},{wave + moment / 100:.4f},{math.cos(moment / 9) * (site + 1):.4f}")
    (tmp_path / "waves.csv").write_text("\n".join(lines) + "\n")
    own = {"name": "csv", "path": str(tmp_path / "waves.csv"), "node_column": "site", "input_length": 32, "horizon": 8}
    return {
        "data": own,
        "model": {"name": f"{__name__}:Plain"},
        "topology": {"name": "ring"},
        "rates": {"name": "feda2l", "base": 0.01, "warmup_rounds": 1, "window": 2},
    }


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_rounds_match_the_cpu(series: dict[str, Any], optimizer: str) -> None:
    spec = merged(series, {"training": {"optimizer": optimizer}, "rates": {"base": 1e-3}})
    cpu, records, _ = rounds(merged(spec, {"runtime": {"engine": "rows"}}), 2, "cpu")
    gpu, found, _ = rounds(spec, 2, "cuda")
    assert difference(cpu.base, gpu.base) < (1e-5 if optimizer == "sgd" else 1e-3)
    for key in ("mse", "mae", "mean_model_mse", "train_loss"):
        assert found[-1][key] == pytest.approx(records[-1][key], rel=1e-3)
    assert found[-1]["nodes"]["mse"] == pytest.approx(records[-1]["nodes"]["mse"], rel=1e-3)


def test_bf16_is_close_to_fp32(series: dict[str, Any]) -> None:
    exact, records, _ = rounds(series, 3, "cuda")
    half, found, _ = rounds(merged(series, {"runtime": {"precision": "bf16"}}), 3, "cuda")
    assert 0 < difference(exact.base, half.base) < 0.02
    assert found[-1]["mse"] == pytest.approx(records[-1]["mse"], rel=0.05)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_node_batched_timers_match_the_per_node_engine(series: dict[str, Any], optimizer: str) -> None:
    spec = merged(series, {"training": {"optimizer": optimizer}, "rates": {"base": 1e-3}})
    rows, records, _ = rounds(merged(spec, {"runtime": {"engine": "rows"}}), 2, "cuda")
    batched, found, _ = rounds(merged(spec, {"runtime": {"engine": "batched"}}), 2, "cuda")
    assert difference(rows.base, batched.base) < (1e-5 if optimizer == "sgd" else 1e-3)
    for key in ("mse", "mae", "train_loss"):
        assert found[-1][key] == pytest.approx(records[-1][key], rel=1e-3)


def test_node_batched_dropout_does_not_depend_on_the_pack(series: dict[str, Any], tmp_path: Path) -> None:
    runtime = {"device": "cuda", "engine": "batched"}
    spec = merged(series, {"model": {"name": f"{__name__}:Dropping"}, "rounds": 2, "runtime": runtime})
    specs = [merged(spec, {"name": f"seed-{seed}", "seed": seed}) for seed in (1, 2)]
    packed = feda2l.run(specs, out=tmp_path / "packed", progress=False)
    for one, together in zip(specs, packed, strict=True):
        alone = feda2l.run(one, out=tmp_path / one["name"], progress=False)
        for name, value in alone.state().items():
            assert difference(value, together.state()[name]) < 1e-4, name  # rounding depends on the number of rows
    plain = merged(specs[0], {"model": {"name": f"{__name__}:Plain"}})
    without = feda2l.run(plain, out=tmp_path / "plain", progress=False)
    assert difference(without.state()["head.weight"], packed[0].state()["head.weight"]) > 1e-2


def test_dropout_depends_on_seed_node_and_round_only(series: dict[str, Any], tmp_path: Path) -> None:
    runtime = {"device": "cuda", "deterministic": True}
    spec = merged(series, {"model": {"name": f"{__name__}:Dropping"}, "rounds": 3, "runtime": runtime})
    specs = [merged(spec, {"name": f"rate-{rate}", "rates": {"base": rate}}) for rate in (0.01, 0.02)]
    torch.cuda.manual_seed(7)
    before = torch.cuda.get_rng_state()
    packed = feda2l.run(specs, out=tmp_path / "packed", progress=False)
    assert torch.equal(torch.cuda.get_rng_state(), before)  # the user's generator does not change
    for one, together in zip(specs, packed, strict=True):
        alone = feda2l.run(one, out=tmp_path / one["name"], progress=False)
        for file in ("rounds.jsonl", "checkpoint.safetensors"):
            assert (alone.path / file).read_bytes() == (together.path / file).read_bytes()
    plain = feda2l.run(merged(specs[0], {"model": {"name": f"{__name__}:Plain"}}), out=tmp_path / "p", progress=False)
    assert plain.state(0)["head.weight"].ne(packed[0].state(0)["head.weight"]).any()
    whole = (packed[0].path / "checkpoint.safetensors").read_bytes()
    feda2l.run(merged(specs[0], {"rounds": 2, "rates": {"horizon": 3}}), out=tmp_path / "parts", progress=False)
    feda2l.run(merged(specs[0], {"rates": {"horizon": 3}}), out=tmp_path / "parts", resume=True, progress=False)
    assert (tmp_path / "parts" / "checkpoint.safetensors").read_bytes() == whole
