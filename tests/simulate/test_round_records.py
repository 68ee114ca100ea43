"""The record of a round: bytes, disagreement and accuracies. Packed runs do not affect each other."""

import math

import pytest
import torch
from torch import Tensor

from feda2l.models import build

MLP = 64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10
NODES = 5


def spec(rounds: int = 2, **more) -> dict:
    return {"rounds": rounds, "data": {"nodes": NODES, "alpha": 1.0}, "rates": {"name": "constant"}} | more


def records(simulator) -> list[list[dict]]:
    """Return the records of each run of the pack."""
    found: list[list[dict]] = [[] for _ in simulator.runs]
    for completed in simulator.rounds():
        for done in completed:
            if done.record:
                found[done.run.number].append(done.record)
    return found


@pytest.mark.parametrize(
    ("topology", "receives"),
    [
        ({"name": "full"}, [4, 4, 4, 4, 4]),
        ({"name": "ring"}, [2, 2, 2, 2, 2]),
        ({"name": "star"}, [4, 1, 1, 1, 1]),
        ({"name": "directed_ring"}, [1, 1, 1, 1, 1]),
        ({"name": "tree"}, [2, 3, 1, 1, 1]),
        ({"name": "isolated"}, [0, 0, 0, 0, 0]),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_feda2l_sends_as_many_bytes_as_a_constant_rate(start, topology, receives):
    constant = spec(topology=topology, evaluation={"every": 2})
    adaptive = constant | {"rates": {"name": "feda2l", "warmup_rounds": 0}}
    for one, other in zip(*records(start(constant, adaptive)), strict=True):
        expected = [neighbours * MLP * 4 for neighbours in receives]
        assert one["nodes"]["bytes_sent"] == other["nodes"]["bytes_sent"] == expected
        assert one["bytes_sent"] == other["bytes_sent"] == sum(expected)


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 2), ("adam", 3), ("adamw", 3)])
def test_averaged_optimizer_state_is_sent(start, optimizer, copies):
    training = {"optimizer": optimizer, "momentum_state": "average"}
    ((record,),) = records(start(spec(1, training=training, topology={"name": "ring"})))
    assert record["nodes"]["bytes_sent"] == [2 * copies * MLP * 4] * NODES


@pytest.mark.parametrize("engine", ["auto", "rows"])
def test_nodes_of_a_full_graph_agree_exactly(start, engine):
    for record in records(start(spec(runtime={"engine": engine})))[0]:
        assert record["disagreement"] == 0
        assert record["layers"]["disagreement"] == [0, 0, 0]
        assert len(set(record["nodes"]["accuracy"])) == 1
        assert record["mean_model_accuracy"] == record["accuracy_worst"] == record["nodes"]["accuracy"][0]
        assert record["accuracy"] == pytest.approx(record["accuracy_worst"], abs=1e-15)
        assert record["accuracy_std"] == pytest.approx(0, abs=1e-15)


def accuracy(simulator, row: Tensor, x: Tensor, y: Tensor) -> float:
    """Return the result of a plain model with the values of a row."""
    model = build("mlp", input=(1, 8, 8))
    with torch.no_grad():
        values = zip(model.parameters(), simulator.engine.population.layout.views(row), strict=True)
        for parameter, value in values:
            parameter.copy_(value)
        return float((model(x).argmax(dim=1) == y).double().mean())


@pytest.mark.parametrize("engine", ["auto", "rows"])
def test_ring_records_match_a_hand_calculation(start, engine):
    simulator = start(spec(3, topology={"name": "ring"}, runtime={"engine": engine}))
    member = simulator.runs[0].plan.member
    x, y = member.test.normalise(member.test.x), member.test.y
    for ((_, record, _),) in simulator.rounds():
        rows = simulator.engine.population.base.double()
        mean = rows.mean(dim=0)
        assert record["disagreement"] == pytest.approx(float((rows - mean).square().sum() / NODES), rel=1e-5)
        assert record["disagreement"] == pytest.approx(sum(record["layers"]["disagreement"]), rel=1e-12)
        for name, found in zip(record["layers"]["name"], record["layers"]["disagreement"], strict=True):
            own = [
                slot.view(rows - mean)
                for slot in simulator.engine.population.layout.slots
                if slot.name.startswith(name)
            ]
            assert found == pytest.approx(sum(float(v.square().sum()) for v in own) / NODES, rel=1e-5)
        each = [accuracy(simulator, row, x, y) for row in simulator.engine.population.base]
        nodes = record["nodes"]
        assert nodes["accuracy"] == pytest.approx(each, abs=1e-12)
        assert record["accuracy"] == pytest.approx(sum(each) / NODES, abs=1e-12)
        assert record["accuracy_worst"] == min(nodes["accuracy"])
        spread = math.sqrt(sum((a - sum(each) / NODES) ** 2 for a in each) / NODES)
        assert record["accuracy_std"] == pytest.approx(spread, abs=1e-9)
        assert record["mean_model_accuracy"] == pytest.approx(accuracy(simulator, mean.float(), x, y), abs=1e-12)
        assert record["train_loss"] == pytest.approx(sum(nodes["train_loss"]) / NODES)


def test_accuracy_by_class_averages_to_the_accuracy(start):
    simulator = start(spec(3, topology={"name": "ring"}))
    *_, last = records(simulator)[0]
    scores = simulator.evaluate(simulator.runs[0])
    counts = torch.bincount(simulator.runs[0].plan.member.test.y).tolist()
    weighted = sum(share * count for share, count in zip(scores["class_accuracy"], counts, strict=True))
    assert weighted / sum(counts) == pytest.approx(last["accuracy"], abs=1e-12)
    assert len(set(scores["class_accuracy"])) > 1
    assert all(scores[key] == last[key] for key in ("accuracy", "test_loss", "mean_model_accuracy", "round"))


@pytest.mark.parametrize("engine", ["auto", "rows"])
@pytest.mark.parametrize("on", ["local", "both"])
def test_local_evaluation_uses_held_out_samples(start, engine, on):
    simulator = start(spec(1, evaluation={"on": on}, topology={"name": "ring"}, runtime={"engine": engine}))
    ((record,),) = records(simulator)
    member = simulator.runs[0].plan.member
    samples = member.training.samples
    each = []
    for node, (own, rest) in enumerate(zip(member.shards, member.local, strict=True)):
        assert not set(own.tolist()) & set(rest.tolist())
        x = samples.normalise(samples.x[rest])
        each.append(accuracy(simulator, simulator.engine.population.base[node], x, samples.y[rest]))
    prefix = "" if on == "local" else "local_"
    assert record["nodes"][f"{prefix}accuracy"] == pytest.approx(each, abs=1e-12)
    assert record[f"{prefix}accuracy"] == pytest.approx(sum(each) / NODES, abs=1e-12)
    assert record[f"{prefix}accuracy_worst"] == pytest.approx(min(each), abs=1e-12)
    assert ("mean_model_accuracy" in record) == (on == "both")
    if on == "both":
        x, y, normalise = member.test.x, member.test.y, member.test.normalise
        tested = [accuracy(simulator, row, normalise(x), y) for row in simulator.engine.population.base]
        assert record["nodes"]["accuracy"] == pytest.approx(tested, abs=1e-12)


def test_evaluation_every_third_round_and_at_the_end(start):
    found = records(start(spec(7, evaluation={"every": 3})))[0]
    assert [record["round"] for record in found] == [1, 2, 3, 4, 5, 6, 7]
    assert [record["round"] for record in found if "accuracy" in record] == [3, 6, 7]
    assert all("train_loss" in record and "disagreement" in record for record in found)


def test_evaluating_less_often_does_not_change_training(start):
    often, seldom = (records(start(spec(4, evaluation={"every": every})))[0] for every in (1, 4))
    assert often[-1] == seldom[-1]


def test_a_round_records_the_rates_it_used(start):
    """A rate that halves every round: round r trains with base / 2^(r - 1)."""
    found = records(start(spec(3, rates={"name": "exponential", "gamma": 0.5, "base": 0.02})))[0]
    for record in found:
        factor = 0.5 ** (record["round"] - 1)
        assert record["layers"]["rate"] == [[pytest.approx(0.02 * factor)] * 3] * NODES
        assert record["layers"]["multiplier"] == [[pytest.approx(factor)] * 3] * NODES


@pytest.mark.parametrize("model", ["mlp", "small_cnn"])
def test_packed_runs_have_the_same_bits_as_separate_runs(start, model):
    """One population holds runs with different seeds, rules, graphs, and numbers of nodes and rounds."""
    chosen = {"name": model}
    specs = [
        spec(2, model=chosen),
        spec(3, model=chosen, seed=2, topology={"name": "ring"}, rates={"name": "feda2l", "warmup_rounds": 0}),
        spec(1, model=chosen, data={"nodes": 3, "partition": "iid"}, training={"momentum": 0.0, "batch_size": 16}),
    ]
    together = records(start(*specs))
    for settings, packed in zip(specs, together, strict=True):
        assert records(start(settings))[0] == packed


@pytest.mark.parametrize("engine", ["auto", "rows"])
def test_a_diverged_run_ends_alone_and_reports_the_place(start, engine):
    runtime = {"engine": engine}
    sound, wild = spec(3, runtime=runtime), spec(3, runtime=runtime, rates={"name": "constant", "base": 1e6})
    simulator = start(wild, sound)
    failed, kept = records(simulator)
    where = simulator.runs[0].non_finite
    assert where is not None
    assert where.round == len(failed) + 1
    assert 0 <= where.node < NODES
    assert where.layer in ("fc1", "fc2", "fc3")
    assert len(kept) == 3
    assert kept == records(start(sound))[0]
