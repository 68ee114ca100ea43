"""The deadline, absence and quarantine of a neighbour, compared with hand calculations."""

import pytest

from feda2l.peer.config import DeadlineConfig, LimitsConfig, NeighbourConfig
from feda2l.peer.neighbours import KEPT, Neighbour


def neighbour(
    *arrivals: float, factor: float = 3.0, least: float = 0.1, most: float = 100.0, **limits: int
) -> Neighbour:
    one = Neighbour(
        NeighbourConfig(name="n1", id=1, address="localhost:7001"),
        DeadlineConfig(factor=factor, least=least, most=most),
        LimitsConfig(**limits),
    )
    for round, seconds in enumerate(arrivals, start=1):
        one.came(round, seconds)
    return one


@pytest.mark.parametrize(
    ("arrivals", "bounds", "patience"),
    [
        ((), {}, 100.0),  # too few arrivals: the longest deadline
        ((1.0, 1.0), {}, 100.0),
        ((1.0, 2.0, 4.0), {}, 2 + 3 * 1.0),  # median 2, distances 1 0 2
        ((1.0, 2.0, 4.0, 8.0), {}, 3 + 3 * 1.5),  # median 3, distances 2 1 1 5
        ((1.0, 2.0, 4.0), {"factor": 6.0}, 2 + 6 * 1.0),
        ((1.0, 2.0, 4.0), {"most": 4.5}, 4.5),
        ((1.0, 2.0, 4.0), {"least": 7.0}, 7.0),
        ((2.0, 2.0, 2.0), {}, 2 + 3 * 0.05 * 2),  # without spread, a twentieth of the median is used
        ((2.0, 2.0, 2.0, 50.0), {}, 2 + 3 * 0.05 * 2),  # one outlier moves neither the median nor the spread
    ],
)
def test_the_deadline_is_median_and_spread_within_bounds(arrivals, bounds, patience):
    assert neighbour(*arrivals, **bounds).patience == pytest.approx(patience)


def test_only_the_last_arrivals_count():
    one = neighbour(*[50.0] * 30, *[1.0] * KEPT)
    assert len(one.arrivals) == KEPT
    assert one.patience == pytest.approx(1 + 3 * 0.05)


def test_a_neighbour_that_missed_a_round_is_away_until_it_returns():
    one = neighbour(1.0)
    assert one.present
    assert one.received == 1
    one.missed()
    assert not one.present
    one.came(9, 1.0)
    assert one.present
    assert one.received == 9


def test_quarantine_after_the_configured_strikes_for_the_configured_rounds():
    one = neighbour(strikes=3, quarantine_rounds=4)
    assert [one.record_rejection("digest", 10), one.record_rejection("norm", 11)] == [False, False]
    assert not one.quarantined(12)
    assert one.record_rejection("digest", 12)
    assert [round for round in range(11, 20) if one.quarantined(round)] == [11, 12, 13, 14, 15, 16]
    assert one.rejects == {"digest": 2, "norm": 1}
    assert one.strikes == 0  # the count starts again afterwards
    assert not one.record_rejection("digest", 17)


def test_a_good_message_cancels_a_bad_one():
    one = neighbour(strikes=2, quarantine_rounds=4)
    for round in range(1, 9):
        assert not one.record_rejection("digest", round)
        one.came(round, 1.0)
    assert one.strikes == 0
    assert one.rejects["digest"] == 8
