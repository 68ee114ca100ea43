"""The search before round 1: every node tries rates, hears its neighbours' trials and takes one (DFedHPO)."""

import math
from typing import Any

import numpy as np

from feda2l.algorithms.dfedhpo import SPREAD, DFedHPO, Trial
from feda2l.engines.engine import Engine, ScoreJob, TrainJob
from feda2l.round.train import Hyperparameters
from feda2l.simulate.simulation import Simulation

PAIR = 16  # bytes of a rate and a loss
RATE = 8
MOST = 1000  # exchanges of a consensus, then it is left as it is


def search(engine: Engine, simulation: Simulation) -> dict[str, Any]:
    """Find each node's base rate, start the run's rule with it, and say what was tried and what it cost."""
    algorithm, seed = simulation.algorithm, simulation.member.training.seed
    assert isinstance(algorithm, DFedHPO)
    ids = simulation.ids
    hears = {id: [j for j in simulation.mixing.row(id)[0] if j != id] for id in ids}
    clock, a_trial = simulation.clock, algorithm.eval_epochs / simulation.member.training.epochs
    own = simulation.of_all(try_out(engine, simulation, [algorithm.draw(seed, id) for id in ids]))
    if clock is not None:
        clock.spend(np.array([len(trials) * a_trial for trials in own]))
        clock.exchange(1, PAIR * algorithm.trials)
    heard = {id: [trial for j in hears[id] for trial in own[j]] for id in ids}
    shortlists = [algorithm.shortlist(own[id], heard[id], seed, id) for id in ids]
    tried = try_out(engine, simulation, shortlists)
    decided = [algorithm.decide(own[id], heard[id], again) for id, again in zip(ids, tried, strict=True)]
    rates, tried, nodes = simulation.of_all(decided), simulation.of_all(tried), range(simulation.network)
    if clock is not None:
        clock.spend(np.array([len(trials) * a_trial for trials in tried]))
    exchanges = 0
    agree = algorithm.consensus and simulation.mixing.topology.connected()
    while agree and max(rates) > SPREAD * min(rates) and exchanges < MOST:
        rates = _mixed(simulation, rates, round=exchanges + 1)
        exchanges += 1
        if clock is not None:
            clock.exchange(exchanges, RATE)
    epochs = [(len(own[node]) + len(tried[node])) * algorithm.eval_epochs for node in nodes]
    for name, values in (("found", rates), ("epochs", epochs)):
        for node, id in enumerate(ids):
            simulation.notes[name][node] = values[id]
    simulation.rebase([rates[id] for id in ids])
    messages = int(simulation.mixing.messages().sum())
    return {
        "rates": rates,
        "epochs": epochs,
        "consensus_exchanges": exchanges,
        "bytes_sent": messages * (PAIR * algorithm.trials + RATE * exchanges),
        "trials": [[trial._asdict() | {"loss": _finite(trial.loss)} for trial in (*own[i], *tried[i])] for i in nodes],
    }


def try_out(engine: Engine, simulation: Simulation, rates: list[list[float]]) -> list[list[Trial]]:
    """Train every node with each of its rates from its start and take the loss on its unused samples.

    The first rates of all nodes go together, then the second ones, and so on; nodes may have unequal numbers of them.
    """
    population, rows, member = simulation.population, simulation.rows, simulation.member
    assert isinstance(simulation.algorithm, DFedHPO)
    states = [population.base, population.steps, *population.memory.values(), *population.buffers.values()]
    start = [state[rows].clone() for state in states]
    trials: list[list[Trial]] = [[] for _ in rates]
    for number in range(max(map(len, rates))):
        nodes = [node for node, own in enumerate(rates) if number < len(own)]
        hypers = [Hyperparameters([rates[n][number]] * len(simulation.slots), simulation.used_momentum) for n in nodes]
        engine.train(
            [
                # round 0: the same batches in every trial, so that rates are all that differs
                TrainJob(simulation.start + node, simulation.number, node, 0, hyper, simulation.algorithm.eval_epochs)
                for node, hyper in zip(nodes, hypers, strict=True)
            ]
        )
        population.base[rows] = population.trained[rows]
        jobs = [ScoreJob(simulation.start + node, simulation.number, node, local=True) for node in nodes]
        for node, score in zip(nodes, engine.score(jobs), strict=True):
            loss = score.loss / len(member.local[node])
            trials[node].append(Trial(rates[node][number], loss if math.isfinite(loss) else math.inf))
        for state, value in zip(states, start, strict=True):
            state[rows] = value
    return trials


def _mixed(simulation: Simulation, rates: list[float], round: int) -> list[float]:
    """Each node's weighted mean of log rates over those it hears."""
    logs = [math.log(rate) for rate in rates]
    mixed = []
    for node in range(simulation.network):
        ids, _ = simulation.mixing.row(node, round)
        weights = simulation.mixing.given(node, round).tolist()
        mixed.append(math.exp(math.fsum(w * logs[j] for w, j in zip(weights, ids, strict=True))))
    return mixed


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
