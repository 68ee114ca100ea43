"""The number of rows per group: enough to keep a GPU busy, with few empty places."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feda2l.engines.group_size import MOST, _longest_first, _waste, group_size

RESNET = 11_228_032  # parameters of ResNet-18, aligned
TIMER = 6_515_200
CNN = 890_000


def test_the_cost_of_a_group_is_its_longest_row_times_its_places() -> None:
    runs = [[4, 2], [4, 2]]  # longest first: 4, 4, 2, 2
    assert _waste(_longest_first(runs), 2) == 1  # 2 x 4 + 2 x 2 of 12
    assert _waste(_longest_first(runs), 4) == pytest.approx(16 / 12)
    assert _waste(_longest_first(runs[:1]), 4) == pytest.approx(16 / 6)  # two places are empty
    assert _waste([0, 0], 2) == 0


@pytest.mark.parametrize(
    ("runs", "width", "size"),
    [
        ([[500] * 10], RESNET, 10),  # one run alone
        ([[500] * 10] * 12, RESNET, 10),  # groups of 20 would leave ten places empty for an odd number of runs
        ([[500] * 10] * 24, RESNET, 20),  # with many runs that matters little, and fewer steps are cheaper
        ([[184] * 8] * 16, TIMER, 16),
        # Beijing: 14 of 16 runs train most of the time, and 14 rows have the same number of steps
        ([[129, 124, 119, 111, 101, 97, 83, 43, 42, 14, 10, 4]] * 16, TIMER, 14),
        ([[500] * 10] * 20, CNN, 200),  # small models: a smaller group would not keep a GPU busy
        ([[100, 10, 10, 10]], RESNET, 4),  # too few rows for several groups, so all wait for the longest
        ([[1000] + [10] * 9], RESNET, 5),
    ],
)
def test_group_sizes(runs: list[list[int]], width: int, size: int) -> None:
    assert group_size(runs, width) == size


@given(
    st.lists(st.lists(st.integers(0, 400), min_size=1, max_size=12), min_size=1, max_size=9), st.integers(1, 3 * MOST)
)
def test_group_size_is_bounded(runs: list[list[int]], width: int) -> None:
    size = group_size(runs, width)
    assert 1 <= size <= sum(map(len, runs))
    assert size == 1 or size * width <= MOST
