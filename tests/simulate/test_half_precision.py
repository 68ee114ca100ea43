"""bf16 on a CPU: products are rounded, stored values are not, in every part of a round."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feda2l.engines.engine import EVALUATION_BATCH, RowEngine, ScoreJob, recalibrate_statistics
from feda2l.round.population import point
from feda2l.round.train import in_half
from feda2l.simulate.loop import RoundLoop

ULP = 2.0**-7  # unit in the last place of bf16 between 1 and 2


def test_products_are_rounded_and_gradients_are_fp32():
    """1 + ULP / 4 rounds to 1, and 1 + ULP is exact. The stored parameter is not rounded."""
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1 + ULP / 4)
    inputs = torch.tensor([[1 + ULP], [1 + ULP / 4], [3.0]])
    outputs = in_half(model, inputs)
    assert outputs.dtype == torch.float32
    assert outputs.flatten().tolist() == [1 + ULP, 1.0, 3.0]
    (gradient,) = torch.autograd.grad(outputs.sum(), [model.weight])
    assert gradient.dtype == torch.float32
    assert gradient.item() == 5.0  # 1 + ULP + 1 + 3 is not representable in bf16, whose spacing is 2^-5 there
    assert model.weight.item() == 1 + ULP / 4


class Normed(nn.Module):
    """A convolution, a BatchNorm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Linear(216, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.conv(x))).flatten(1))


def simulator(start, precision: str, **more) -> RoundLoop:
    spec = {
        "data": {"nodes": 3, "alpha": 10.0},
        "model": {"name": f"{__name__}:Normed"},
        "rates": {"name": "constant", "base": 0.05},
        "runtime": {"precision": precision},
    }
    return start(spec | more)


def whole_model(engine: RowEngine, row: int) -> nn.Module:
    """Return the model of a row as a separate module."""
    population = engine.population
    buffers = {name: values[row].clone() for name, values in population.buffers.items()}
    model = copy.deepcopy(engine.model)
    point(model, population.layout.views(population.base[row].clone()), buffers)
    return model


def half(model: nn.Module, inputs: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(inputs)
    assert outputs.dtype == torch.bfloat16
    return outputs.float()


def test_a_step_matches_torch_autocast(start):
    made = simulator(start, "bf16", training={"batch_size": 50})
    job = made.runs[0].jobs()[1]
    member = made.engine.members[0]
    model = whole_model(made.engine, 1).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for batch in member.training.batches(member.shards[1], 1, 1):
        optimizer.zero_grad()
        F.cross_entropy(
            half(model, member.training.samples.inputs(batch)), member.training.samples.targets(batch)
        ).backward()
        optimizer.step()
    made.engine.train([job._replace(round=1)])
    trained = made.engine.population.layout.views(made.engine.population.trained[1])
    for mine, theirs in zip(trained, model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=0, atol=1e-6)
    assert made.engine.population.trained.dtype == torch.float32
    whole = simulator(start, "fp32", training={"batch_size": 50})
    whole.engine.train([job._replace(round=1)])
    assert not torch.allclose(whole.engine.population.trained[1], made.engine.population.trained[1], rtol=0, atol=1e-5)


def test_scores_use_half_precision_outputs(start):
    made = simulator(start, "bf16")
    samples = made.engine.members[0].test
    model = whole_model(made.engine, 2).eval()
    (score,) = made.engine.score([ScoreJob(2, 0, 2, False)])
    with torch.no_grad():
        pieces = torch.arange(len(samples)).split(EVALUATION_BATCH)
        losses = [F.cross_entropy(half(model, samples.inputs(p)), samples.targets(p), reduction="sum") for p in pieces]
    assert score.loss == pytest.approx(float(sum(losses)), rel=1e-6)
    (whole,) = simulator(start, "fp32").engine.score([ScoreJob(2, 0, 2, False)])
    assert score.loss != whole.loss
    assert score.loss == pytest.approx(whole.loss, rel=0.01)


def test_statistics_are_estimated_in_half_precision(start):
    made = simulator(start, "bf16")
    member = made.engine.members[0]
    model = whole_model(made.engine, 0)
    recalibrate_statistics(model, member.shards[0], member.training.samples.inputs, half)
    made.engine.recalibrate([made.runs[0].jobs()[0]])
    assert torch.equal(made.engine.population.buffers["norm.running_var"][0], model.norm.running_var)
    whole = whole_model(made.engine, 0)
    recalibrate_statistics(whole, member.shards[0], member.training.samples.inputs)
    assert not torch.equal(whole.norm.running_var, model.norm.running_var)


def test_distillation_targets_use_half_precision(start):
    """FedNTD stores the outputs of the base model."""
    made = simulator(start, "bf16", algorithm={"name": "fedntd"})
    member = made.engine.members[0]
    base_outputs = made.engine._base_outputs(1, member, member.shards[1])
    with torch.no_grad():
        expected = half(whole_model(made.engine, 1).eval(), member.training.samples.inputs(member.shards[1]))
    assert torch.equal(base_outputs[member.shards[1]], expected)
