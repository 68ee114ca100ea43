"""Scoring forecasters together gives the same results as separately, for any number of windows."""

import pytest
import torch
from torch import Tensor

from feda2l.engines.forecast_scores import PIECE, PIECES, ForecastRequest, summed_errors

SAMPLES = torch.arange(10_000, dtype=torch.float64)
calls: list[tuple[torch.Size, torch.Size]] = []


def answer(rows: Tensor, samples: Tensor) -> Tensor:
    """Return errors that identify row and sample: their product, and the sample."""
    calls.append((rows.shape, samples.shape))
    values = SAMPLES[samples]
    return torch.stack([values * rows[:, :1], values], dim=-1)


def part(first: int, count: int) -> Tensor:
    return torch.arange(first, first + count)


@pytest.mark.parametrize("most", [3, PIECE, PIECE + 1, 4 * PIECE, PIECES * PIECE])
def test_each_part_has_the_sum_of_its_samples(most: int) -> None:
    requests = [
        ForecastRequest(torch.tensor([2.0, 9.0]), [part(5, most)]),
        ForecastRequest(torch.tensor([3.0, 9.0]), [part(1, 7), part(40, 0), part(100, most), part(0, 1)]),
        ForecastRequest(torch.tensor([5.0, 9.0]), [part(0, 0)]),
    ]
    found = summed_errors(requests, answer, 2)
    for (state, parts), sums in zip(requests, found, strict=True):
        plain = torch.stack([SAMPLES[own].sum() for own in parts])
        torch.testing.assert_close(sums, torch.stack([plain * state[0], plain], dim=1))


def test_all_calls_have_the_same_shape() -> None:
    calls.clear()
    rows = [
        ForecastRequest(torch.tensor([float(number), 1.0]), [part(number, 10 + number)]) for number in range(PIECES + 3)
    ]
    summed_errors(rows, answer, 2)
    assert calls == [(torch.Size([PIECES, 2]), torch.Size([PIECES, PIECE]))] * 2


def test_no_questions_give_no_sums() -> None:
    calls.clear()
    (sums,) = summed_errors([ForecastRequest(torch.tensor([1.0]), [part(0, 0), part(3, 0)])], answer, 2)
    assert sums.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert not calls
