"""Rounds to a target and best accuracy, as defined in section B.7 of the specification."""

import math
import statistics

import pytest

from feda2l.records.curve_metrics import (
    best_value,
    interpolated_rounds,
    rounds_to_grid,
    rounds_to_target,
    trailing_mean,
)
from feda2l.report.metrics import RoundsToTarget, mean_and_std, rounds_over_seeds


def test_the_mean_is_trailing_and_has_no_partial_windows():
    assert trailing_mean([1, 2, 3, 4, 8], 3) == [None, None, 2, 3, 5]
    assert trailing_mean([1, 2], 3) == [None, None]
    assert trailing_mean([1, 2], 1) == [1, 2]
    assert trailing_mean([], 2) == []


@pytest.mark.parametrize(
    ("curve", "target", "window", "expected"),
    [
        ([0.5], 0.5, 1, 1),  # rounds count from 1, and equal is enough
        ([0.1, 0.2, 0.9], 0.9, 1, 3),
        ([0.9, 0.0, 0.0, 0.9, 0.9], 0.9, 2, 5),  # smoothing removes a single high value
        ([1.0] * 9, 0.1, 10, None),  # no value below the window's length is possible
        ([1.0] * 10, 0.1, 10, 10),
        ([0.3] * 10, 0.3, 10, 10),  # a flat curve at the target reaches it, despite rounding of the sum
        ([0.1, 0.2, 0.3], 0.31, 1, None),  # never reached is None and not round 0
        ([], 0.1, 1, None),
        ([0.0, 0.0, 0.75, 0.0, 0.0], 0.25, 3, 3),
        ([0.4, 0.6, 0.2, 0.1], 0.5, 2, 2),  # the first time counts, even if the value falls later
    ],
)
def test_rounds_to_target(curve, target, window, expected):
    assert rounds_to_target(curve, target, window) == expected


def test_the_window_counts_evaluations_not_rounds():
    """With an evaluation every third round, two values are available at round 6."""
    curve = [None, None, 0.4, None, None, 0.6, None, None, 0.9]
    assert rounds_to_target(curve, 0.5, 2) == 6
    assert rounds_to_target(curve, 0.4, 1) == 3
    assert rounds_to_target(curve, 0.75, 2) == 9
    assert rounds_to_target(curve, 0.5, 4) is None


@pytest.mark.parametrize(
    ("smoothed", "target", "expected"),
    [
        ([0.1, 0.2, 0.6], 0.5, 2.75),  # 2 + (0.5 - 0.2) / (0.6 - 0.2)
        ([0.1, 0.5], 0.5, 2.0),  # exactly at the target in round 2
        ([0.6, 0.7], 0.5, 1.0),  # the first round itself
        ([None, None, 0.6], 0.5, 3.0),  # the first round with a full window itself
        ([math.nan, 0.25, 0.75], 0.5, 2.5),
        ([None, 0.2, None, None, 0.6], 0.3, 2.75),  # one evaluation every third round: 2 + 3 / 4
        ([0.4, 0.2, 0.6, 0.1], 0.5, 2.75),  # the first time counts
        ([0.1, 0.2], 0.5, None),
        ([], 0.5, None),
    ],
)
def test_interpolated_rounds(smoothed, target, expected):
    assert interpolated_rounds(smoothed, target) == (None if expected is None else pytest.approx(expected))


def test_interpolated_rounds_of_an_error_that_falls():
    assert interpolated_rounds([0.9, 0.7, 0.3], 0.4, falls=True) == pytest.approx(2.75)


def test_best_value_three_ways():
    curve = [0.1, 0.7, 0.7, 0.2, *[0.5] * 10]
    best = best_value(curve, window=2)
    assert best["best"] == 0.7
    assert best["best_round"] == 2  # the first of equals
    assert best["best_smoothed"] == pytest.approx(0.7)
    assert best["last_10"] == pytest.approx(0.5)
    assert best_value([None, 0.4, None, 0.2], window=3) == {
        "best": 0.4,
        "best_round": 2,
        "best_smoothed": None,
        "last_10": pytest.approx(0.3),
    }
    assert set(best_value([None, None], window=3).values()) == {None}


def test_rounds_for_a_grid_of_targets():
    curve = [i / 20 for i in range(1, 21)]  # .05, .10, ..., 1
    reached = rounds_to_grid(curve, window=1)
    assert reached == {f"{i / 20:.2f}": i for i in range(1, 20)}  # each value reaches its own target
    assert rounds_to_grid([0.12, 0.12], window=2) == {"0.05": 2, "0.10": 2}
    assert rounds_to_grid([0.26, 0.51], window=1, step=0.25) == {"0.25": 1, "0.50": 2}


def test_rounds_over_seeds_count_censored_runs_as_later_than_all():
    assert rounds_over_seeds([10, 14, 12]) == RoundsToTarget(3, 3, 12, 12, pytest.approx(2.0))
    assert rounds_over_seeds([10, None, 12]) == RoundsToTarget(2, 3, 12, None, None)
    assert rounds_over_seeds([10, None, None]) == RoundsToTarget(1, 3, None, None, None)
    assert rounds_over_seeds([None]) == RoundsToTarget(0, 1, None, None, None)
    assert rounds_over_seeds([10, 13]) == RoundsToTarget(2, 2, 11.5, 11.5, pytest.approx(statistics.stdev([10, 13])))
    assert rounds_over_seeds([10, 12, None, None]).median is None  # the median is larger than every round
    assert rounds_over_seeds([7]) == RoundsToTarget(1, 1, 7, 7, None)


def test_spread_is_the_sample_standard_deviation():
    assert mean_and_std([1.0, 2.0, 3.0]) == (2.0, 1.0)
    assert mean_and_std([5.0]) == (5.0, 0.0)
