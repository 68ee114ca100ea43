"""User models by import path: all their parameters are trained and mixed correctly."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import feda2l
from feda2l.engines.engine import RowEngine
from feda2l.engines.stacked import Stacked, is_perceptron
from feda2l.models import build
from first_models import initial_model

ODDITIES = """
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.frozen = nn.Linear(64, 12).requires_grad_(False)
        self.encode = nn.Linear(12, 12, bias=False)
        self.decode = nn.Linear(12, 12)
        self.decode.weight = self.encode.weight
        self.head = nn.Linear(12, classes)

    def forward(self, x):
        x = torch.tanh(self.frozen(x.flatten(1)))
        return self.head(torch.tanh(self.decode(torch.tanh(self.encode(x))))) * self.scale
"""
TRAINED = ["scale", "encode.weight", "decode.bias", "head.weight", "head.bias"]
PARAMETERS = 1 + 144 + 12 + 130


def spec(model: str, rounds: int = 2, **more) -> dict:
    return {
        "rounds": rounds,
        "data": {"nodes": 4, "alpha": 1.0},
        "model": {"name": model},
        "topology": {"name": "ring"},
        "rates": {"name": "constant", "base": 0.05},
    } | more


def plain_rounds(simulator, template: nn.Module, rounds: int) -> list[nn.Module]:
    """Train rounds on a ring with torch's SGD and state dicts, and sample weights over the closed neighbourhood."""
    member = simulator.runs[0].plan.member
    sizes = [len(shard) for shard in member.shards]
    models = [copy.deepcopy(template) for _ in sizes]
    optimizers = [
        torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.05, momentum=0.9) for m in models
    ]
    samples = member.training.samples
    x, y, normalise = samples.x, samples.y, samples.normalise
    for round in range(1, rounds + 1):
        for node, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            model.train()
            for batch in member.training.batches(member.shards[node], node, round):
                optimizer.zero_grad()
                F.cross_entropy(model(normalise(x[batch])), y[batch]).backward()
                optimizer.step()
        trained = [{name: p.detach().clone() for name, p in model.named_parameters()} for model in models]
        for node, model in enumerate(models):
            near = [(node - 1) % 4, node, (node + 1) % 4]
            total = sum(sizes[i] for i in near)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if parameter.requires_grad:
                        parameter.copy_(sum(trained[i][name] * (sizes[i] / total) for i in near))
    return models


@pytest.mark.parametrize("engine", ["rows", "batched"])
def test_frozen_tied_and_bare_parameters_match_a_plain_loop(start, module, engine):
    name = f"{module(ODDITIES)}:Net"
    settings = spec(name, runtime={"engine": engine})
    simulator = start(settings)
    simulation, layout = simulator.runs[0], simulator.engine.population.layout
    assert [slot.name for slot in layout.slots] == TRAINED
    assert [layer.name for layer in simulation.plan.layers] == ["scale", "encode", "decode", "head"]
    template = initial_model(settings)
    expected = plain_rounds(simulator, template, rounds=2)
    records = [completed[0].record for completed in simulator.rounds()]
    for node, model in enumerate(expected):
        own = dict(model.named_parameters())
        for slot in layout.slots:
            found = slot.view(simulator.engine.population.base[node])
            torch.testing.assert_close(found, own[slot.name].detach(), rtol=1e-4, atol=2e-6)
    assert torch.equal(simulator.engine.model.frozen.weight, template.frozen.weight)
    assert (
        records[-1]["nodes"]["bytes_sent"] == [2 * PARAMETERS * 4] * 4
    )  # frozen parameters are not sent, tied ones once


def test_a_packed_run_keeps_its_own_frozen_parameters(module, tmp_path):
    """The values of a frozen layer depend on the run's seed and not on the pack."""
    name = f"{module(ODDITIES)}:Net"
    specs = [spec(name, rounds=1, seed=seed, name=f"seed{seed}") for seed in (1, 2)]
    packed = feda2l.run(specs, out=tmp_path / "packed", progress=False)
    for settings, together in zip(specs, packed, strict=True):
        alone = feda2l.run(settings, out=tmp_path / settings["name"], progress=False)
        for file in ("rounds.jsonl", "checkpoint.safetensors"):
            assert (together.path / file).read_bytes() == (alone.path / file).read_bytes()


def test_packed_runs_with_different_losses_are_scored_with_their_loss(start, module):
    name = module("def halved(outputs, targets):\n    return nn.functional.cross_entropy(outputs, targets) / 2\n")
    base = spec("mlp", rounds=1, rates={"name": "constant", "base": 1e-12})
    simulator = start(base, base | {"model": {"name": "mlp", "loss": f"{name}:halved"}})
    assert isinstance(simulator.engine, Stacked)
    (completed,) = simulator.rounds()
    plain, halved = (done.record for done in completed)
    assert halved["test_loss"] == pytest.approx(plain["test_loss"] / 2, rel=1e-5)
    assert halved["train_loss"] == pytest.approx(plain["train_loss"] / 2, rel=1e-5)


def test_unused_parameters_work_on_every_engine(start, module):
    source = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(64, 10), nn.Parameter(torch.ones(5))

    def forward(self, x):
        return self.used(x.flatten(1))
"""
    for engine in ("rows", "batched"):
        simulator = start(spec(f"{module(source)}:Net", runtime={"engine": engine}))
        list(simulator.rounds())
        unused = next(slot for slot in simulator.engine.population.layout.slots if slot.name == "unused")
        assert torch.allclose(unused.view(simulator.engine.population.base), torch.ones(4, 5), atol=1e-6)


DROPOUT = """
def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 10))
"""


def test_dropout_gives_the_same_bytes_for_any_number_of_workers(module, tmp_path):
    name = f"{module(DROPOUT)}:make"
    folders = []
    for workers in (0, 1, 2):
        settings = spec(name, runtime={"workers": workers})
        folders.append(feda2l.run(settings, out=tmp_path / str(workers), progress=False).path)
    for file in ("rounds.jsonl", "checkpoint.safetensors", "rounds.parquet", "layers.parquet"):
        assert len({(folder / file).read_bytes() for folder in folders}) == 1


@pytest.mark.parametrize("engine", ["rows", "batched"])
def test_dropout_is_active_in_training_only(start, module, engine):
    """A model that drops all outputs has a training loss of ln 10, but another test loss."""
    source = "def make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Dropout(1.0))\n"
    simulator = start(spec(f"{module(source)}:make", rounds=2, runtime={"engine": engine, "workers": 0}))
    for ((_, record, _),) in simulator.rounds():
        assert record["nodes"]["train_loss"] == pytest.approx([math.log(10)] * 4, rel=1e-6)
        assert abs(record["test_loss"] - math.log(10)) > 0.01


SEQUENTIALS = {
    "a forward of its own": """
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        return -super().forward(x)
""",
    "a linear layer of its own": """
class Negative(nn.Linear):
    def forward(self, x):
        return -super().forward(x)

def Net():
    return nn.Sequential(nn.Flatten(), Negative(64, 10))
""",
    "a layer used twice": """
def Net():
    twice = nn.Linear(64, 64)
    return nn.Sequential(nn.Flatten(), twice, nn.ReLU(), twice, nn.ReLU(), nn.Linear(64, 10))
""",
    "tied weights": """
def Net():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 10))
    model[3].weight = model[1].weight
    return model
""",
    "a linear layer before the flattening": """
def Net():
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Flatten(), nn.Linear(48, 10))
""",
    "weight normalisation": """
def Net():
    return nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(64, 10)))
""",
    "a hook": """
def Net():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    model[1].register_forward_hook(lambda module, inputs, outputs: -outputs)
    return model
""",
    "a frozen layer": """
def Net():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model[1].requires_grad_(False)
    return model
""",
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap of weight normalisation
@pytest.mark.parametrize("source", SEQUENTIALS.values(), ids=SEQUENTIALS)
def test_a_sequential_with_hooks_or_subclasses_is_trained_correctly(start, module, source):
    """`auto` uses the stacked engine for plain perceptrons only. Selecting it by name is also correct."""
    settings = spec(f"{module(source)}:Net", rounds=1)
    simulator = start(settings)
    assert isinstance(simulator.engine, RowEngine)
    template = initial_model(settings)
    expected = plain_rounds(simulator, template, rounds=1)
    batched = start(settings | {"runtime": {"engine": "batched"}})
    for each in (simulator, batched):
        list(each.rounds())
        for node, model in enumerate(expected):
            own = dict(model.named_parameters())
            for slot in each.engine.population.layout.slots:
                found = slot.view(each.engine.population.base[node])
                torch.testing.assert_close(found, own[slot.name].detach(), rtol=1e-4, atol=1e-5)


def test_only_the_mlp_is_a_perceptron():
    assert is_perceptron(build("mlp"))
    assert not is_perceptron(build("small_cnn"))
    assert not is_perceptron(nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 2)))
