"""Replay the states of a trainer in a plain FedA2L loop to get the expected rates."""

import copy

import torch
from torch import nn

from feda2l import FedA2L, layer_groups

SETTINGS = {"warmup_rounds": 1, "window": 3, "decay": 0.1}
State = dict[str, torch.Tensor]


def snapshot(model: nn.Module) -> State:
    return copy.deepcopy(model.state_dict())


def replay(model: nn.Module, rounds: list[tuple[State, State, State]], lr: float, **settings) -> list[list[float]]:
    """The rates of every round and after the last one, from the base, trained and aggregated states."""
    model = copy.deepcopy(model)
    rates = FedA2L(torch.optim.SGD(layer_groups(model), lr=lr), **settings or SETTINGS)
    history = [rates.get_last_lr()]
    for states in rounds:
        if all(torch.equal(states[1][name], states[2][name]) for name in states[1]):  # no model was received
            rates.skip_round()
            history.append(rates.get_last_lr())
            continue
        for state, call in zip(states, (rates.begin_round, rates.end_training, rates.step), strict=True):
            model.load_state_dict(state)
            call()
        history.append(rates.get_last_lr())
    return history


class Neighbour:
    """Averages a model with its initial state and records the base, trained and aggregated states."""

    def __init__(self, model: nn.Module) -> None:
        self.start = snapshot(model)
        self.rounds: list[tuple[State, State, State]] = []
        self._base = self.start

    @torch.no_grad()
    def average(self, model: nn.Module) -> None:
        trained = snapshot(model)
        for name, parameter in model.named_parameters():
            parameter.copy_((3 * parameter + self.start[name]) / 4)
        self.rounds.append((self._base, trained, snapshot(model)))
        self._base = snapshot(model)
