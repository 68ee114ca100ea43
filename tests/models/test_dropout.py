"""Dropout on a CPU: dropped values, their share, and equality with a plain Mersenne twister."""

import numpy as np
import pytest
import torch
from torch import nn

from feda2l.models.dropout import Dropout, keep_mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,), (7, 3), (5, 4, 2)])
def test_draws_match_a_mersenne_twister(shape, dtype):
    torch.manual_seed(5)
    found = keep_mask(torch.ones(shape, dtype=dtype), 0.25)
    twister = np.random.MT19937()
    twister._legacy_seeding(5)  # seeded as by its authors and by torch
    size = found.numel()
    pairs = twister.random_raw(2 * -(-size // 4)).astype(np.uint64).reshape(-1, 2)
    words = (pairs[:, 0] << np.uint64(32)) | pairs[:, 1]
    # starts with the lowest 16 bits; a quarter of the signed draws is below -2^14
    draws = np.stack([words >> np.uint64(16 * place) for place in range(4)], axis=1).astype(np.uint16).view(np.int16)
    expected = (draws.reshape(-1)[:size] >= -(1 << 14)).reshape(shape)
    assert found.dtype == dtype
    assert found.shape == shape
    assert np.array_equal(found.float().numpy(), expected)


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.9])
def test_dropped_share_and_independence_of_neighbours(chance):
    torch.manual_seed(1)
    keep = keep_mask(torch.ones(1_000_000), chance)
    deviation = (chance * (1 - chance)) ** 0.5
    assert abs(keep.mean() - (1 - chance)) < 5 * deviation / 1000
    apart = (keep - (1 - chance)) / deviation
    for lag in (1, 2, 3, 4, 8):  # draws from the same word and from consecutive words
        assert abs((apart[lag:] * apart[:-lag]).mean()) < 5 / 1000


def test_kept_values_and_gradients_are_scaled():
    torch.manual_seed(2)
    x = torch.randn(50, 30, requires_grad=True)
    y = Dropout(0.2)(x)
    dropped = y == 0
    assert 200 < dropped.sum() < 400
    torch.testing.assert_close(y[~dropped], x[~dropped] / 0.8)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(dropped, 0.0, 1 / 0.8))


@pytest.mark.parametrize(("chance", "expected"), [(0.0, 1.0), (1.0, 0.0)])
def test_dropout_of_probability_0_and_1(chance, expected):
    assert torch.equal(Dropout(chance)(torch.ones(100)), torch.full((100,), expected))


@pytest.mark.parametrize("chance", [1e-9, 1 - 1e-9])
def test_extreme_probabilities_are_rounded_to_the_grid(chance):
    keep = keep_mask(torch.ones(1000), chance)
    assert set(keep.unique().tolist()) <= {0.0, 1.0}
    assert keep.mean().round() == round(1 - chance)


def test_eval_mode_drops_nothing():
    x = torch.randn(10)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert isinstance(Dropout(0.5), nn.Dropout)  # code that looks for nn.Dropout finds it


def test_vmap_rows_have_independent_draws():
    torch.manual_seed(3)
    rows = torch.vmap(Dropout(0.5), randomness="different")(torch.ones(3, 1000))
    agree = [(rows[i] == rows[j]).float().mean() for i, j in ((0, 1), (0, 2), (1, 2))]
    assert all(0.4 < share < 0.6 for share in agree)
