"""FedA2L as an LRScheduler with hivemind's order of calls: one step per epoch, before averaging."""

import copy
import io
import warnings

import pytest
import torch
from replay import SETTINGS, Neighbour, replay
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

import feda2l
from feda2l.integrations.hivemind import HivemindScheduler


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


class Peer:
    """hivemind's order: local steps, the epoch advances, the scheduler catches up, then averaging."""

    def __init__(self, **settings) -> None:
        self.model = small()
        self.neighbour = Neighbour(self.model)
        self.optimizer = torch.optim.SGD(feda2l.layer_groups(self.model), lr=0.05, momentum=0.9)
        self.scheduler = HivemindScheduler(self.optimizer, **settings or SETTINGS)
        self.epoch = 0
        self.seen: list[list[float]] = []  # rates of every local step

    def train(self, steps: int = 2) -> None:
        for step in range(steps):
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(10 * self.epoch + step))
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), torch.arange(8) % 3).backward()
            self.optimizer.step()
            self.seen.append(self.scheduler.get_last_lr())

    def end_epoch(self, average: bool = True) -> None:
        self.epoch += 1
        self.catch_up()
        if average:
            self.neighbour.average(self.model)

    def catch_up(self) -> None:
        while self.scheduler._step_count <= self.epoch:
            self.scheduler.step()

    def play(self, epochs: int) -> "Peer":
        for _ in range(epochs):
            self.train()
            self.end_epoch()
        return self


def test_every_step_trains_with_the_rates_of_the_three_states():
    peer = Peer().play(6)
    peer.train(1)
    expected = replay(small(), peer.neighbour.rounds, lr=0.05)
    assert peer.seen == [rates for rates in expected[:-1] for _ in range(2)] + [expected[-1]]
    assert isinstance(peer.scheduler, LRScheduler)
    assert peer.scheduler.get_last_lr() == [group["lr"] for group in peer.optimizer.param_groups]
    assert peer.scheduler.rates.round == peer.epoch + 1


@pytest.mark.parametrize("within", [False, True])
def test_a_restored_peer_continues_with_the_same_rates(within):
    whole = Peer().play(4)
    if within:
        whole.train(1)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in (whole.model, whole.optimizer, whole.scheduler)], file)
    file.seek(0)
    rest = Peer()
    for part, state in zip((rest.model, rest.optimizer, rest.scheduler), torch.load(file), strict=True):
        part.load_state_dict(state)
    rest.epoch = whole.epoch
    done = len(whole.seen)
    whole.play(4).train()
    rest.play(4).train()
    assert whole.seen[done:] == rest.seen


def test_an_epoch_without_an_average_is_skipped_and_warns_once():
    peer = Peer().play(3)
    peer.train()
    peer.end_epoch(average=False)
    with pytest.warns(UserWarning, match="after a round, which is skipped: no peer was found"):
        peer.train()
    assert peer.seen[-1] == peer.seen[-3]  # the rates of the skipped round stay
    peer.end_epoch(average=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        peer.play(2).train(1)
    assert peer.scheduler.rates.round == peer.epoch + 1
    assert peer.seen[6:12] == [replay(small(), peer.neighbour.rounds[:3], lr=0.05)[-1]] * 6  # rounds 4 to 6


def test_an_epoch_without_training_is_skipped():
    peer = Peer().play(3)
    peer.end_epoch()
    assert peer.scheduler.rates.round == 5
    assert len(peer.scheduler.rates.last) == 2  # the average of round 3 was still measured
    peer.play(2).train(1)
    assert peer.scheduler.rates.round == peer.epoch + 1


@pytest.mark.parametrize("trained", [0, 1])
@pytest.mark.parametrize("missed", [0, 1, 3])
def test_a_peer_that_loads_the_state_of_another_keeps_its_rates_and_skips_missed_rounds(trained, missed):
    peer, donor = Peer().play(4), Peer(**{**SETTINGS, "decay": 0.5}).play(4)
    peer.train(trained)
    rates = peer.scheduler.get_last_lr()
    signals = peer.scheduler.rates.last
    donor.train(1)
    assert donor.scheduler.get_last_lr() != rates
    peer.optimizer.load_state_dict(copy.deepcopy(donor.optimizer.state_dict()))
    peer.model.load_state_dict(donor.model.state_dict())
    peer.epoch += missed
    peer.catch_up()
    assert peer.scheduler.get_last_lr() == rates
    peer.train()
    assert (peer.scheduler.get_last_lr(), peer.scheduler.rates.last) == (rates, signals)
    assert peer.scheduler.rates.round == peer.epoch + 1
    peer.end_epoch()
    peer.play(2).train(1)
    assert peer.scheduler.rates.round == peer.epoch + 1
