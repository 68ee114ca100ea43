"""The search before round 1 (DFedHPO): every node tries rates, receives its neighbours' trials and chooses one."""

import math
from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from feda2l.algorithms.base import RateSearch, Trial
from feda2l.engines.engine import Engine, ScoreJob
from feda2l.round.run import LiveRun, TrainJob
from feda2l.round.train import Hyperparameters

PAIR = 16  # bytes of a rate and its loss
RATE = 8  # bytes of a rate
SPREAD = 1.01  # consensus has been reached when the largest rate is at most this many times the smallest
MOST = 1000  # exchanges after which a consensus is given up


class Found(TypedDict):
    """The result and the cost of a search: `search.json`."""

    rates: list[float]
    epochs: list[int]
    consensus_exchanges: int
    bytes_sent: int
    trials: list[list[dict[str, float | None]]]


def search(engine: Engine, run: LiveRun) -> Found:
    """Find each node's base rate, restart the run's rate rule with it, and report the trials and their cost."""
    plan, rate_search, seed = run.plan, run.plan.algorithm.rate_search, run.plan.member.training.seed
    assert rate_search is not None
    first = _tried_by_all(engine, run, rate_search, [rate_search.draw(seed, id) for id in plan.ids])
    if run.exchange.clock is not None:
        run.exchange.clock.exchange(1, PAIR * rate_search.trials)
    received = {id: [trial for j in plan.mixing.row(id)[0] if j != id for trial in first[j]] for id in plan.ids}
    shortlists = [rate_search.shortlist(first[id], received[id], seed, id) for id in plan.ids]
    tried = _tried_by_all(engine, run, rate_search, shortlists)
    rates = run.collectives.of_all([rate_search.decide(first[id], received[id], tried[id]) for id in plan.ids])
    rates, exchanges = _agree(run, rates) if rate_search.consensus else (rates, 0)
    every = [[*one, *second] for one, second in zip(first, tried, strict=True)]
    epochs = [len(trials) * rate_search.eval_epochs for trials in every]
    for node, id in enumerate(plan.ids):
        run.state.small_state["found"][node], run.state.small_state["epochs"][node] = rates[id], epochs[id]
    run.restart_rates([rates[id] for id in plan.ids])
    return {
        "rates": rates,
        "epochs": epochs,
        "consensus_exchanges": exchanges,
        "bytes_sent": int(plan.mixing.messages().sum()) * (PAIR * rate_search.trials + RATE * exchanges),
        "trials": [[{"rate": trial.rate, "loss": _finite(trial.loss)} for trial in trials] for trials in every],
    }


def _tried_by_all(
    engine: Engine, run: LiveRun, rate_search: RateSearch, rates: Sequence[Sequence[float]]
) -> list[list[Trial]]:
    """Return the trials of every node of the network and advance its clock; `rates` are those of the nodes here."""
    trials = run.collectives.of_all(try_out(engine, run, rates))
    if run.exchange.clock is not None:
        rounds = rate_search.eval_epochs / run.plan.member.training.epochs
        run.exchange.clock.spend(np.array([len(trials_of) * rounds for trials_of in trials]))
    return trials


def try_out(engine: Engine, run: LiveRun, rates: Sequence[Sequence[float]]) -> list[list[Trial]]:
    """Train every node from its start with each of its rates and measure the loss on its unused samples.

    All nodes try their first rates together, then their second rates, and so on. Nodes may have different numbers of
    rates.
    """
    state, member, trials = run.state, run.plan.member, [list[Trial]() for _ in rates]
    changed = [state.base, state.steps, *state.optimizer_state.values(), *state.buffers.values()]
    start = [values.clone() for values in changed]
    for number in range(max(map(len, rates))):
        nodes = [node for node, node_rates in enumerate(rates) if number < len(node_rates)]
        engine.train([_trial_job(run, node, rates[node][number]) for node in nodes])
        state.base.copy_(state.trained)
        jobs = [ScoreJob(run.start + node, run.number, node, local=True) for node in nodes]
        for node, score in zip(nodes, engine.score(jobs), strict=True):
            loss = score.loss / len(member.local[node])
            trials[node].append(Trial(rates[node][number], loss if math.isfinite(loss) else math.inf))
        for values, saved in zip(changed, start, strict=True):
            values.copy_(saved)
    return trials


def _trial_job(run: LiveRun, node: int, rate: float) -> TrainJob:
    """Make the job of a trial: in round 0, so that all trials have the same batches and differ only in the rate."""
    rate_search = run.plan.algorithm.rate_search
    assert rate_search is not None
    hyper = Hyperparameters([rate] * len(run.slots), run.momentum(range(run.plan.nodes)))
    return TrainJob(run.start + node, run.number, node, 0, hyper, rate_search.eval_epochs)


def _agree(run: LiveRun, rates: list[float]) -> tuple[list[float], int]:
    """Average log rates with the neighbours until they are within `SPREAD`; return the rates and the exchanges."""
    exchanges, connected = 0, run.plan.mixing.topology.connected()
    while connected and max(rates) > SPREAD * min(rates) and exchanges < MOST:
        exchanges += 1
        rates = _mixed(run, rates, round=exchanges)
        if run.exchange.clock is not None:
            run.exchange.clock.exchange(exchanges, RATE)
    return rates, exchanges


def _mixed(run: LiveRun, rates: list[float], round: int) -> list[float]:
    """Return each node's weighted mean of log rates over its neighbours and itself."""
    logs = [math.log(rate) for rate in rates]
    mixed = []
    for node in range(run.plan.network):
        ids, _ = run.plan.mixing.row(node, round)
        weights = run.plan.mixing.given(node, round).tolist()
        mixed.append(math.exp(math.fsum(w * logs[j] for w, j in zip(weights, ids, strict=True))))
    return mixed


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
