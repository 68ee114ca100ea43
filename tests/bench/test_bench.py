"""Both sides of the benchmark do the same work, and its output is complete. Speed is not tested."""

import json
import re
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from feda2l.bench import bench, compare, works
from feda2l.bench.exchange_work import exchange_work
from feda2l.bench.plain_loop import PlainLoop
from feda2l.bench.report_work import report_work
from feda2l.data import Images
from feda2l.data.images import digits
from feda2l.errors import FedA2LError
from feda2l.runs.assemble import Assembled, assemble, populate
from feda2l.runs.datasets import Loaded
from feda2l.runs.device import cpu_has_bf16
from feda2l.simulate.loop import RoundLoop, one_thread
from feda2l.spec.spec import Spec

SMALL = {
    "cnn-cifar-b10": partial(works.race, works.CIFAR, partial(works.pictures, 10, 10), rounds=1, repetitions=2),
    "digits": partial(works.race, works.DIGITS, digits, rounds=1, repetitions=2),
    "resnet18-b10": partial(works.race, works.RESNET, partial(works.pictures, 10, 10), rounds=1, repetitions=1),
    "timer-b32": partial(works.race, works.TIMER, partial(works.walks, 8, 1), rounds=1, repetitions=1),
    "adapt": partial(works.adapt, works.CIFAR, partial(works.pictures, 10, 10), rounds=1),
    "mixing": partial(works.mixing, sizes=(5, 10), parameters=20, repetitions=2),
    "nodes": partial(works.growth, sizes=(5, 10), graphs=("k_regular", "one_peer_exponential"), rounds=2),
}
HALF = {
    name: partial(works.half, works.CIFAR, partial(works.pictures, 10, 10), rounds=1, repetitions=1)
    for name in ("cnn-bf16", "resnet18-bf16", "timer-bf16")
}
REPORT = {"report": partial(report_work, runs=4, rounds=12, nodes=3)}
EXCHANGE = {"exchange": partial(exchange_work, nodes=3, model="mlp", rounds=1)}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Use one thread, because multi-threaded loops are slow while other tests use the same cores."""
    with one_thread():
        yield


def run_of(spec: dict, images: Images) -> Assembled:
    return assemble(Spec.parse(spec), Loaded.of(images))


def batches_of(run: Assembled, round: int) -> list[list[list[int]]]:
    """Return the engine's batches of a round as positions in each node's shard, for a DataLoader."""
    member = run.live.plan.member
    found = []
    for node, shard in enumerate(member.shards):
        position = {sample: place for place, sample in enumerate(shard.tolist())}
        steps = member.training.batches(shard, node, round)
        found.append([[position[sample] for sample in step.tolist()] for step in steps])
    return found


@pytest.mark.parametrize(
    ("spec", "images"),
    [(works.CIFAR | {"rates": {"base": 0.1}}, lambda: works.pictures(10, 20)), (works.DIGITS, digits)],
    ids=["cnn", "digits"],
)
def test_a_round_of_the_plain_loop_matches_the_engine(spec, images):
    run = run_of(spec, images())
    plain = PlainLoop.of(run, batches_of(run, round=1))
    engine = populate([run])
    population = engine.population
    before = population.base.clone()
    next(RoundLoop(engine, [run.live]).rounds())
    plain.round()
    for node, model in enumerate(plain.models):
        ours = population.layout.views(population.base[node])
        started = population.layout.views(before[node])
        for theirs, mine, start in zip(model.parameters(), ours, started, strict=True):
            torch.testing.assert_close(theirs.detach(), mine, rtol=0, atol=1e-5)
            assert (mine - start).abs().max() > 1e-4, "a comparison of models that did not move says nothing"


def test_the_plain_loop_draws_full_batches_of_every_node():
    run = run_of(works.DIGITS, digits())
    plain = PlainLoop.of(run)
    size = run.spec.training.batch_size
    seen = [[len(y) for _, y in loader] for loader in plain.loaders]
    assert seen == [[size] * (len(shard) // size) for shard in run.live.plan.member.shards]
    assert sum(map(sum, seen)) == works._images(run)


@pytest.fixture
def small(monkeypatch):
    assert SMALL.keys() == works.WORKS.keys()
    monkeypatch.setattr(works, "WORKS", SMALL)
    assert HALF.keys() == works.HALF_WORKS.keys()
    monkeypatch.setattr(works, "HALF_WORKS", HALF)
    assert REPORT.keys() == compare.load_report_benchmarks().keys()
    monkeypatch.setattr(compare, "load_report_benchmarks", lambda: REPORT)
    assert EXCHANGE.keys() == compare.load_exchange_benchmarks().keys()
    monkeypatch.setattr(compare, "load_exchange_benchmarks", lambda: EXCHANGE)


@pytest.mark.long
def test_every_benchmark_has_a_line_and_a_json_entry(small, capsys, tmp_path):
    file = tmp_path / "bench.json"
    known = [*SMALL, *(HALF if cpu_has_bf16() else {}), *REPORT, *EXCHANGE]
    bench(json_file=file)
    printed = capsys.readouterr()
    lines = printed.out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == known
    for line in lines:
        assert re.search(r"\d(x| %| s)$", line), line
    assert all("images/s" in line for line in lines[:2])
    assert all(name in printed.err for name in known)
    written = json.loads(file.read_text())
    assert list(written["works"]) == known
    assert [written["works"][line.split()[0]]["figure"] for line in lines] == [
        re.search(r"[\d.,]+(x| %| s)$", line)[0] for line in lines
    ]
    assert written["environment"]["packages"]["torch"]


def test_only_selects_benchmarks(small, capsys):
    bench(only=["mixing"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["mixing"]


def test_an_unknown_benchmark_suggests_the_closest_one():
    with pytest.raises(FedA2LError, match="'digit' is unknown; did you mean 'digits'"):
        bench(only=["digit"])


def test_an_unwritable_json_file_is_an_error(small, tmp_path):
    with pytest.raises(FedA2LError, match="cannot be written"):
        bench(only=["mixing"], json_file=tmp_path / "no" / "such.json")
