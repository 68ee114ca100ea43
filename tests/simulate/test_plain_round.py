"""Whole runs against a straightforward implementation with models, torch optimizers, dictionaries and loops.

Only the random parts are shared: the assignment of samples, the order of the batches and the initial model.
"""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feda2l.layers import layer_groups
from feda2l.reference import States, algorithm_1
from feda2l.round.run import RunData
from feda2l.runs.assemble import assemble
from feda2l.spec.spec import Spec

ROUNDS = 15
TINY = """
def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
"""
NEAR = {"full": lambda i: [0, 1, 2, 3], "ring": lambda i: sorted({(i - 1) % 4, i, (i + 1) % 4})}
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def spec(model: str, topology: str, preset: str, **training) -> dict[str, Any]:
    return {
        "rounds": ROUNDS,
        "data": {"nodes": 4, "alpha": 0.5},
        "model": {"name": model},
        "topology": {"name": topology},
        "rates": {
            "name": "feda2l",
            "preset": preset,
            "warmup_rounds": 4,
            "window": 3,
            "base": 0.01 if training.get("optimizer", "sgd") == "sgd" else 0.002,
        },
        "training": training,
        "evaluation": {"every": ROUNDS},
    }


class PlainRound(NamedTuple):
    rates: list[dict[str, float]]  # learning rates that each node used
    losses: list[float]
    models: list[dict[str, Tensor]]  # aggregated models


def plain(settings: dict[str, Any], member: RunData, template: nn.Module) -> Iterator[PlainRound]:
    near, rule, how = NEAR[settings["topology"]["name"]], settings["rates"], settings["training"]
    kind, policy = how.get("optimizer", "sgd"), how.get("momentum_state", "keep")
    sizes = [len(shard) for shard in member.shards]
    samples = member.training.samples
    x, y, normalise = samples.x, samples.y, samples.normalise

    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        more = {"momentum": 0.9} if kind == "sgd" else {}
        return OPTIMIZERS[kind](layer_groups(model), lr=1.0, weight_decay=how.get("weight_decay", 0.0), **more)

    def average(values: list[dict[str, Tensor]], node: int) -> dict[str, Tensor]:
        total = sum(sizes[i] for i in near(node))
        return {key: sum(values[i][key] * (sizes[i] / total) for i in near(node)) for key in values[0]}

    models = [copy.deepcopy(template) for _ in sizes]
    optimizers = [optimizer_of(model) for model in models]
    rates = [dict.fromkeys((group["name"] for group in layer_groups(template)), rule["base"]) for _ in sizes]
    history: list[list[dict[str, States]]] = [[] for _ in sizes]

    for round in range(1, ROUNDS + 1):
        bases = [parameters(model) for model in models]
        losses = []
        for node, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            for group in optimizer.param_groups:
                group["lr"] = rates[node][group["name"]]
            seen = []
            for batch in member.training.batches(member.shards[node], node, round):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(normalise(x[batch])), y[batch])
                loss.backward()
                optimizer.step()
                seen.append(loss.item())
            losses.append(sum(seen) / len(seen))
        trained = [parameters(model) for model in models]
        aggregated = [average(trained, node) for node in range(4)]
        optimizer_state = [memory_of(model, optimizer) for model, optimizer in zip(models, optimizers, strict=True)]
        for node, model in enumerate(models):
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.copy_(aggregated[node][name])
            if policy == "reset":
                optimizers[node] = optimizer_of(model)
            elif policy == "average":
                mixed = average(optimizer_state, node)
                for key, value in memory_of(model, optimizers[node], live=True).items():
                    value.copy_(mixed[key])
        yield PlainRound(rates, losses, aggregated)
        following = []
        for node in range(4):
            history[node].append(states(rule["preset"], bases[node], trained[node], aggregated[node]))
            knobs = {"base_lr": rule["base"], "warmup_rounds": 4, "window": 3, "decay": 0.3, "preset": rule["preset"]}
            following.append(algorithm_1(history[node], **knobs)[-1])
        rates = following


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def memory_of(model: nn.Module, optimizer: torch.optim.Optimizer, live: bool = False) -> dict[str, Tensor]:
    found = {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
        if key != "step"
    }
    return found if live else {key: value.clone() for key, value in found.items()}


def states(preset: str, *three: dict[str, Tensor]) -> dict[str, States]:
    """Return the measured parameters of each layer as numbers. The released code leaves biases out."""

    def layer(values: dict[str, Tensor], name: str) -> list[float]:
        tensors = ["weight"] if preset == "reference" else ["weight", "bias"]
        return [number for tensor in tensors for number in values[f"{name}.{tensor}"].flatten().tolist()]

    names = dict.fromkeys(name.rpartition(".")[0] for name in three[0])
    return {name: States(*(layer(values, name) for values in three)) for name in names}


@pytest.mark.parametrize(
    ("topology", "preset", "training"),
    [
        ("ring", "paper", {}),
        ("full", "paper", {}),
        ("ring", "reference", {}),
        ("full", "reference", {}),
        ("ring", "paper", {"momentum_state": "reset", "weight_decay": 0.01}),
        ("ring", "paper", {"momentum_state": "average"}),
        ("ring", "paper", {"optimizer": "adam"}),
        ("ring", "reference", {"optimizer": "adam", "momentum_state": "reset"}),
        ("ring", "paper", {"optimizer": "adamw", "momentum_state": "average", "weight_decay": 0.05}),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else value,
)
def test_fifteen_rounds_match_a_plain_loop(start, module, digits, topology, preset, training):
    """Compare models and rates. With one row at a time, each step has the same arithmetic as the plain loop."""
    settings = spec(f"{module(TINY)}:make", topology, preset, **training) | {"runtime": {"engine": "rows"}}
    template = copy.deepcopy(assemble(Spec.parse(settings), digits).model)
    simulator = start(settings)
    member, layout = simulator.runs[0].plan.member, simulator.engine.population.layout
    assert len({len(shard) for shard in member.shards}) == 4  # sample weights matter
    for expected, ((_, record, _),) in zip(plain(settings, member, template), simulator.rounds(), strict=True):
        for node in range(4):
            assert record["layers"]["rate"][node] == pytest.approx(list(expected.rates[node].values()), rel=1e-4)
            for slot in layout.slots:
                found = slot.view(simulator.engine.population.base[node])
                torch.testing.assert_close(found, expected.models[node][slot.name], rtol=1e-4, atol=1e-5)
        assert record["nodes"]["train_loss"] == pytest.approx(expected.losses, abs=1e-5)
    adapted = {rate for node in record["layers"]["rate"] for rate in node}
    assert len(adapted) == 8  # by then each node and layer has a different rate


@pytest.mark.parametrize("engine", ["auto", "rows"])
@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_rates_match_algorithm_1_on_the_states_of_the_run(start, module, engine, preset):
    """Algorithm 1 gets the exact B, T and A of every round, so that errors cannot accumulate."""
    settings = spec(f"{module(TINY)}:make", "ring", preset) | {"runtime": {"engine": engine}}
    simulator = start(settings)
    population = simulator.engine.population

    def named(matrix: Tensor, node: int) -> dict[str, Tensor]:
        return {slot.name: slot.view(matrix[node]).clone() for slot in population.layout.slots}

    history: list[list[dict[str, States]]] = [[] for _ in range(4)]
    used: list[list[list[float]]] = []
    base = [named(population.base, node) for node in range(4)]
    for ((_, record, _),) in simulator.rounds():
        used.append(record["layers"]["rate"])
        for node in range(4):
            trained, aggregated = named(population.trained, node), named(population.base, node)
            history[node].append(states(preset, base[node], trained, aggregated))
            base[node] = aggregated
    for node in range(4):
        expected = algorithm_1(history[node], base_lr=0.01, warmup_rounds=4, window=3, decay=0.3, preset=preset)
        for round in range(ROUNDS):
            assert used[round][node] == pytest.approx(list(expected[round].values()), rel=1e-4)
        assert simulator.runs[0].state.rates.rates[node].tolist() == pytest.approx(
            list(expected[ROUNDS].values()), rel=1e-4
        )
