"""Where the algorithms converge on problems whose optimum is known.

The problem is regularised multinomial logistic regression on real digits. Six nodes hold equal shards, assigned by
class, so the objective is the plain mean of the nodes' losses. Newton's method in NumPy finds its optimum. The tests
run the whole simulator (engine, hooks, mixing, rate rule) in float64. Steps are powers of two, because the stacked
engine rounds a rate to float32. The engine that trains nodes one by one is tested too.

By default a full batch is one step, so the tests see the bias of the algorithm and no sampling noise. The L2 term is
the optimizer's weight decay. docs/equations.md, "Theory", holds the measured values;
`pytest -s tests/algorithms/test_theory.py` prints them, including the larger tables unless -m "not long" is given.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.linalg import block_diag
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call

from feda2l.algorithms import Algorithm, FedAvg
from feda2l.algorithms.choco import Choco
from feda2l.algorithms.dfedavgm import DFedAvgM
from feda2l.algorithms.dpsgd import DPSGD
from feda2l.algorithms.gradient_tracking import GradientTracking
from feda2l.algorithms.push_sum import PushSum
from feda2l.algorithms.qg_dsgdm import QGDSGDm
from feda2l.data.samples import Labelled
from feda2l.engines.engine import Engine, RowEngine
from feda2l.engines.stacked import Stacked
from feda2l.layers import find_layers
from feda2l.rates import Setting
from feda2l.rates.base import Rule
from feda2l.rates.constant import Constant
from feda2l.rates.feda2l import FedA2LRule
from feda2l.round.population import Population
from feda2l.round.run import LiveRun, RunData, RunPlan
from feda2l.round.train import Loss, Training
from feda2l.simulate.exchange import AllNodes
from feda2l.simulate.loop import RoundLoop
from feda2l.topology import build, build_mixing

pytestmark = pytest.mark.usefixtures("one_thread_each")

NODES, SHARD, CLASSES = 6, 60, 10
L2 = 1.0  # strong convexity of the objective: with step a the initial error decays as exp(-a L2 rounds)
FOREVER = 10**9
DRAWN = 4  # the seed of a random graph
Array = NDArray[np.float64]


# --- the problem, and its optimum by another method -----------------------------------------------------------


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Real digits, centred: as many as the shards hold."""
    x, y = load_digits(return_X_y=True)
    x, y = x[: NODES * SHARD] / 16, y[: NODES * SHARD]
    return torch.from_numpy(x - x.mean(axis=0)), torch.from_numpy(y)


def by_class() -> list[Tensor]:
    """The most unequal assignment: a node has two or three of the ten digits."""
    return list(torch.argsort(digits()[1], stable=True).split(SHARD))


def at_random() -> list[Tensor]:
    """A random assignment."""
    order = torch.randperm(NODES * SHARD, generator=torch.Generator().manual_seed(1))
    return list(order.split(SHARD))


def copies() -> list[Tensor]:
    """The same samples for every node."""
    return [torch.arange(NODES * SHARD)] * NODES


@cache
def _by_node() -> tuple[Array, Array]:
    """Features with an appended 1 [nodes, shard, features + 1] and one-hot classes, assigned by class."""
    x, y = (values.numpy() for values in digits())
    rows = torch.stack(by_class()).numpy()
    return np.concatenate([x, np.ones((len(x), 1))], axis=1)[rows], np.eye(CLASSES)[y[rows]]


def gradients(at: Array) -> Array:
    """The gradient of each node's regularised loss at that node's point: [nodes, classes, features + 1]."""
    features, hot = _by_node()
    return (_probabilities(at) - hot).transpose(0, 2, 1) @ features / SHARD + L2 * at


def _probabilities(at: Array) -> Array:
    odds = np.exp(_by_node()[0] @ at.transpose(0, 2, 1))
    return odds / odds.sum(axis=2, keepdims=True)


def everywhere(point: Array) -> Array:
    return np.broadcast_to(point, (NODES, *point.shape))


@cache
def optimum(weights: tuple[float, ...] = (1 / NODES,) * NODES) -> Array:
    """The minimiser of sum_i weights_i f_i, [classes, features + 1], by Newton's method to rounding."""
    features = _by_node()[0].reshape(NODES * SHARD, -1)
    each = np.repeat(weights, SHARD) / SHARD
    point = np.zeros((CLASSES, features.shape[1]))
    for _ in range(20):
        gradient = np.tensordot(weights, gradients(everywhere(point)), axes=1)
        if np.abs(gradient).max() < 1e-15:
            return point
        probability = _probabilities(everywhere(point)).reshape(len(features), CLASSES)
        joint = (probability[:, :, None] * features[:, None, :]).reshape(len(features), -1)
        blocks = [(features.T * (each * column)) @ features for column in probability.T]
        hessian = block_diag(*blocks) - (joint.T * each) @ joint + L2 * np.eye(point.size)
        point = point - np.linalg.solve(hessian, gradient.ravel()).reshape(point.shape)
    raise AssertionError("Newton's method did not converge")


def squared_gradient(point: Array) -> float:
    """||grad f||^2 of the plain mean of the nodes' losses."""
    return float(np.square(gradients(everywhere(point)).mean(axis=0)).sum())


def distance(point: Array, to: Array) -> float:
    return float(np.linalg.norm(point - to) / np.linalg.norm(to))


# --- the simulator in float64 ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One run of a pack."""

    algorithm: Algorithm
    graph: str
    rate: float
    rounds: int = FOREVER
    weights: str = "metropolis"
    shards: list[Tensor] = field(default_factory=by_class)
    epochs: int = 1
    batch: int = SHARD
    momentum: float = 0.0
    rule: Rule = field(default_factory=Constant)
    factors: tuple[float, ...] = ()
    seed: int = 0


def logistic(start: Array | None = None) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES)).double()
    start = np.zeros((CLASSES, 65)) if start is None else start
    for parameter, values in zip(model.parameters(), (start[:, :-1], start[:, -1]), strict=True):
        parameter.data.copy_(torch.from_numpy(values))
    return model


def simulate(
    *runs: Run,
    model: nn.Module | None = None,
    samples: Labelled | None = None,
    loss: Loss = F.cross_entropy,
    l2: float = L2,
    engine: type[Engine] = Stacked,
) -> tuple[list[LiveRun], Iterator[Any]]:
    """Start runs from one model as one pack. The iterator performs one round of every unfinished run."""
    model = logistic() if model is None else model
    samples = Labelled(*digits(), lambda x: x) if samples is None else samples
    test = Labelled(samples.x[:1], samples.y[:1], lambda x: x)
    layers = find_layers(model)
    names = tuple(layer.name for layer in layers)
    simulations = []
    for run in runs:
        sizes = [len(shard) for shard in run.shards]
        push = run.algorithm.mixing == "push"
        mixing = build_mixing(build(run.graph, len(sizes), k=2, seed=DRAWN), run.weights, sizes, push=push)
        assert mixing.doubly_stochastic() or run.algorithm.mixing in ("any", "push")
        assert mixing.symmetric() or run.algorithm.mixing != "symmetric"
        training = Training(samples, loss, "sgd", l2, run.batch, run.epochs, True, run.seed, run.algorithm)
        plan = RunPlan(
            name="",
            rounds=run.rounds,
            member=RunData(training, run.shards, [], test, CLASSES),
            layers=layers,
            mixing=mixing,
            rule=run.rule,
            setting=Setting(run.rate, names, tuple(range(len(sizes))), factors=run.factors),
            momentum=run.momentum,
            momentum_state="reset",
            buffers="local",
            averaged=[],
            every=FOREVER,
            on="global",
            network=len(sizes),
        )
        simulation = LiveRun(plan, AllNodes(mixing, plan.samples))
        simulations.append(simulation)
    state = {name for run in runs for name in run.algorithm.state}
    rows = sum(len(run.shards) for run in runs)
    population = Population(model, rows, len(runs), "sgd", state=state, dtype=torch.float64)
    for row in range(rows):
        population.place(row, model)
    start = 0
    for number, simulation in enumerate(simulations):
        simulation.join(population, start, number)
        start += simulation.plan.nodes
    trainer = engine(model, population, [simulation.plan.member for simulation in simulations])
    trainer.start(0)
    return simulations, RoundLoop(trainer, simulations).rounds()


def finish(rounds: Iterator[Any], count: int | None = None) -> None:
    for completed in islice(rounds, count):
        assert all(done.record is not None for done in completed), "a run became non-finite"


def points(simulation: LiveRun) -> Array:
    """The model of each node: [nodes, classes, features + 1]."""
    population = simulation.state.population
    weight, bias = population.layout.views(population.base[simulation.state.rows])
    return np.concatenate([weight.numpy(), bias.numpy()[:, :, None]], axis=2)


def errors(simulation: LiveRun, to: Array) -> Array:
    """Relative distances to a point: of the mean model and of the worst node."""
    actual = points(simulation)
    return np.array([distance(actual.mean(axis=0), to), max(distance(node, to) for node in actual)])


# --- constant steps -------------------------------------------------------------------------------------------

CONSENSUS: dict[str, Run] = {
    "dpsgd": Run(DPSGD(), "", 0.0),
    "dfedavgm": Run(DFedAvgM(), "", 0.0, epochs=2, momentum=0.5),
    "choco": Run(Choco(compressor="top_k", ratio=0.25, gamma=0.5), "", 0.0),
    # momentum 0.9 needs ten times as many rounds; the fixed point does not depend on it, see below
    "qg_dsgdm": Run(QGDSGDm(beta=0.5, mu=0.5), "", 0.0),
}


@pytest.mark.parametrize("name", CONSENSUS)
def test_the_error_of_a_constant_step_shrinks_with_the_step(name: str) -> None:
    """error(a) = C a (1 - K a + ...): halving the step halves the error, the more exactly the smaller it is.

    C and K grow with the inverse of the spectral gap (ring and grid of six: about 1/3). From a = 1/16 on, K a is below
    1/4, so the ratio of the errors is at most .5 + .11, then .5 + .06. Runs start at the optimum, where an unbiased
    algorithm would stay. They take 3 / (a L2) rounds, that is 95 % of the way to their fixed point.
    """
    steps = (1 / 16, 1 / 32, 1 / 64)
    runs = [
        replace(CONSENSUS[name], graph=graph, rate=step, rounds=round(3 / (step * L2)))
        for graph in ("ring", "grid", "full")
        for step in steps
    ]
    simulations, rounds = simulate(*runs, model=logistic(optimum()))
    finish(rounds)
    for start in range(0, len(runs), len(steps)):
        actual = np.array([errors(simulation, optimum()) for simulation in simulations[start : start + len(steps)]])
        ratios = actual[1:] / actual[:-1]
        print(
            f"{name:9} {runs[start].graph:5} mean {actual[:, 0]} node {actual[:, 1]} ratios {ratios.round(3).tolist()}"
        )
        if runs[start].graph == "full" and name in ("dpsgd", "qg_dsgdm"):
            assert actual.max() < 1e-14  # one step and full averaging are gradient descent, which has no bias
            continue
        assert actual[0, 0] > 1e-3  # the error is not zero
        assert (ratios[0] < 0.61).all()
        assert (ratios[1] < 0.56).all()
        assert (np.abs(ratios[1] - 0.5) < np.abs(ratios[0] - 0.5)).all()  # and the ratio tends to one half


def test_fixed_points_equal_those_of_the_equations() -> None:
    """At a fixed point quasi-global momentum is 0 and replicas are exact, so x = W (x - a grad f) as for D-PSGD.

    For CHOCO, (1 - gamma) I + gamma W takes the place of W.
    """
    step = 1 / 8
    runs = {
        DPSGD(): 1.0,
        QGDSGDm(beta=0.5, mu=0.5): 1.0,
        Choco(compressor="top_k", ratio=0.25, gamma=0.5): 0.5,
        Choco(compressor="quantise", bits=4, gamma=0.5): 0.5,
    }
    simulations, rounds = simulate(*(Run(algorithm, "grid", step) for algorithm in runs))
    finish(rounds, 300)
    fixed = {}
    for gamma in (1.0, 0.5):
        W = (1 - gamma) * np.eye(NODES) + gamma * simulations[0].plan.mixing.dense().numpy()
        fixed[gamma] = everywhere(optimum())
        for _ in range(300):
            fixed[gamma] = np.tensordot(W, fixed[gamma] - step * gradients(fixed[gamma]), axes=1)
    for gamma, simulation in zip(runs.values(), simulations, strict=True):
        assert np.abs(points(simulation) - fixed[gamma]).max() < 1e-12


TRACKED = (("ring", "metropolis"), ("grid", "metropolis"), ("exponential", "uniform"))


def test_gradient_tracking_reaches_the_optimum_to_machine_precision() -> None:
    """One full-batch step per round at a = 1/8, where D-PSGD stays at least .1 of the optimum's norm away.

    The exponential graph is directed; its uniform weights are doubly stochastic.
    """
    runs = [
        Run(algorithm, graph, 1 / 8, weights=weights)
        for algorithm in (GradientTracking(), DPSGD())
        for graph, weights in TRACKED
    ]
    simulations, rounds = simulate(*runs)
    finish(rounds, 240)
    for run, simulation in zip(runs, simulations, strict=True):
        mean, node = errors(simulation, optimum())
        print(f"{type(run.algorithm).__name__:16} {run.graph:12} mean {mean:.2e} node {node:.2e}")
        if isinstance(run.algorithm, GradientTracking):
            assert node < 1e-13
        else:
            assert mean > 1e-3
            assert node > 0.1


def test_gradient_tracking_reaches_the_optimum_on_the_other_engine() -> None:
    """The engine that trains one node at a time reaches the same optimum."""
    (simulation,), rounds = simulate(Run(GradientTracking(), "ring", 0.2), engine=RowEngine)  # not a power of two
    finish(rounds, 160)
    assert errors(simulation, optimum())[1] < 1e-12


@pytest.mark.long
def test_gradient_tracking_on_a_directed_ring() -> None:
    """The complex spectrum needs a smaller step: 1/4 diverges, 1/16 converges after more rounds."""
    (simulation,), rounds = simulate(Run(GradientTracking(), "directed_ring", 1 / 16, weights="uniform"))
    finish(rounds, 1500)
    assert errors(simulation, optimum())[1] < 1e-13


def test_push_sum_minimises_the_plain_mean_and_fedavg_the_perron_weighted_mean() -> None:
    """A directed graph with unequal degrees, steps a, a/2, a/4, starting halfway between the two optima."""
    values, vectors = np.linalg.eig(
        build_mixing(build("random_out", NODES, k=2, seed=DRAWN), "uniform", [SHARD] * NODES).dense().numpy().T
    )
    perron = vectors[:, np.argmax(values.real)].real
    aims = optimum(), optimum(tuple((perron / perron.sum()).tolist()))
    apart = distance(aims[1], aims[0])
    steps = (1 / 16, 1 / 32, 1 / 64)
    runs = [
        Run(algorithm, "random_out", step, weights="uniform", rounds=round(6 / (step * L2)))
        for algorithm in (PushSum(), FedAvg())
        for step in steps
    ]
    simulations, rounds = simulate(*runs, model=logistic(sum(aims) / 2))
    finish(rounds)
    for number, name in enumerate(("push_sum", "fedavg")):
        part, aim, other = simulations[3 * number :][:3], aims[number], aims[1 - number]
        actual = np.array([errors(simulation, aim) for simulation in part])
        ratios = actual[1:] / actual[:-1]
        print(f"{name:9} mean {actual[:, 0]} node {actual[:, 1]} ratios {ratios.round(3).tolist()}, optima {apart:.3f}")
        assert (ratios[0] < 0.62).all()
        assert (ratios[1] < 0.57).all()
        assert actual[-1, 0] < 0.06 * apart
        assert errors(part[-1], other)[0] > 0.9 * apart


# --- FedA2L, Theorem 1 ----------------------------------------------------------------------------------------

RULE = FedA2LRule(warmup_rounds=2, window=5, decay=0.0)  # gamma = 1, as in the theorem


def perceptron() -> nn.Module:
    """A smooth (tanh), non-convex model."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, CLASSES)).double()


def squared_gradient_at_mean(model: nn.Module, simulation: LiveRun, l2: float) -> float:
    """||grad f||^2 of the mean loss over all samples, at the mean model."""
    x, y = digits()
    layout = simulation.state.population.layout
    mean = simulation.state.population.base[simulation.state.rows].mean(dim=0)
    leaves = [view.clone().requires_grad_() for view in layout.views(mean)]
    outputs = functional_call(model, {slot.name: leaf for slot, leaf in zip(layout.slots, leaves, strict=True)}, (x,))
    loss = F.cross_entropy(outputs, y) + l2 / 2 * torch.stack([leaf.square().sum() for leaf in leaves]).sum()
    return float(torch.stack([g.square().sum() for g in torch.autograd.grad(loss, leaves)]).sum())


def convergence(
    shards: list[Tensor], rule: Rule, horizons: Sequence[int], seeds: Sequence[int]
) -> tuple[float, Array, Array]:
    """Runs of R rounds with eta0 = 2 / sqrt(R) on a ring, 3 mini-batches per round.

    Returns the log-log slope over R of the mean of ||grad f||^2 over rounds and seeds, that mean for each R, and the
    mean over the last quarter of the rounds.
    """
    l2, model = 0.01, perceptron()
    runs = [
        Run(FedAvg(), "ring", 2 / R**0.5, rounds=R, shards=shards, batch=20, rule=rule, seed=seed)
        for R in horizons
        for seed in seeds
    ]
    simulations, rounds = simulate(*runs, model=model, l2=l2)
    squares = [[squared_gradient_at_mean(model, simulation, l2)] for simulation in simulations]
    for completed in rounds:
        for done in completed:
            assert done.record is not None
            squares[done.run.number].append(squared_gradient_at_mean(model, done.run, l2))
    whole = np.array([np.mean(values[:-1]) for values in squares]).reshape(len(horizons), -1).mean(axis=1)
    late = [np.mean(values[-(len(values) // 4) :]) for values in squares]
    slope = np.polyfit(np.log(horizons), np.log(whole), 1)[0]
    return float(slope), whole, np.array(late).reshape(len(horizons), -1).mean(axis=1)


def test_feda2l_converges_at_the_rate_of_the_theorem_with_iid_nodes() -> None:
    """The mean of ||grad f(mean model)||^2 over R rounds has slope -1/2 in R, with decay 0 and eta0 = c / sqrt(R)."""
    slope, whole, _ = convergence(at_random(), RULE, (16, 32, 64, 128, 256), seeds=(0, 1))
    print(f"slope {slope:.3f}, mean of ||grad||^2 {whole}")
    assert slope <= -0.5 + 0.05


@pytest.mark.long
@pytest.mark.parametrize("assign", [at_random, by_class], ids=["iid", "by_class"])
@pytest.mark.parametrize("rule", [RULE, Constant()], ids=["feda2l", "constant"])
def test_the_table_of_slopes(rule: Rule, assign: Any) -> None:
    """Print the table of docs/equations.md. The theorem does not cover unequal nodes, so they are only measured."""
    slope, whole, late = convergence(assign(), rule, (16, 32, 64, 128, 256, 512, 1024), seeds=(0, 1, 2))
    print(
        f"\n{type(rule).__name__} {assign.__name__}: slope {slope:.3f}\n  all rounds   {whole}\n  last quarter {late}"
    )
    if assign is at_random:
        assert slope <= -0.5 + 0.05


# --- unequal multipliers (spec G.11) --------------------------------------------------------------------------


def two_parabolas(*factors: float, rate: float = 0.25, rounds: int = 150) -> float:
    """The final x for f_1 = (x + 1)^2 / 2 and f_2 = (x - 1)^2 / 2 with full averaging and no noise."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 1, bias=False)).double()
    nn.init.zeros_(model[1].weight)
    one = torch.ones(2, 1, dtype=torch.float64)
    samples = Labelled(one, torch.tensor([[-1.0], [1.0]], dtype=torch.float64), lambda x: x)
    shards = [torch.tensor([0]), torch.tensor([1])]
    run = Run(FedAvg(), "full", rate, weights="uniform", shards=shards, batch=1, factors=factors)

    def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().mean() / 2

    (simulation,), rounds_ = simulate(run, model=model, samples=samples, loss=half_square, l2=0.0, engine=RowEngine)
    assert torch.equal(simulation.plan.mixing.dense(), torch.full((2, 2), 0.5, dtype=torch.float64))
    finish(rounds_, rounds)
    (view,) = simulation.state.population.layout.views(simulation.state.population.base)
    assert view[0].equal(view[1])
    return float(view[0])


def test_the_counterexample() -> None:
    """x <- x - eta (.5 (x + 1) + 1.5 (x - 1)) / 2 = x - eta (x - .5): x -> .5 for every eta; grad f(x) = x there."""
    x, eta = 0.0, 0.25
    for _ in range(150):  # each node's step, then the average
        x = ((x - eta * 0.5 * (x + 1)) + (x - eta * 1.5 * (x - 1))) / 2
    assert x == pytest.approx(0.5, abs=1e-15)
    assert two_parabolas(0.5, 1.5) == pytest.approx(x, abs=1e-15)
    assert two_parabolas(0.5, 1.5) ** 2 == pytest.approx(0.25, abs=1e-15)
    # a smaller step only takes longer: the floor of .25 does not depend on eta
    assert two_parabolas(0.5, 1.5, rate=1 / 8, rounds=300) == pytest.approx(0.5, abs=1e-15)


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5])
def test_equal_multipliers_leave_the_optimum_where_it_is(factor: float) -> None:
    assert two_parabolas(factor, factor) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("factors", [(0.5, 1.5), (1.5, 1.5)], ids=str)
def test_fixed_multipliers_move_the_digits_optimum_to_the_weighted_one(factors: tuple[float, ...]) -> None:
    """With full averaging and exact gradients the fixed point solves sum_i m_i grad f_i = 0 for every step size."""
    factors = factors * (NODES // 2)
    expected = optimum(tuple(factor / sum(factors) for factor in factors))
    simulations, rounds = simulate(
        *(Run(DPSGD(), "full", rate, factors=factors, rounds=n) for rate, n in ((0.25, 120), (0.125, 240)))
    )
    finish(rounds)
    for simulation in simulations:
        assert errors(simulation, expected)[1] < 1e-13
        floor = squared_gradient(points(simulation).mean(axis=0))
        print(f"m = {factors[:2]}: ||grad f||^2 {floor:.3e}, {distance(expected, optimum()):.3f} from the optimum")
        assert floor > 1e-2 if factors[0] != factors[1] else floor < 1e-24


def floors(
    shards: list[Tensor], rules: Sequence[Rule], rates: Sequence[float], rounds_: int, batch: int = SHARD
) -> tuple[Array, Array, Array]:
    """Measure the error floor of each rule and eta0, with one step per round and full averaging.

    Returns, over the last three quarters of the rounds: the mean of ||grad f||^2 at the mean model, ||grad f||^2 at the
    mean of these models over time, and the mean multiplier of each node.
    """
    pairs = zip(rules, rates, strict=True)
    runs = [Run(DPSGD(), "full", rate, shards=shards, batch=batch, rule=rule) for rule, rate in pairs]
    _, rounds = simulate(*runs)  # not from the optimum, where signals are constant and m stays 1
    squares = np.zeros(len(runs))
    means, multipliers = np.zeros((len(runs), CLASSES, 65)), np.zeros((len(runs), NODES))
    for number, completed in enumerate(islice(rounds, rounds_)):
        for done in completed:
            assert done.record is not None
            if number < rounds_ // 4:
                continue
            run, at = done.run.number, points(done.run).mean(axis=0)
            squares[run] += squared_gradient(at)
            means[run] += at
            multipliers[run] += np.array(done.record["layers"]["multiplier"]).squeeze(1)
    count = rounds_ - rounds_ // 4
    still = np.array([squared_gradient(mean / count) for mean in means])
    return squares / count, still, multipliers / count


def weighted(multipliers: Array) -> Array:
    """||grad f||^2 at the solution of sum_i m_i grad f_i = 0, for each row of m."""
    shares = multipliers / multipliers.sum(axis=1, keepdims=True)
    return np.array([squared_gradient(optimum(tuple(row))) for row in shares.tolist()])


def test_feda2l_reaches_the_optimum_if_nodes_are_equal() -> None:
    """Equal nodes have equal multipliers, so the error is at machine precision. Unequal nodes are only measured."""
    rates = (1 / 4, 1 / 8)
    equal = Run(DPSGD(), "full", 1 / 8, shards=copies(), batch=NODES * SHARD, rule=RULE)
    (simulation,), rounds = simulate(equal)
    finish(rounds, 250)
    assert errors(simulation, optimum())[1] < 1e-13
    squares, _, multipliers = floors(by_class(), [RULE] * 2 + [Constant()] * 2, rates * 2, 250)
    print(f"by class, exact gradients, eta0 {rates}: ||grad||^2 {squares[:2]} (feda2l), {squares[2:]} (constant)")
    print(f"mean m of the nodes {multipliers[:2].round(3)}")
    assert squares[2:].max() < 1e-9  # most of the 250 rounds are at the optimum


@pytest.mark.long
def test_the_rule_itself_leaves_a_floor_where_zeta_is_nearly_one() -> None:
    """With tau = eta0 / 4 mixing moves few parameters by more than tau, and zeta varies differently on each node.

    The mean of m over time therefore differs between nodes, 1.16 to 1.32. At the mean of the models over time the
    gradient is that of the solution of sum_i m_i grad f_i = 0 with these means. A smaller step does not reduce it.
    """
    rates = (1 / 8, 1 / 16, 1 / 32, 1 / 64)
    squares, still, multipliers = floors(by_class(), [replace(RULE, threshold=rate / 4) for rate in rates], rates, 2000)
    predicted = weighted(multipliers)
    print(f"\neta0 {rates}: ||grad||^2 {squares}, at the mean over time {still}, predicted {predicted}")
    print(multipliers.round(3))
    assert np.allclose(still, predicted, rtol=0.2)
    assert still[-1] > still[0] / 2


@pytest.mark.long
@pytest.mark.parametrize("batch", [SHARD, 20], ids=["exact", "batches of 20"])
@pytest.mark.parametrize("assign", [at_random, by_class], ids=["iid", "by_class"])
@pytest.mark.parametrize("rule", [RULE, Constant()], ids=["feda2l", "constant"])
def test_the_table_of_floors(rule: Rule, assign: Any, batch: int) -> None:
    """Print the table of docs/equations.md and check only that the numbers are finite."""
    rates = (1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64)
    squares, still, multipliers = floors(assign(), [rule] * len(rates), rates, 2000, batch)
    print(f"\n{type(rule).__name__} {assign.__name__} batch {batch}, eta0 {rates}: mean of ||grad||^2 {squares}")
    print(f"  at the mean over time of the models {still}")
    print(f"  mean m of the nodes from {multipliers.min(axis=1)} to {multipliers.max(axis=1)}")
    if assign is by_class and rule is RULE:
        print(f"  and where sum m_i grad f_i = 0 with these {weighted(multipliers)}")
    assert np.isfinite(squares).all()
