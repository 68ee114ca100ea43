"""The rate search of DFedHPO at one node: local trials, the trials of neighbours, and a choice."""

import math
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from feda2l.algorithms.base import Trial
from feda2l.engines.engine import Engine
from feda2l.peer.exchange import OverNetwork
from feda2l.round.run import LiveRun
from feda2l.simulate.search import try_out
from feda2l.wire.payload import Template

HUGE = sys.float_info.max  # replaces a non-finite loss in a message, because messages hold only finite numbers


def search(engine: Engine, run: LiveRun, exchange: OverNetwork, meet: Callable[[], object]) -> float:
    """Find the node's base rate and start its rule with it; the trials travel in the first message.

    `meet` waits for the neighbours as before any first round, so that nodes that start later still take part.
    """
    rate_search, seed = run.plan.algorithm.rate_search, run.plan.member.training.seed
    id, messenger = exchange.id, exchange.messenger
    assert rate_search is not None
    first = try_out(engine, run, [rate_search.draw(seed, id)])[0]
    message = {"trials": _packed(first)}
    template = Template.of(message)
    messenger.publish(0, 0, message, template)
    meet()
    received: list[Trial] = []
    for neighbour, head in messenger.heads(0, 0).items():
        if head.round == 0 and (loaded := messenger.load(neighbour, head, template, math.inf)):
            received += _unpacked(loaded["trials"])
    tried = try_out(engine, run, [rate_search.shortlist(first, received, seed, id)])[0]
    rate = rate_search.decide(first, received, tried)
    small_state = run.state.small_state
    small_state["found"][0] = rate
    small_state["epochs"][0] = (len(first) + len(tried)) * rate_search.eval_epochs
    run.restart_rates([rate])
    return rate


def _packed(trials: list[Trial]) -> Tensor:
    return torch.tensor([[trial.rate, min(trial.loss, HUGE)] for trial in trials], dtype=torch.float64)


def _unpacked(trials: Tensor) -> list[Trial]:
    return [Trial(rate, loss if loss < HUGE else math.inf) for rate, loss in trials.tolist()]
