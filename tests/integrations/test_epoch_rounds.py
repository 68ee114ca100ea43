"""Rounds counted in epochs: when states are measured, also if a trainer stops before averaging."""

import pytest
import torch
from torch import nn

from feda2l import FedA2L, layer_groups
from feda2l.errors import FedA2LError
from feda2l.integrations.epoch_rounds import EpochRounds


def rates_of(model: nn.Module) -> FedA2L:
    return FedA2L(torch.optim.SGD(layer_groups(model), lr=0.1))


def test_a_round_of_two_epochs():
    model, averaged = nn.Linear(2, 2), []
    rates, rounds = rates_of(model), EpochRounds(averaged.append, 2)
    states = []
    for epoch in range(5):
        rounds.begin(rates, model, epoch)
        rounds.end(rates, model, epoch + 1)
        states.append((rates.round, rates.next_call, len(averaged)))
    assert states == [
        (1, "end_training", 0),
        (2, "begin_round", 1),
        (2, "end_training", 1),
        (3, "begin_round", 2),
        (3, "end_training", 2),
    ]
    assert averaged == [model, model]


def test_a_pending_averaging_runs_before_the_next_epoch():
    model, averaged = nn.Linear(2, 2), []
    rates, rounds = rates_of(model), EpochRounds(averaged.append, 1)
    rounds.begin(rates, model, 0)  # the end of this epoch is never reached
    rounds.begin(rates, model, 1)
    assert (rates.round, rates.next_call, len(averaged)) == (2, "end_training", 1)


def test_failed_averaging_can_be_repeated():
    model, answers = nn.Linear(2, 2), [OSError("no network"), None]

    def average(_: nn.Module) -> None:
        if answer := answers.pop(0):
            raise answer

    rates, rounds = rates_of(model), EpochRounds(average, 1)
    rounds.begin(rates, model, 0)
    with pytest.raises(OSError, match="no network"):
        rounds.end(rates, model, 1)
    assert rates.next_call == "step"
    rounds.end(rates, model, 1)
    assert (rates.round, rates.next_call) == (2, "begin_round")


def test_a_round_without_neighbours_and_one_without_epochs():
    model = nn.Linear(2, 2)
    rates, rounds = rates_of(model), EpochRounds(lambda _: False, 1)
    rounds.begin(rates, model, 0)
    rounds.end(rates, model, 1)
    assert (rates.round, rates.last) == (2, {})
    with pytest.raises(FedA2LError, match="epochs = 0"):
        EpochRounds(lambda _: None, 0)
