"""The GPU engines against the CPU engine. Skipped without a GPU."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rounds_on_devices import CPU, SMALL, difference, merged, rounds

import feda2l
from feda2l import data
from feda2l.engines.engine import Engine, ScoreJob
from feda2l.round import population as population_module
from feda2l.round.population import Population
from feda2l.runs.assemble import Assembled, assemble, populate
from feda2l.runs.datasets import Loaded
from feda2l.simulate.loop import RoundLoop
from feda2l.spec.spec import Spec
from feda2l.studies.api import study

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

VARIANTS = [
    {},
    {"training": {"weight_decay": 1e-3}},
    {"training": {"optimizer": "adam"}, "rates": {"base": 1e-3}},
    {"training": {"optimizer": "adamw", "weight_decay": 1e-2}, "rates": {"base": 1e-3}},
    {"training": {"momentum": 0.0}},
    {"training": {"drop_last": False, "batch_size": 8, "epochs": 1}},
    {"model": {"name": "mlp"}},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_ten_fp32_steps_match_the_cpu(variant: dict[str, Any]) -> None:
    spec = merged(SMALL, variant)
    # Adam divides by the size of a gradient; near 0 rounding decides its sign. A float64 test follows below
    tolerance = 1e-3 if "adam" in str(variant) else 1e-5
    cpu, records, _ = rounds(merged(spec, {"runtime": {"engine": "rows"}}), 3, "cpu")
    gpu, found, _ = rounds(spec, 3, "cuda")
    assert difference(cpu.trained, gpu.trained) < tolerance
    assert found[-1]["train_loss"] == pytest.approx(records[-1]["train_loss"], rel=tolerance)
    assert found[-1]["accuracy"] == pytest.approx(records[-1]["accuracy"], abs=0.01)
    assert found[-1]["disagreement"] == pytest.approx(records[-1]["disagreement"], rel=100 * tolerance)


@pytest.mark.parametrize("name", ["small_cnn", "mlp"])
def test_node_batched_kernels_match_the_per_node_engine(name: str) -> None:
    spec = merged(SMALL, {"model": {"name": name}})
    rows, _, _ = rounds(merged(spec, {"runtime": {"engine": "rows"}}), 3, "cuda")
    batched, _, _ = rounds(merged(spec, {"runtime": {"engine": "batched"}}), 3, "cuda")
    assert difference(rows.trained, batched.trained) < 1e-5


def test_unequal_shards_match_the_cpu() -> None:
    spec = merged(SMALL, {"data": {"partition": "dirichlet", "train_fraction": 0.2, "min_size": 60, "alpha": 0.5}})
    cpu, _, _ = rounds(merged(spec, {"runtime": {"engine": "rows"}}), 1, "cpu")
    for engine in ("rows", "batched"):
        gpu, _, _ = rounds(merged(spec, {"runtime": {"engine": engine}}), 1, "cuda")
        assert difference(cpu.trained, gpu.trained) < 1e-4


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_float64_round_matches_the_cpu(optimizer: str) -> None:
    states = {}
    for device in ("cpu", "cuda"):
        place = CPU if device == "cpu" else torch.device("cuda", 0)
        spec = merged(
            SMALL,
            {"data": {"train_fraction": 0.75}, "runtime": {"device": device, "engine": "rows"}},
            {"training": {"optimizer": optimizer, "weight_decay": 1e-3}, "rates": {"base": 1e-3}},
        )
        images = data.load("digits")
        run = assemble(Spec.parse(spec), Loaded.of(images, place))
        run.model.double()
        population = Population(run.model, 4, 1, optimizer, device=place, dtype=torch.float64)
        run.live.join(population, 0, 0)
        for node in range(4):
            population.place(node, run.model)
        engine = _float64_engine(run, population)
        engine.start(0)
        next(RoundLoop(engine, [run.live]).rounds())
        states[device] = population.base.clone()
    assert difference(states["cpu"], states["cuda"]) < 1e-9


def _float64_engine(run: Assembled, population: Population) -> Engine:
    from feda2l.engines.engine import RowEngine

    member = run.live.plan.member
    normalise = member.training.samples.normalise
    if population.device == CPU:
        samples = replace(member.training.samples, normalise=lambda x: normalise(x).double())
        object.__setattr__(member.training, "samples", samples)
        object.__setattr__(member, "test", replace(member.test, normalise=lambda x: normalise(x).double()))
        return RowEngine(run.model, population, [member])
    from feda2l.engines.cuda_graphs import CudaGraphs

    return CudaGraphs(run.model, population, [member])


def test_learning_rates_match_the_cpu() -> None:
    spec = merged(
        SMALL,
        {"data": {"nodes": 10, "train_fraction": 0.2}, "model": {"name": "mlp"}},
        {"rates": {"warmup_rounds": 2, "window": 3}},
    )
    _, expected, _ = rounds(spec, 8, "cpu")
    _, found, _ = rounds(spec, 8, "cuda")
    for one, other in zip(expected, found, strict=True):
        rate, rate_ = torch.tensor(one["layers"]["rate"]), torch.tensor(other["layers"]["rate"])
        assert torch.allclose(rate, rate_, rtol=1e-3)


def test_bf16_reaches_the_accuracy_of_fp32() -> None:
    spec = merged(SMALL, {"data": {"train_fraction": 0.75}, "rates": {"name": "constant"}})
    _, fp32, _ = rounds(spec, 15, "cuda")
    _, bf16, _ = rounds(merged(spec, {"runtime": {"precision": "bf16"}}), 15, "cuda")
    assert bf16[-1]["accuracy"] == pytest.approx(fp32[-1]["accuracy"], abs=0.05)


NORMS = """
from torch import nn
def net(classes, input):
    return nn.Sequential(nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.0), nn.Flatten(),
                         nn.Linear(8 * 36, classes))
"""


@pytest.fixture
def norms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (tmp_path / "norms_for_gpu.py").write_text(NORMS)
    monkeypatch.syspath_prepend(tmp_path)
    return merged(SMALL, {"model": {"name": "norms_for_gpu:net"}})


@pytest.mark.parametrize("policy", ["average", "local", "recalibrate"])
def test_statistics_policies_match_the_cpu(policy: str, norms: dict[str, Any]) -> None:
    spec = merged(norms, {"algorithm": {"buffers": policy}})
    cpu, expected, _ = rounds(merged(spec, {"runtime": {"engine": "rows"}}), 2, "cpu")
    gpu, found, _ = rounds(spec, 2, "cuda")
    for name, values in cpu.buffers.items():
        assert torch.allclose(values.double(), gpu.buffers[name].cpu().double(), rtol=1e-4, atol=1e-5), name
    assert found[-1]["test_loss"] == pytest.approx(expected[-1]["test_loss"], rel=1e-3)


FILES = ("rounds.jsonl", "checkpoint.safetensors")
DETERMINISTIC = merged(SMALL, {"rounds": 6, "runtime": {"deterministic": True, "device": "cuda", "engine": "rows"}})


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_deterministic_runs_give_the_same_bytes_alone_and_packed(precision: str, tmp_path: Path) -> None:
    specs = [
        merged(DETERMINISTIC, {"name": f"r{seed}", "seed": seed, "runtime": {"precision": precision}})
        for seed in (1, 2, 3)
    ]
    alone = [feda2l.run(spec, out=tmp_path / f"{spec['name']}-alone", progress=False) for spec in specs]
    again = feda2l.run(specs[0], out=tmp_path / "again", progress=False)
    packed = feda2l.run(specs, out=tmp_path / "pack", progress=False)
    assert content(alone[0].path) == content(again.path)
    for one, other in zip(alone, packed, strict=True):
        assert content(one.path) == content(other.path)


def test_packed_runs_match_separate_runs_on_node_batched_kernels(tmp_path: Path) -> None:
    # 3 rounds of 3 steps agree up to rounding, and a whole run in its accuracy: bits depend on the number of rows
    for rounds_, tolerance in ((3, 1e-5), (20, None)):
        specs = [
            merged(SMALL, {"name": f"r{seed}", "seed": seed, "rounds": rounds_, "runtime": {"engine": "batched"}})
            for seed in (1, 2, 3)
        ]
        alone = [feda2l.run(spec, out=tmp_path / f"{rounds_}-{spec['name']}", progress=False) for spec in specs]
        packed = feda2l.run(specs, out=tmp_path / f"{rounds_}-pack", progress=False)
        for one, other in zip(alone, packed, strict=True):
            if tolerance:
                for name, value in one.state().items():
                    assert difference(value, other.state()[name]) < tolerance, name
            assert other.summary["accuracy"]["final"] == pytest.approx(one.summary["accuracy"]["final"], abs=0.03)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_scoring_models_together_matches_separate_scoring(precision: str) -> None:
    from feda2l.engines.cuda_engine import CudaEngine  # needs triton

    nodes = 13  # not a multiple of ten
    more = {"data": {"nodes": nodes}, "runtime": {"device": "cuda", "engine": "batched", "precision": precision}}
    spec = Spec.parse(merged(SMALL, more))
    run = assemble(spec, Loaded.of(data.load("digits"), torch.device("cuda", 0)))
    engine = populate([run])
    engine.start(0)
    next(RoundLoop(engine, [run.live]).rounds())
    jobs = [ScoreJob(node, 0, node, local=local) for local in (False, True) for node in range(nodes)]
    jobs.insert(3, ScoreJob(0, 0, None, local=False))  # the mean model
    together, alone = engine.score(jobs), CudaEngine.score(engine, jobs)  # type: ignore[arg-type]
    engine.close()
    for job, one, other in zip(jobs, together, alone, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5 if precision == "fp32" else 0.02), job
        assert sum(one.tally) == pytest.approx(sum(other.tally), abs=0 if precision == "fp32" else 4), job


def test_a_study_estimates_its_time_from_packed_steps(tmp_path: Path) -> None:
    said: list[str] = []
    study("digits-rules", out=tmp_path, sets=['runtime.device="cuda"'], dry_run=True, say=said.append)
    assert "time unknown: on a GPU it is known when the first pack has trained" in said


def test_a_diverged_run_does_not_change_other_runs(tmp_path: Path) -> None:
    good = merged(DETERMINISTIC, {"name": "good"})
    bad = merged(DETERMINISTIC, {"name": "bad", "rates": {"name": "constant", "base": 1e9}})
    alone = feda2l.run(good, out=tmp_path / "alone", progress=False)
    packed = feda2l.run([bad, good], out=tmp_path / "pack", progress=False)
    assert packed[0].summary["status"] == "non_finite"
    assert content(packed[1].path) == content(alone.path)


def test_resume_after_kill_9_gives_the_same_bytes(tmp_path: Path) -> None:
    spec = merged(DETERMINISTIC, {"rounds": 60, "runtime": {"checkpoint_seconds": 0}})
    whole = feda2l.run(spec, out=tmp_path / "whole", progress=False)
    sets = [
        f"--set={section}.{k}={json.dumps(v)}"
        for section, t in spec.items()
        if section != "rounds"
        for k, v in t.items()
    ]
    command = [
        sys.executable,
        "-m",
        "feda2l",
        "run",
        *sets,
        "--set=rounds=60",
        "--out",
        str(tmp_path / "cut"),
        "--resume",
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    lines = tmp_path / "cut" / "rounds.jsonl"
    while not (lines.exists() and lines.read_bytes().count(b"\n") > 5) and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    subprocess.run(command, check=True, capture_output=True)
    assert content(whole.path) == content(tmp_path / "cut")


def test_a_pack_larger_than_gpu_memory_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = population_module.Population.__init__

    def small(self: Population, model: Any, rows: int, *rest: Any, **options: Any) -> None:
        if rows > 8:  # simulate a GPU that holds two runs of four nodes, by a request that no GPU can meet
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        full(self, model, rows, *rest, **options)

    monkeypatch.setattr(population_module.Population, "__init__", small)
    runs = feda2l.run(
        [merged(DETERMINISTIC, {"name": f"r{seed}", "seed": seed, "rounds": 2}) for seed in range(1, 5)],
        out=tmp_path,
        progress=False,
    )
    assert [run.summary["pack"] for run in runs] == [2, 2, 2, 2]


def test_cpu_runs_still_work_after_cuda_was_used(tmp_path: Path) -> None:
    torch.ones(1, device="cuda", requires_grad=True).sum().backward()
    run = feda2l.run(merged(SMALL, {"rounds": 2, "runtime": {"device": "cpu"}}), out=tmp_path / "run", progress=False)
    assert run.summary["engine"] == "rows"
