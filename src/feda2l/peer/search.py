"""DFedHPO's search at one node: its own trials, its neighbours', and a choice."""

import math
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from feda2l.algorithms.dfedhpo import DFedHPO, Trial
from feda2l.engines.engine import Engine
from feda2l.peer.peer import Peer
from feda2l.simulate.search import try_out
from feda2l.wire.payload import Template

HUGE = sys.float_info.max  # a diverged trial's loss as it travels: messages hold finite numbers only


def search(engine: Engine, peer: Peer, meet: Callable[[], object]) -> float:
    """Find the node's base rate and start its rule with it; the exchange of trials is the handshake's.

    `meet` waits for the neighbours as before any first round: whoever is not started yet is not gone.
    """
    algorithm, seed, id, courier = peer.algorithm, peer.member.training.seed, peer.id, peer.courier
    assert isinstance(algorithm, DFedHPO)
    own = try_out(engine, peer, [algorithm.draw(seed, id)])[0]
    message = {"trials": _packed(own)}
    template = Template.of(message)
    courier.publish(0, 0, message, template)
    meet()
    heard: list[Trial] = []
    for neighbour, head in courier.heads(0, 0).items():
        if head.round == 0 and (loaded := courier.load(neighbour, head, template, math.inf)):
            heard += _unpacked(loaded["trials"])
    tried = try_out(engine, peer, [algorithm.shortlist(own, heard, seed, id)])[0]
    rate = algorithm.decide(own, heard, tried)
    peer.notes["found"][0] = rate
    peer.notes["epochs"][0] = (len(own) + len(tried)) * algorithm.eval_epochs
    peer.rebase([rate])
    return rate


def _packed(trials: list[Trial]) -> Tensor:
    return torch.tensor([[trial.rate, min(trial.loss, HUGE)] for trial in trials], dtype=torch.float64)


def _unpacked(trials: Tensor) -> list[Trial]:
    return [Trial(rate, loss if loss < HUGE else math.inf) for rate, loss in trials.tolist()]
