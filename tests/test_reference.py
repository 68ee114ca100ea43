"""The plain Algorithm 1 equals hand calculations, and the drop-in and the equations equal Algorithm 1."""

import math
import random
import warnings

import pytest
import torch
from torch import nn

from feda2l import FedA2L, layer_groups
from feda2l.equations import aggregation_stability, learning_rates, weight_divergence
from feda2l.reference import States, algorithm_1, z_score

ROUNDS = 100


def random_rounds(layers: list[str], rounds: int, seed: int = 0) -> list[dict[str, States]]:
    """Random rounds. The size of the updates differs between layers and between rounds."""
    draw = random.Random(seed)
    base = {layer: [draw.gauss(0, 1) for _ in range(2 + 3 * i)] for i, layer in enumerate(layers)}
    history = []
    for _ in range(rounds):
        states = {}
        for layer in layers:
            step, pull = 10 ** draw.uniform(-3, -1), 10 ** draw.uniform(-4, -2)
            trained = [b + draw.gauss(0, step) for b in base[layer]]
            states[layer] = States(base[layer], trained, [t + draw.gauss(0, pull) for t in trained])
        base = {layer: list(state.aggregated) for layer, state in states.items()}
        history.append(states)
    return history


class Vectors(nn.Module):
    """One layer per name, each with one tensor."""

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__()
        for name, size in sizes.items():
            layer = nn.Module()
            layer.weight = nn.Parameter(torch.zeros(size, dtype=torch.float64))
            self.add_module(name, layer)

    def put(self, values: dict[str, list[float]]) -> None:
        with torch.no_grad():
            for name, layer in self.named_children():
                layer.weight.copy_(torch.tensor(values[name], dtype=torch.float64))


LAYERS = {"shallow": ["a", "b", "c", "d"], "deep": [f"{'bn' if i % 4 == 3 else 'conv'}{i}" for i in range(12)]}


@pytest.mark.parametrize("preset", ["paper", "reference"])
@pytest.mark.parametrize("depth", LAYERS)
@pytest.mark.parametrize("options", [{}, {"balance": 0.2, "threshold": 1e-4, "window": 7, "decay": 0.05}])
def test_drop_in_equals_algorithm_1(preset, depth, options):
    rounds = random_rounds(LAYERS[depth], ROUNDS, seed=len(options))
    settings = {"warmup_rounds": 10, "window": 5, "decay": 0.3} | options
    expected = algorithm_1(rounds, base_lr=0.01, preset=preset, **settings)

    model = Vectors({layer: len(states.base) for layer, states in rounds[0].items()})
    optimizer = torch.optim.SGD(layer_groups(model), lr=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        rates = FedA2L(optimizer, preset=preset, **settings)
    assert rates.get_last_lr() == pytest.approx(list(expected[0].values()), rel=1e-12)
    for states, following in zip(rounds, expected[1:], strict=True):
        for call, moment in zip((rates.begin_round, rates.end_training, rates.step), States._fields, strict=True):
            model.put({layer: getattr(state, moment) for layer, state in states.items()})
            call()
        assert rates.get_last_lr() == pytest.approx(list(following.values()), rel=1e-12)
    assert len({f"{rate:.9f}" for used in expected for rate in used.values()}) > ROUNDS  # the rates did adapt


def test_equations_equal_algorithm_1():
    rounds = random_rounds(["a", "b"], ROUNDS)
    expected = algorithm_1(rounds, base_lr=0.01, warmup_rounds=10, window=5, decay=0.3)

    def f64(values):
        return torch.tensor(values, dtype=torch.float64)

    for layer in ("a", "b"):
        states = [states[layer] for states in rounds]
        sigma = torch.stack([weight_divergence(f64(s.base), f64(s.trained), 1e-8) for s in states])
        zeta = torch.stack([aggregation_stability(f64(s.trained), f64(s.aggregated), 1e-3) for s in states])
        for r in range(11, ROUNDS + 1):
            rate = learning_rates(
                sigma[r - 5 : r], zeta[r - 5 : r], round=r, base_lr=0.01, balance=0.6, decay=0.3, eps=1e-6
            )
            assert rate.item() == pytest.approx(expected[r][layer], rel=1e-12)


def test_z_score_by_hand():
    assert z_score([0.10, 0.12, 0.11, 0.13, 0.15], 1e-6) == pytest.approx(1.455575, abs=5.1e-7)
    assert z_score([0.80, 0.82, 0.81, 0.79, 0.85], 1e-6) == pytest.approx(1.563672, abs=5.1e-7)
    assert z_score([3.0], 1e-6) == z_score([], 1e-6) == 0


def test_two_rounds_by_hand():
    """sigma .1 then .2 and zeta 2/3 then 1/3: z = 1/sqrt(2) and -1/sqrt(2)."""
    first = States([1, 2, 2], [1, 2, 2.3], [1.0005, 2, 2.2])
    second = States([1, 2, 2], [1, 2, 2.6], [1.0005, 2.1, 2.2])
    rates = algorithm_1([{"a": first}, {"a": second}], base_lr=0.01, warmup_rounds=1, window=5, decay=0.3)
    fused = 0.6 * math.exp(1 / math.sqrt(2)) + 0.4 * math.exp(-1 / math.sqrt(2))
    assert [used["a"] for used in rates[:2]] == [0.01, 0.01]
    assert rates[2]["a"] == pytest.approx(0.01 * (1 + math.tanh(math.log(fused))) / math.sqrt(1.6), rel=1e-4)


def test_reference_timing_by_hand():
    """R_warm 2: rounds 1-4 at the base rate, the first adapted round is 5, without decay."""
    still = {"a": States([1.0, 2.0], [1.1, 2.0], [1.1, 2.0])}
    rates = algorithm_1([still] * 6, base_lr=0.01, warmup_rounds=2, window=5, decay=0.3, preset="reference")
    expected = [0.01, 0.01, 0.01, 0.01, 0.01, 0.01 / math.sqrt(1.3), 0.01 / math.sqrt(1.6)]
    assert [used["a"] for used in rates] == pytest.approx(expected)
    paper = algorithm_1([still] * 4, base_lr=0.01, warmup_rounds=2, window=5, decay=0.3)
    assert [used["a"] for used in paper] == pytest.approx([0.01] * 3 + [0.01 / math.sqrt(1.9), 0.01 / math.sqrt(2.2)])
