"""A row's bits do not depend on the other rows. The two engines agree with each other and with torch."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from feda2l.engines.engine import RowEngine, Score, ScoreJob
from feda2l.engines.stacked import Stacked
from feda2l.models import build
from feda2l.round.compare import compare
from feda2l.round.population import point
from feda2l.round.train import Hyperparameters
from feda2l.simulate.loop import RoundLoop

NODES = 10
PERCEPTRONS = {
    "mlp": "",
    # sizes that do not fill vector registers, and no bias in the middle layer
    "odd": "def make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 13), nn.Tanh(),"
    " nn.Linear(13, 7, bias=False), nn.ReLU(), nn.Linear(7, 10))\n",
}
OPTIMIZERS = [("sgd", 0.0), ("sgd", 0.05), ("adam", 0.05), ("adamw", 0.05)]


def spec(model: str = "mlp", **training) -> dict:
    return {
        "data": {"nodes": NODES, "alpha": 1.0},
        "model": {"name": model},
        "rates": {"name": "constant"},
        "training": training,
    }


def train(simulator: RoundLoop, chosen: list[int], rounds: int = 2) -> dict[int, dict[str, Tensor]]:
    """Train these rows for some rounds without mixing. Each row has its own rates and momentum."""
    population, simulation = simulator.engine.population, simulator.runs[0]
    for round in range(1, rounds + 1):
        jobs = [
            job._replace(
                round=round,
                hyper=Hyperparameters(
                    [0.02 / (1 + job.node + layer + round) for layer in simulation.slots], 0.9 - 0.05 * job.node
                ),
            )
            for job in simulation.jobs()
        ]
        losses = simulator.engine.train([jobs[row] for row in chosen])
        population.base[chosen] = population.trained[chosen]
    return {
        row: {"model": population.trained[row].clone(), "loss": torch.tensor(loss, dtype=torch.float64)}
        | {kind: matrix[row].clone() for kind, matrix in population.optimizer_state.items()}
        | {"steps": population.steps[row].clone()}
        for row, loss in zip(chosen, losses, strict=True)
    }


def assert_same_bits(found: dict[int, dict[str, Tensor]], expected: dict[int, dict[str, Tensor]]) -> None:
    for row, values in found.items():
        for kind, value in values.items():
            assert torch.equal(value, expected[row][kind]), f"row {row}: {kind} differs"


@pytest.mark.parametrize(("optimizer", "weight_decay"), OPTIMIZERS)
@pytest.mark.parametrize("model", PERCEPTRONS)
@pytest.mark.parametrize("drop_last", [True, False])
def test_stacked_rows_have_the_same_bits_as_separate_rows(start, module, model, optimizer, weight_decay, drop_last):
    if PERCEPTRONS[model]:
        model = f"{module(PERCEPTRONS[model])}:make"
    settings = spec(model, optimizer=optimizer, weight_decay=weight_decay, drop_last=drop_last)
    simulator = start(settings)
    assert isinstance(simulator.engine, Stacked)
    shards = [len(shard) for shard in simulator.runs[0].plan.member.shards]
    assert len({size // 10 for size in shards}) > 4  # rows drop out one after another
    assert len({size % 10 for size in shards}) > 2  # and last batches differ in size
    together = train(simulator, list(range(NODES)))
    assert all(torch.isfinite(values["model"]).all() for values in together.values())
    draw = random.Random(1)
    for count in (1, 2, 4, 7):
        chosen = draw.sample(range(NODES), count)
        assert_same_bits(train(start(settings), chosen), together)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 16, 33])
@pytest.mark.parametrize("model", PERCEPTRONS)
def test_stacked_rows_have_the_same_bits_as_separate_rows_for_any_batch_size(start, module, model, batch_size):
    """With few samples the bits of a product depend on the memory alignment of its matrices."""
    if PERCEPTRONS[model]:
        model = f"{module(PERCEPTRONS[model])}:make"
    settings = spec(model, batch_size=batch_size, drop_last=False)
    settings["data"] |= {"train_fraction": 0.4, "min_size": 100}
    together = train(start(settings), list(range(NODES)), rounds=1)
    for chosen in ([NODES - 1], [3, 8], [9, 1, 5, 2]):
        assert_same_bits(train(start(settings), chosen, rounds=1), together)


@pytest.mark.parametrize(("optimizer", "weight_decay"), OPTIMIZERS)
@pytest.mark.parametrize("model", PERCEPTRONS)
def test_stacked_engine_matches_the_rows_engine(start, module, model, optimizer, weight_decay):
    if PERCEPTRONS[model]:
        model = f"{module(PERCEPTRONS[model])}:make"
    settings = spec(model, optimizer=optimizer, weight_decay=weight_decay, drop_last=False)
    stacked = train(start(settings), list(range(NODES)))
    simulator = start(settings | {"runtime": {"engine": "rows"}})
    assert isinstance(simulator.engine, RowEngine)
    for row, values in train(simulator, list(range(NODES))).items():
        for kind, value in values.items():
            torch.testing.assert_close(stacked[row][kind], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("drop_last", [True, False])
def test_vmap_convolutions_match_the_rows_engine(start, optimizer, drop_last):
    settings = spec("small_cnn", optimizer=optimizer, drop_last=drop_last) | {"data": {"nodes": 4, "alpha": 1.0}}
    simulator = start(settings | {"runtime": {"engine": "batched"}})
    assert isinstance(simulator.engine, Stacked)
    batched = train(simulator, [0, 1, 2, 3], rounds=1)
    for row, values in train(start(settings), [0, 1, 2, 3], rounds=1).items():
        torch.testing.assert_close(batched[row]["model"], values["model"], rtol=0, atol=1e-4)
        torch.testing.assert_close(batched[row]["loss"], values["loss"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("model", ["mlp", "small_cnn"])
def test_rows_have_the_same_bits_for_any_number_of_workers_and_any_order(start, model):
    settings = spec(model) | {"runtime": {"engine": "rows"}, "data": {"nodes": 5, "alpha": 1.0}}
    alone = train(start(settings), [0, 1, 2, 3, 4])
    for workers, order in ((1, [4, 2, 0, 1, 3]), (2, [3, 0, 4, 1, 2]), (0, [2]), (2, [1, 3])):
        assert_same_bits(train(start(settings, workers=workers), order), alone)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_stacked_rows_have_the_same_bits_for_any_number_of_workers(start, workers):
    expected = train(start(spec()), list(range(NODES)))
    assert_same_bits(train(start(spec(), workers=workers), list(range(NODES))), expected)


def plain_score(simulator: RoundLoop, job: ScoreJob) -> Score:
    """Return loss and correct predictions by a loop over single images."""
    samples, chosen = simulator.engine.samples(job)
    name = "small_cnn" if any(p.dim() == 4 for p in simulator.engine.model.parameters()) else "mlp"
    model = build(name, input=(1, 8, 8)).eval()
    point(model, simulator.engine.population.layout.views(simulator.engine.state(job).clone()), {})
    correct, total = [0] * 10, 0.0
    for index in range(len(samples.y)) if chosen is None else chosen.tolist():
        with torch.no_grad():
            output = model(samples.normalise(samples.x[index : index + 1]))
        target = int(samples.y[index])
        total += float(F.cross_entropy(output, samples.y[index : index + 1]))
        correct[target] += int(output.argmax()) == target
    return Score(total, correct)


@pytest.mark.parametrize(
    ("model", "engine"), [("mlp", "auto"), ("mlp", "rows"), ("small_cnn", "batched"), ("small_cnn", "rows")]
)
def test_scores_match_a_plain_loop(start, model, engine):
    settings = spec(model) | {"runtime": {"engine": engine}, "data": {"nodes": 3, "alpha": 1.0}}
    simulator = start(settings | {"model": {"name": model, "init": "per_node"}})
    simulation = simulator.runs[0]
    compare(simulation)  # writes the mean model
    jobs = [ScoreJob(0, 0, 0, local=False), ScoreJob(2, 0, 2, local=False), ScoreJob(0, 0, None, local=False)]
    jobs += [ScoreJob(node, 0, node, local=True) for node in range(3)]
    for job, score in zip(jobs, simulator.engine.score(jobs), strict=True):
        expected = plain_score(simulator, job)
        assert score.tally == expected.tally
        assert score.loss == pytest.approx(expected.loss, rel=1e-5)


def test_evaluation_batches_count_every_sample_once(start):
    """1,438 training images are not a multiple of the evaluation batch."""
    simulator = start(spec() | {"runtime": {"engine": "rows"}, "data": {"nodes": 1, "train_fraction": 0.2}})
    member = simulator.runs[0].plan.member
    assert len(member.local[0]) > 1000
    (score,) = simulator.engine.score([ScoreJob(0, 0, 0, local=True)])
    expected = plain_score(simulator, ScoreJob(0, 0, 0, local=True))
    assert score.tally == expected.tally
    assert score.loss == pytest.approx(expected.loss, rel=1e-5)


@pytest.mark.parametrize("model", ["mlp", "small_cnn"])
def test_a_score_does_not_depend_on_other_models(start, model):
    simulator = start(spec(model) | {"model": {"name": model, "init": "per_node"}})
    jobs = [ScoreJob(row, 0, row, local=False) for row in range(NODES)]
    together = simulator.engine.score(jobs)
    for count in (1, 2, 7):
        assert simulator.engine.score(jobs[-count:]) == together[-count:]
