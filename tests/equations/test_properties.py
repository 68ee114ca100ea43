"""Properties of the equations that hold for every input."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from feda2l.equations import (
    aggregation_stability,
    decay_factor,
    fusion_score,
    learning_rates,
    multiplier,
    weight_divergence,
    zscore,
)

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
numbers = st.floats(-100, 100).map(lambda x: round(x, 6))
fractions = st.floats(0, 1)


def vectors(min_size: int = 1, max_size: int = 20):
    return st.lists(numbers, min_size=min_size, max_size=max_size).map(lambda v: torch.tensor(v, dtype=torch.float64))


@st.composite
def pairs(draw):
    first = draw(vectors())
    return first, torch.tensor(draw(st.lists(numbers, min_size=len(first), max_size=len(first))), dtype=torch.float64)


@given(pairs(), st.floats(1e-3, 1e3))
def test_divergence_ignores_scale(pair, scale):
    base, trained = pair
    assume(base.norm() > 1e-3)
    torch.testing.assert_close(
        weight_divergence(scale * base, scale * trained, 1e-12),
        weight_divergence(base, trained, 1e-12),
        rtol=1e-6,
        atol=1e-9,
    )


@given(vectors(), st.booleans())
def test_divergence_is_zero_when_nothing_moved(base, eps_in_norm):
    assert weight_divergence(base, base.clone(), 1e-8, eps_in_norm=eps_in_norm) == 0


@given(pairs(), st.floats(1e-6, 200), st.floats(1, 10))
def test_stability_is_a_fraction_that_grows_with_the_threshold(pair, threshold, factor):
    trained, aggregated = pair
    low = aggregation_stability(trained, aggregated, threshold)
    assert 0 <= low <= aggregation_stability(trained, aggregated, threshold * factor) <= 1
    assert aggregation_stability(trained, trained, threshold) == 1


def test_stability_threshold_is_strict():
    assert aggregation_stability(torch.zeros(2), torch.tensor([0.5, 0.25]), 0.5) == 0.5


@given(numbers, st.integers(1, 30), st.floats(1e-12, 1))
def test_constant_window_has_zscore_zero(value, n, eps):
    assert zscore(torch.full((n,), value, dtype=torch.float64), eps) == 0


@given(vectors(2), st.floats(0.01, 100), numbers)
def test_zscore_ignores_an_affine_map(window, slope, shift):
    assume(window.std() > 0.1)
    torch.testing.assert_close(zscore(slope * window + shift, 1e-12), zscore(window, 1e-12), rtol=1e-6, atol=1e-8)


@given(vectors(2))
def test_zscore_is_bounded(window):
    n = len(window)
    assert zscore(window, 1e-6).abs() <= (n - 1) / math.sqrt(n) + 1e-9


@pytest.mark.parametrize(("n", "bound"), [(5, 1.789), (10, 2.846), (20, 4.249)])
def test_zscore_bound_is_reached_by_a_single_jump(n, bound):
    window = torch.zeros(n, dtype=torch.float64)
    window[-1] = 1
    assert zscore(window, 0.0).item() == pytest.approx(bound, abs=5e-4)


@pytest.mark.parametrize("n", [0, 1])
def test_zscore_of_too_few_values_is_zero(n):
    assert torch.equal(zscore(torch.ones(n, 2, 3), 1e-6), torch.zeros(2, 3))


@given(vectors(2))
def test_zscore_equals_the_textbook_formula(window):
    assume(window.std() > 1e-3)
    textbook = (window[-1] - window.mean()) / (window.std(unbiased=True) + 1e-6)
    torch.testing.assert_close(zscore(window, 1e-6), textbook, rtol=1e-8, atol=1e-9)


@given(st.floats(-30, 30), st.floats(-30, 30), fractions, st.sampled_from([torch.float32, torch.float64]))
def test_fusion_score_is_positive_and_between_its_parts(omega, delta, balance, dtype):
    omega, delta = torch.tensor(omega, dtype=dtype), torch.tensor(delta, dtype=dtype)
    low, high = sorted((omega.exp(), delta.exp()))
    fused = fusion_score(omega, delta, balance)
    assert fused > 0
    assert low * (1 - 1e-6) <= fused <= high * (1 + 1e-6)
    assert fusion_score(omega, delta, 1.0) == omega.exp()
    assert fusion_score(omega, delta, 0.0) == delta.exp()


@given(fractions, st.sampled_from(DTYPES))
def test_fusion_score_is_one_at_the_origin(balance, dtype):
    zero = torch.zeros(3, dtype=dtype)
    assert torch.equal(fusion_score(zero, zero, balance), torch.ones(3, dtype=dtype))


@given(st.floats(-8, 8))
def test_multiplier_identity(log):
    fused = torch.tensor(log, dtype=torch.float64).exp()
    m = multiplier(fused)
    assert 0 < m < 2
    torch.testing.assert_close(m, 1 + torch.tanh(torch.tensor(log, dtype=torch.float64)), rtol=1e-7, atol=1e-14)
    torch.testing.assert_close(m, 2 * fused**2 / (1 + fused**2))


def test_multiplier_is_finite_at_extremes():
    assert multiplier(torch.tensor([1e-30, 1.0, 1e30])).tolist() == [0.0, 1.0, 2.0]


@given(vectors(2), st.integers(1, 1000), fractions, st.floats(0, 1), st.floats(1e-4, 1))
def test_rates_stay_inside_their_bounds(window, round, balance, decay, base_lr):
    rate = learning_rates(window, window.flip(0), round=round, base_lr=base_lr, balance=balance, decay=decay, eps=1e-6)
    assert 0 < rate < 2 * base_lr * decay_factor(round, decay)


@given(st.integers(0, 10_000), st.floats(0, 10))
def test_decay_factor_falls_from_one(round, decay):
    assert decay_factor(0, decay) == 1
    assert 0 < decay_factor(round + 1, decay) <= decay_factor(round, decay) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtype_is_kept(dtype):
    base, trained = torch.rand(2, 3, 8).to(dtype), torch.rand(2, 3, 8).to(dtype)
    sigma, zeta = weight_divergence(base, trained, 1e-8), aggregation_stability(base, trained, 0.1)
    assert sigma.dtype == zeta.dtype == dtype
    assert sigma.shape == zeta.shape == (2, 3)
    assert zscore(base, 1e-6).dtype == fusion_score(sigma, zeta, 0.6).dtype == multiplier(sigma + 1).dtype == dtype
    rates = learning_rates(base, trained, round=3, base_lr=0.1, balance=0.6, decay=0.1, eps=1e-6)
    assert rates.dtype == dtype
    assert isinstance(decay_factor(3, 0.1), float)


def test_half_precision_sums_do_not_overflow_or_stall():
    base = torch.full((4096,), 60.0, dtype=torch.float16)  # sum of squares 1.5e7, beyond float16
    assert weight_divergence(base, base * 1.125, 1e-8).item() == pytest.approx(0.125, rel=1e-2)
    moved = base.clone()
    moved[:1024] += 1
    assert aggregation_stability(base, moved, 0.5).item() == pytest.approx(0.75)


def test_leading_axes_do_not_change_the_bits():
    """A peer with one node and a simulator with ten must agree bit by bit."""
    torch.manual_seed(0)
    sigma, zeta = torch.rand(2, 10, 10, 41, dtype=torch.float64)

    def rates(sigma, zeta):
        return learning_rates(sigma, zeta, round=3, base_lr=0.1, balance=0.6, decay=0.1, eps=1e-6)

    for layers in (1, 3, 41):
        together = rates(sigma[..., :layers], zeta[..., :layers])
        for node in range(10):
            alone = rates(sigma[:, node, :layers].clone(), zeta[:, node, :layers].clone())
            assert torch.equal(alone, together[node])
