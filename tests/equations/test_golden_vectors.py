"""Values calculated by hand from the paper's equations (the golden vectors of the specification)."""

import pytest
import torch
from torch import Tensor

from feda2l.equations import (
    Signals,
    aggregation_stability,
    decay_factor,
    fusion_score,
    learning_rates,
    multiplier,
    weight_divergence,
    zscore,
)
from feda2l.rates import Setting
from feda2l.rates.feda2l import FedA2LRates, FedA2LRule


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


SIGMA = f64(0.10, 0.12, 0.11, 0.13, 0.15)
ZETA = f64(0.80, 0.82, 0.81, 0.79, 0.85)


def close(value: Tensor | float, expected: float, digits: int = 6) -> None:
    assert float(value) == pytest.approx(expected, abs=0.51 * 10**-digits)


def start(**settings) -> FedA2LRates:
    return FedA2LRule(**settings).start(Setting(base=0.01, layers=("a",)))


def feed(rates: FedA2LRates, sigma: Tensor, zeta: Tensor, first: int = 1) -> None:
    for round, pair in enumerate(zip(sigma, zeta, strict=True), start=first):
        rates.step(round, Signals(*(value.reshape(1, 1) for value in pair)))


def test_signals():
    base, trained, aggregated = f64(1, 2, 2), f64(1, 2, 2.3), f64(1.0005, 2, 2.2)
    sigma = weight_divergence(base, trained, 1e-8)
    zeta = aggregation_stability(trained, aggregated, 1e-3)
    close(sigma, 0.1, 8)
    assert zeta == 2 / 3
    softsign = start(preset="reference").observed(1, Signals(sigma, zeta))
    close(softsign.divergence, 0.0909091, 7)
    close(softsign.stability, 0.4, 12)


def test_window_to_rate():
    omega, delta = zscore(SIGMA, 1e-6), zscore(ZETA, 1e-6)
    close(omega, 1.455575)
    close(delta, 1.563672)
    fused = fusion_score(omega, delta, 0.6)
    close(fused, 4.482700)
    close(multiplier(fused), 1.905189)
    rate = learning_rates(SIGMA, ZETA, round=11, base_lr=0.01, balance=0.6, decay=0.3, eps=1e-6)
    close(rate, 0.00918764, 8)


def test_window_to_rate_through_the_rule():
    rates = start(warmup_rounds=4, window=5, decay=0.3)
    feed(rates, SIGMA, ZETA)
    close(rates.multiplier, 1.905189)
    close(rates.rates, 0.01 * 1.905189 / (1 + 0.3 * 5) ** 0.5, 8)


def test_softsign_windows():
    sigma, zeta = (window / (1 + window) for window in (SIGMA, ZETA))
    omega, delta = zscore(sigma, 1e-6), zscore(zeta, 1e-6)
    close(omega, 1.441695)
    close(delta, 1.554860)
    close(fusion_score(omega, delta, 0.6), 4.430482)
    close(multiplier(fusion_score(omega, delta, 0.6)), 1.903050)


@pytest.mark.parametrize(("count", "rate"), [(0, 0.01903050), (5, 0.01203594)])
def test_released_code(count, rate):
    """The released code lags one round: rounds 1-5 fill the window, and the end of round 6 uses it."""
    rates = start(preset="reference", warmup_rounds=4, window=5, decay=0.3)
    feed(rates, SIGMA, ZETA)
    rates.adaptations = count
    feed(rates, f64(9.0), f64(0.0), first=6)  # the signals of this round are not used yet
    close(rates.rates, rate, 8)


def test_consensus_sign():
    rates = start(consensus_sign=-1, warmup_rounds=4, window=5)
    feed(rates, SIGMA, ZETA)
    close(rates.multiplier, 1.751673)


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 6e4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_constant_window_is_exactly_neutral(value, dtype):
    window = torch.full((7, 3), value).to(dtype)
    assert torch.equal(zscore(window, 1e-6), torch.zeros(3, dtype=dtype))
    assert torch.equal(
        learning_rates(window, window, round=10, base_lr=1.0, balance=0.6, decay=0.3, eps=1e-6),
        torch.full((3,), 0.5, dtype=dtype),
    )


def test_a_jump_has_no_effect_after_one_window():
    rates = start(warmup_rounds=0, window=5, decay=0.0)
    feed(rates, f64(0.1, 0.1, 0.1, 0.1, 0.1, 0.3), torch.full((6,), 0.5, dtype=torch.float64))
    assert rates.multiplier > 1.5
    feed(rates, f64(0.3, 0.3, 0.3, 0.3), torch.full((4,), 0.5, dtype=torch.float64), first=7)
    assert rates.multiplier == 1
    assert rates.rates == 0.01


@pytest.mark.parametrize(("n", "z"), [(5, 1.26), (10, 1.49), (20, 1.61)])
@pytest.mark.parametrize("slope", [0.001, -7.0])
def test_linear_trend(n, z, slope):
    close(zscore(slope * torch.arange(n, dtype=torch.float64), 0.0), z if slope > 0 else -z, 2)


@pytest.mark.parametrize(("n", "consensus", "m"), [(10, -1, 0.10), (10, 1, 1.57), (5, -1, 0.15), (5, 1, 1.43)])
def test_multiplier_while_sigma_falls(n, consensus, m):
    z = zscore(torch.arange(n, dtype=torch.float64), 0.0)
    close(multiplier(fusion_score(-z, consensus * z, 0.6)), m, 2)


def test_decay():
    assert decay_factor(10, 0.3) == 0.5
    assert decay_factor(123, 0.0) == 1.0
    close(decay_factor(40, 0.1), 0.447, 3)


def test_eps_of_the_released_code_is_added_to_each_coordinate():
    base, trained = f64(0, 0, 0, 0), f64(0, 0, 0, 1e-4)
    close(weight_divergence(base, trained, 1e-8), 1e4)
    close(weight_divergence(base, trained, 1e-8, eps_in_norm=True), 0.5e4)
