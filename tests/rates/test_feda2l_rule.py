"""FedA2L as a rate rule: timing, presets and defaults."""

import math
from dataclasses import fields
from statistics import stdev

import pytest
import torch

from feda2l.equations import Signals, decay_factor
from feda2l.errors import FedA2LError
from feda2l.rates import Setting
from feda2l.rates.feda2l import FedA2LRates, FedA2LRule


def noise(round: int, nodes: int = 1, layers: int = 3) -> Signals:
    generator = torch.Generator().manual_seed(round)
    return Signals(*torch.rand(2, nodes, layers, dtype=torch.float64, generator=generator))


def start(layers: int = 3, base: float | tuple[float, ...] = 0.01, **settings) -> FedA2LRates:
    return FedA2LRule(**settings).start(Setting(base=base, layers=tuple(f"layer{i}" for i in range(layers))))


def first_adapted_round(rates: FedA2LRates) -> int:
    before = rates.rates
    for round in range(1, 100):
        rates.step(round, noise(round))
        if not torch.equal(rates.rates, before):
            return round + 1
    raise AssertionError("never adapted")


@pytest.mark.parametrize("warmup", [0, 1, 10])
def test_first_adapted_round(warmup):
    assert first_adapted_round(start(warmup_rounds=warmup)) == warmup + 2
    # `reference` has m = 1 and no decay with one stored value, so rates change one round later
    assert first_adapted_round(start(preset="reference", warmup_rounds=warmup)) == warmup + 3 + (warmup == 0)


def test_the_base_rate_on_every_layer_during_warm_up():
    rates = start(base=(0.1, 0.2, 0.3), warmup_rounds=10)
    for round in range(1, 11):
        rates.step(round, noise(round))
        assert rates.rates.tolist() == [[0.1, 0.2, 0.3]]
        assert rates.multiplier.tolist() == [[1.0, 1.0, 1.0]]


def test_the_window_holds_only_the_last_rounds():
    rates, short = start(window=4, warmup_rounds=0), start(window=4, warmup_rounds=0)
    for round in range(1, 21):
        rates.step(round, noise(round))
    for round in range(17, 21):
        short.step(round, noise(round))
    assert torch.equal(rates.multiplier, short.multiplier)
    assert rates.history.divergence.shape == (4, 1, 3)


@pytest.mark.parametrize("window", [2, 5])
def test_the_printed_window_divides_the_sum_of_one_more_value_by_the_same_number(window):
    rates = start(layers=1, window=window, window_form="printed", warmup_rounds=0, decay=0.0, balance=1.0)
    for round in range(1, 12):
        rates.step(round, noise(round, layers=1))
    values = [float(noise(round, layers=1).divergence) for round in range(1, 12)][-window - 1 :]
    z = (values[-1] - sum(values) / window) / (stdev(values) + 1e-6)
    assert rates.multiplier.item() == pytest.approx(1 + math.tanh(z), rel=1e-12)


def test_the_printed_window_of_constant_signals_sets_the_rate_to_zero():
    """Constant signals give z = -mean / (rho eps), so the rate falls to 0 but stays finite. Hence only an ablation."""
    rates = start(layers=1, window=2, window_form="printed", warmup_rounds=0)
    half = torch.full((1, 1), 0.5, dtype=torch.float64)
    for round in range(1, 5):
        rates.step(round, Signals(half, half))
    assert rates.rates.tolist() == [[0.0]]


def test_adaptation_with_an_empty_history_is_neutral():
    """If every round so far was skipped, there is no history and m = 1."""
    for preset in ("paper", "reference"):
        rates = start(preset=preset, warmup_rounds=2, window=5, decay=0.0)
        rates.step(9, noise(9))
        assert rates.rates.tolist() == [[0.01] * 3]


@pytest.mark.parametrize(
    ("layers", "task", "expected"),
    [
        (4, {}, (10, 5, 0.3)),
        (10, {}, (10, 5, 0.3)),
        (11, {}, (40, 10, 0.1)),
        (41, {}, (40, 10, 0.1)),
        (41, {"data": "tinyimagenet"}, (40, 10, 0.05)),
        (19, {"model": "timer"}, (20, 10, 0.3)),
    ],
)
@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_defaults_by_depth_and_task(layers, task, expected, preset):
    rule = FedA2LRule(preset=preset).resolved(layers, **task)
    assert (rule.warmup_rounds, rule.window, rule.decay) == expected
    assert (rule.balance, rule.threshold, rule.consensus_sign, rule.eps_norm, rule.eps_std) == (
        0.6,
        1e-3,
        1,
        1e-8,
        1e-6,
    )


def test_presets():
    paper, reference = (FedA2LRule(preset=preset).resolved(41) for preset in ("paper", "reference"))
    assert (paper.transform, paper.newest, paper.decay_index, paper.measured) == ("none", "current", "round", "all")
    assert (paper.warmup_factor, paper.bn_warmup_factor) == (1, 1)
    assert (reference.transform, reference.newest, reference.decay_index) == ("softsign", "previous", "adaptations")
    assert (reference.warmup_factor, reference.bn_warmup_factor, reference.lr_clip) == (0.1, 0.5, (1e-4, 0.02))
    assert FedA2LRule(preset="reference").resolved(4).warmup_factor == 1
    assert FedA2LRule(preset="reference", decay=0.05).resolved(41).warmup_factor == 0.05
    assert FedA2LRule(preset="reference").measure.tensors == "weight"
    assert FedA2LRule(preset="reference").measure.eps_in_norm
    assert not FedA2LRule().measure.eps_in_norm


def test_single_values_override_the_preset():
    rule = FedA2LRule(preset="reference", newest="current", window=7, lr_clip=(0.0, 1.0), warmup_factor=1.0).resolved(
        41
    )
    assert (rule.newest, rule.window, rule.lr_clip, rule.warmup_factor) == ("current", 7, (0.0, 1.0), 1.0)
    assert rule.transform == "softsign"


def test_reference_warm_up_of_a_deep_model():
    names = ("conv1", "bn1", "layer1.0.shortcut.1", *(f"layer{i}" for i in range(9)))
    rates = FedA2LRule(preset="reference").start(Setting(base=0.01, layers=names))
    assert rates.rates[0, :4].tolist() == pytest.approx([0.001, 0.0005, 0.001, 0.001])


def test_reference_clips_its_rates():
    rates = start(preset="reference", base=0.02, warmup_rounds=0, window=5, decay=100.0)
    history = []
    for round in range(1, 400):
        rates.step(round, noise(round))
        history.append(rates.rates.clone())
    assert torch.stack(history[1:]).max() <= 0.02
    assert torch.stack(history).min() == 1e-4


@pytest.mark.parametrize("balance", [0.0, 1.0])
def test_balance_0_and_1_use_only_one_signal(balance):
    rates, other = start(balance=balance, warmup_rounds=0), start(balance=balance, warmup_rounds=0)
    for round in range(1, 10):
        sigma, zeta = noise(round)[:2]
        rates.step(round, Signals(sigma, zeta))
        other.step(round, Signals(sigma if balance else zeta * 3, zeta if not balance else sigma * 3))
    assert torch.equal(rates.rates, other.rates)


def test_decay_counts_rounds_or_adaptations():
    by_round = start(warmup_rounds=3, decay=0.2)
    by_adaptation = start(warmup_rounds=3, decay=0.2, decay_index="adaptations")
    for round in range(1, 8):
        by_round.step(round, noise(round))
        by_adaptation.step(round, noise(round))
    assert torch.allclose(by_round.rates, 0.01 * by_round.multiplier * decay_factor(7, 0.2), rtol=1e-15)
    assert torch.allclose(by_adaptation.rates, 0.01 * by_round.multiplier * decay_factor(3, 0.2), rtol=1e-15)


BAD = {
    "preset": ["papr"],
    "warmup_rounds": [-1, 1.5],
    "window": [1, 0, 5.0],
    "window_form": ["literal", ""],
    "decay": [-0.1, math.nan, math.inf],
    "balance": [-0.1, 1.1, math.nan],
    "threshold": [0.0, -1e-3, math.nan],
    "consensus_sign": [0, 2],
    "eps_norm": [-1e-8, math.nan],
    "eps_std": [0.0, -1e-6, math.nan],
    "transform": ["sofsign", 1],
    "newest": ["last"],
    "decay_index": ["rounds"],
    "warmup_factor": [-1.0, math.nan, math.inf],
    "bn_warmup_factor": [-1.0, math.nan],
    "lr_clip": [(0.02, 1e-4), (-1.0, 1.0), (math.nan, 1.0), (1.0,)],
    "measured": ["weights"],
}


@pytest.mark.parametrize(
    ("setting", "value"), [(setting, value) for setting, values in BAD.items() for value in values]
)
def test_invalid_values_are_reported(setting, value):
    with pytest.raises(FedA2LError, match=rf"rates\.{setting} = "):
        FedA2LRule(**{setting: value})


def test_every_setting_is_covered_by_an_invalid_value():
    assert set(BAD) == {field.name for field in fields(FedA2LRule)}
