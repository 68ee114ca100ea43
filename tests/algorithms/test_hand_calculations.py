"""Every algorithm against a second implementation of its formulas in NumPy or torch.

The problem has two parameters and two or three nodes. Local training runs in a real engine, in float32, and is compared
with a loop in float64. The hooks that nodes use to exchange models are also called directly, in float64. Both sides
share only what is random by definition: the batches, the initial model and the drawn rates.
"""

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feda2l.algorithms import ALGORITHMS, Algorithm, Neighbourhood, NodeStates
from feda2l.algorithms.choco import Choco
from feda2l.algorithms.compression import quantise, random_k, top_k
from feda2l.algorithms.fedawa import FedAWA
from feda2l.algorithms.fedlws import FedLWS
from feda2l.algorithms.fedntd import FedNTD
from feda2l.algorithms.fedyogi import FedYogi
from feda2l.algorithms.gradient_tracking import GradientTracking
from feda2l.algorithms.push_sum import PushSum
from feda2l.algorithms.qg_dsgdm import QGDSGDm
from feda2l.data import Images
from feda2l.randomness import torch_generator
from feda2l.runs.datasets import Loaded
from feda2l.simulate.search import search
from feda2l.topology import build, build_mixing
from first_models import NORMED, initial_model

ROUNDS = 3
BATCH = 4

# --- the problem: predict which of three offers is chosen, with one weight for each of two properties -------------

CHOICE = """
class Choice(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Linear(2, 1, bias=False)

    def forward(self, x):  # [n, 1, 3, 2]: two properties of three offers
        return self.value(x).flatten(1)
"""
SIZES = (4, 8, 12)  # samples per node: 1, 2 and 3 steps per epoch
# row i marks the nodes from which node i receives
NETWORKS = {
    "pair": np.array([[0, 1], [1, 0]]),
    "path": np.array([[0, 1, 1], [1, 0, 0], [1, 0, 0]]),
    "directed": np.array([[0, 0, 1], [1, 0, 0], [1, 1, 0]]),  # two nodes receive from node 0
}


def offers(nodes: int, held_out: bool = False) -> Loaded:
    """`SIZES` training samples per node, skewed by node; `held_out` adds as many samples that are not trained on."""
    random = np.random.default_rng(5)
    sizes = [size * (1 + held_out) for size in SIZES[:nodes]]
    groups = np.repeat(np.arange(nodes), sizes)
    x = random.normal(size=(len(groups), 1, 3, 2))
    preference = np.array([[2.0, -1.0], [-1.0, 2.0], [1.0, 1.0]])[groups]
    y = (np.einsum("nkj,nj->nk", x[:, 0], preference) + random.gumbel(size=(len(groups), 3))).argmax(axis=1)
    inputs, answers = torch.from_numpy(x).float(), torch.from_numpy(y)
    unscaled: dict[str, Any] = {"scale": 1.0, "mean": (0.0,), "std": (1.0,), "groups": torch.tensor(groups)}
    names = ("first", "second", "third")
    return Loaded.of(Images("offers", inputs, answers, inputs, answers, 3, class_names=names, **unscaled))


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def weights_of(receives: np.ndarray, kind: str, sizes: np.ndarray) -> np.ndarray:
    """W from the definitions. Each row covers the closed neighbourhood."""
    closed = receives + np.eye(len(receives))
    degree = receives.sum(axis=1)
    if kind == "samples":
        return closed * sizes / (closed * sizes).sum(axis=1, keepdims=True)
    if kind == "uniform":
        return closed / closed.sum(axis=1, keepdims=True)
    W = receives / (1 + np.maximum(degree[:, None], degree[None, :]))
    return W + np.diag(1 - W.sum(axis=1))


@dataclass
class World:
    """The problem and the network as plain arrays, and plain SGD with momentum."""

    receives: np.ndarray
    X: np.ndarray
    y: np.ndarray
    start: np.ndarray
    batches: Callable[[int, int], list[np.ndarray]]
    weights: str
    rate: float | np.ndarray
    momentum: float
    velocity: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = len(self.receives)
        self.sizes = np.array(SIZES[: self.nodes], dtype=float)
        self.W = weights_of(self.receives, self.weights, self.sizes)
        self.x = np.tile(self.start, (self.nodes, 1))
        self.velocity = np.zeros_like(self.x)

    def gradient(self, w: np.ndarray, batch: np.ndarray) -> np.ndarray:
        """The gradient of the mean cross-entropy: sum_c p_c x_c - x_y, over the batch."""
        X, y = self.X[batch], self.y[batch]
        p = softmax(X @ w)
        return np.mean(np.einsum("nc,ncj->nj", p, X) - X[np.arange(len(y)), y], axis=0)

    def loss(self, w: np.ndarray, samples: np.ndarray) -> float:
        p = softmax(self.X[samples] @ w)
        return float(-np.log(p[np.arange(len(samples)), self.y[samples]]).mean())

    def train(self, round: int, gradient: Callable[..., np.ndarray] | None = None) -> np.ndarray:
        """T of every node. `gradient(node, w, batch)` replaces the gradient that the optimizer uses."""
        T = self.x.copy()
        rates = np.broadcast_to(self.rate, (self.nodes,))
        for i in range(self.nodes):
            for batch in self.batches(i, round):
                g = self.gradient(T[i], batch) if gradient is None else gradient(i, T[i], batch)
                self.velocity[i] = self.momentum * self.velocity[i] + g
                T[i] = T[i] - rates[i] * self.velocity[i]
        return T

    def steps(self, round: int) -> np.ndarray:
        return np.array([[len(self.batches(i, round))] for i in range(self.nodes)])


# --- reference implementations; each yields A, the models after mixing, round by round ----------------------------

Rounds = Iterator[np.ndarray]


def plain_fedavg(world: World) -> Rounds:
    for r in range(1, ROUNDS + 1):
        world.x = world.W @ world.train(r)
        yield world.x


def plain_fedprox(world: World, mu: float) -> Rounds:
    for r in range(1, ROUNDS + 1):
        B = world.x
        world.x = world.W @ world.train(r, lambda i, w, b: world.gradient(w, b) + mu * (w - B[i]))  # noqa: B023
        yield world.x


def plain_fedyogi(
    world: World,
    rate: float,
    beta1: float,
    beta2: float,
    tau: float,
    bias_correction: bool = False,
    first_round: str = "average",
) -> Rounds:
    m, v = np.zeros_like(world.x), np.zeros_like(world.x)
    for r in range(1, ROUNDS + 1):
        d = world.W @ world.train(r) - world.x
        if r == 1 and first_round == "average":
            world.x = world.x + d
            yield world.x
            continue
        m = beta1 * m + (1 - beta1) * d
        v = v - (1 - beta2) * d**2 * np.sign(v - d**2)
        eta = rate * math.sqrt(1 - beta2**r) / (1 - beta1**r) if bias_correction else rate
        world.x = world.x + eta * m / (np.sqrt(v) + tau)
        yield world.x


def plain_fedntd(world: World, beta: float, tau: float) -> Rounds:
    def gradient(i: int, w: np.ndarray, batch: np.ndarray) -> np.ndarray:
        """d/dz_c of beta tau^2 KL is beta tau (q_c - q_c of the teacher) for a class other than the true one."""
        total = np.zeros(2)
        for n in batch:
            others = [c for c in range(3) if c != world.y[n]]
            X = world.X[n][others]
            q, base_outputs = softmax(X @ w / tau), softmax(X @ world.x[i] / tau)
            total += beta * tau * (q - base_outputs) @ X
        return world.gradient(w, batch) + total / len(batch)

    for r in range(1, ROUNDS + 1):
        world.x = world.W @ world.train(r, gradient)
        yield world.x


class ReferenceFedAWA:
    """FedAWA's weights of one node: torch optimizers on the loss of the explicit vectors."""

    def __init__(
        self,
        shares: Tensor,
        *,
        regulariser: str = "weighted",
        init: str = "shares",
        optimizer: str = "adam",
        rate: float | None = None,
        optimizer_state: str = "fresh",
        steps: int = 1,
        use: str = "before",
        scale: float = 1.0,
    ) -> None:
        self.w = (shares if init == "shares" else shares.log()).clone().requires_grad_()
        self.regulariser, self.kind, self.rate, self.state = regulariser, optimizer, rate, optimizer_state
        self.steps, self.use, self.scale = steps, use, scale
        self.optimizer = self._new()

    def _new(self) -> torch.optim.Optimizer:
        if self.kind == "adam":
            return torch.optim.Adam([self.w], lr=self.rate or 1e-3, betas=(0.5, 0.999))
        return torch.optim.SGD([self.w], lr=self.rate or 0.01, momentum=0.9, weight_decay=5e-4)

    def loss(self, models: Tensor, g: Tensor) -> Tensor:
        p = torch.softmax(self.w, dim=0)
        tau = models - g
        distance = (p * torch.linalg.vector_norm(tau - p @ tau, dim=1)).sum()
        if self.regulariser == "weighted":
            return distance + (p * (1 - F.cosine_similarity(g.expand_as(models), models, dim=1))).sum()
        return distance + 1 - F.cosine_similarity(p @ models, g, dim=0)

    def weights(self, models: Tensor, g: Tensor) -> Tensor:
        if self.state == "fresh":
            self.optimizer = self._new()
        for _ in range(self.steps):
            before = torch.softmax(self.w.detach().clone(), dim=0)
            self.optimizer.zero_grad()
            self.loss(models, g).backward()
            self.optimizer.step()
        return self.scale * (before if self.use == "before" else torch.softmax(self.w.detach().clone(), dim=0))


def plain_fedawa(world: World, **parameters: Any) -> Rounds:
    closed = [np.flatnonzero(row) for row in world.receives + np.eye(world.nodes)]
    shares = [torch.tensor(world.sizes[ids] / world.sizes[ids].sum()) for ids in closed]
    learners = [ReferenceFedAWA(share, **parameters) for share in shares]
    for r in range(1, ROUNDS + 1):
        T = world.train(r)
        A = np.zeros_like(T)
        for i, ids in enumerate(closed):
            A[i] = learners[i].weights(torch.tensor(T[ids]), torch.tensor(world.x[i])).numpy() @ T[ids]
        world.x = A
        yield A


def plain_dfedsam(world: World, radius: float, gossip_steps: int = 1) -> Rounds:
    def gradient(i: int, w: np.ndarray, batch: np.ndarray) -> np.ndarray:
        g = world.gradient(w, batch)
        return world.gradient(w + radius * g / np.linalg.norm(g), batch)

    for r in range(1, ROUNDS + 1):
        world.x = np.linalg.matrix_power(world.W, gossip_steps) @ world.train(r, gradient)
        yield world.x


def plain_fedlws(world: World, beta: float, low: float, high: float) -> Rounds:
    for r in range(1, ROUNDS + 1):
        T = world.train(r)
        a = world.W @ T
        A = np.zeros_like(a)
        for i in range(world.nodes):
            received = T[np.flatnonzero(world.W[i])]
            tau = np.clip(beta * np.mean([np.linalg.norm(theta - a[i]) for theta in received]), low, high)
            size = np.linalg.norm(world.x[i])
            A[i] = a[i] * size / (size + tau * np.linalg.norm(a[i] - world.x[i]))
        world.x = A
        yield A


def plain_dpsgd(world: World, steps: int) -> Rounds:
    for r in range(1, ROUNDS + 1):
        assert world.steps(r).tolist() == [[steps]] * world.nodes
        world.x = world.W @ world.train(r)
        yield world.x


def plain_dfedavgm(world: World) -> Rounds:
    for r in range(1, ROUNDS + 1):
        world.velocity[:] = 0
        world.x = world.W @ world.train(r)
        yield world.x


def plain_qg_dsgdm(world: World, beta: float, mu: float) -> Rounds:
    m = np.zeros_like(world.x)
    for r in range(1, ROUNDS + 1):
        A = world.W @ world.train(r, lambda i, w, b: world.gradient(w, b) + beta * m[i])  # noqa: B023
        m = mu * m + (1 - mu) * (world.x - A) / (world.rate * world.steps(r))
        world.x = A
        yield A


def plain_gradient_tracking(world: World) -> Rounds:
    c = np.zeros_like(world.x)
    for r in range(1, ROUNDS + 1):
        T = world.train(r, lambda i, w, b: world.gradient(w, b) + c[i])  # noqa: B023
        z = (1 - world.momentum) * (world.x - T) / (world.rate * world.steps(r))
        c = c - z + world.W @ z
        world.x = world.W @ T
        yield world.x


def plain_choco(world: World, compressor: str, gamma: float, bits: int = 8, ratio: float = 1.0) -> Rounds:
    def compressed(row: np.ndarray) -> np.ndarray:
        if compressor == "top_k":  # one of two
            return np.where(np.abs(row) == np.abs(row).max(), row, 0)
        if compressor == "quantise":
            scale = np.abs(row).max() / (2 ** (bits - 1) - 1)
            return np.round(row / scale) * scale
        return row

    replica = np.zeros_like(world.x)
    for r in range(1, ROUNDS + 1):
        T = world.train(r)
        replica = replica + np.array([compressed(row) for row in T - replica])
        world.x = np.array(
            [
                T[i] + gamma * sum(world.W[i, j] * (replica[j] - replica[i]) for j in range(world.nodes))
                for i in range(world.nodes)
            ]
        )
        yield world.x


def plain_push_sum(world: World) -> Rounds:
    closed = world.receives + np.eye(world.nodes)
    P = closed / closed.sum(axis=0)  # each node sends equal parts: columns sum to 1
    share = world.sizes if world.weights == "samples" else np.ones(world.nodes)
    mass = share.copy()
    for r in range(1, ROUNDS + 1):
        pushed = mass[:, None] * world.x + share[:, None] * (world.train(r) - world.x)
        mass = P @ mass
        world.x = (P @ pushed) / mass[:, None]
        yield world.x


@dataclass
class Case:
    """An algorithm with parameters, the network it runs on, and its message size."""

    rounds: Callable[..., Rounds]
    parameters: dict[str, Any] = field(default_factory=dict)
    network: str = "path"
    weights: str = "samples"
    momentum: float = 0.5
    message: Callable[[int], int] = lambda parameters: 4 * parameters
    exchanges: int = 1


DOUBLY = {"weights": "metropolis"}
CASES: dict[str, list[Case]] = {
    "fedavg": [Case(plain_fedavg), Case(plain_fedavg, network="directed")],
    "fedprox": [Case(plain_fedprox, {"mu": 0.5}), Case(plain_fedprox, {"mu": 1.0}, momentum=0.0)],
    "fedyogi": [
        Case(plain_fedyogi, {"rate": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 0.001}),
        Case(plain_fedyogi, {"rate": 0.1, "beta1": 0.6, "beta2": 0.7, "tau": 0.05, "bias_correction": True}),
        Case(plain_fedyogi, {"rate": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 0.001, "first_round": "step"}),
    ],
    "fedntd": [Case(plain_fedntd, {"beta": 1.0, "tau": 1.0}), Case(plain_fedntd, {"beta": 0.7, "tau": 2.5})],
    "fedawa": [
        Case(plain_fedawa),
        Case(plain_fedawa, {"regulariser": "mean", "init": "log_shares", "rate": 0.3, "use": "after"}),
        Case(plain_fedawa, {"optimizer": "sgd", "rate": 0.5, "optimizer_state": "kept", "steps": 3, "scale": 0.9}),
    ],
    "dfedsam": [
        Case(plain_dfedsam, {"radius": 0.3}),
        Case(plain_dfedsam, {"radius": 0.1, "gossip_steps": 3}, exchanges=3, weights="metropolis"),
    ],
    "dfedhpo": [],  # tested below, because the search comes first
    "fedlws": [
        Case(plain_fedlws, {"beta": 0.5, "low": 0.01, "high": 2.0}),
        Case(plain_fedlws, {"beta": 0.03, "low": 0.1, "high": 0.2}),
    ],
    "dpsgd": [
        Case(plain_dpsgd, {"steps": 1}, momentum=0.0, **DOUBLY),
        Case(plain_dpsgd, {"steps": 5}, **DOUBLY),
    ],
    "dfedavgm": [Case(plain_dfedavgm, **DOUBLY)],
    "qg_dsgdm": [Case(plain_qg_dsgdm, {"beta": 0.8, "mu": 0.6}, momentum=0.0, **DOUBLY)],
    "gradient_tracking": [
        Case(plain_gradient_tracking, momentum=0.0, message=lambda n: 8 * n, **DOUBLY),
        Case(plain_gradient_tracking, momentum=0.3, message=lambda n: 8 * n, **DOUBLY),
    ],
    "choco": [
        Case(plain_choco, {"compressor": "none", "gamma": 0.7}, **DOUBLY),
        Case(plain_choco, {"compressor": "top_k", "gamma": 0.5, "ratio": 0.5}, message=lambda n: 8, **DOUBLY),
        Case(plain_choco, {"compressor": "quantise", "gamma": 0.9, "bits": 4}, message=lambda n: 1 + 4, **DOUBLY),
    ],
    "push_sum": [
        Case(plain_push_sum, network="directed", weights="uniform", message=lambda n: 4 * n + 8),
        Case(plain_push_sum, network="directed", weights="samples", message=lambda n: 4 * n + 8),
    ],
}
CASE_PARAMETERS = [
    pytest.param(name, case, network, id=f"{name} {number} {network}")
    for name, cases in CASES.items()
    for number, case in enumerate(cases, 1)
    for network in ("pair", case.network)
]


def test_every_algorithm_has_a_case() -> None:
    assert set(CASES) == set(ALGORITHMS)
    assert [name for name, cases in CASES.items() if not cases] == ["dfedhpo"]


def settings(
    model: str, algorithm: dict[str, Any], case: Case, network: str, folder: Path, **more: Any
) -> dict[str, Any]:
    receives = NETWORKS[network]
    file = folder / "network.txt"
    file.write_text("\n".join(" ".join(map(str, row)) for row in receives))
    return {
        "rounds": ROUNDS,
        "data": {"nodes": len(receives), "partition": "natural", "train_fraction": 1.0, "min_size": 1},
        "model": {"name": model},
        "topology": {"name": "file", "file": str(file), "weights": case.weights},
        "algorithm": algorithm,
        "rates": {"name": "constant", "base": 0.4},
        "training": {"batch_size": BATCH, "momentum": case.momentum},
    } | more


def world_of(simulator: Any, case: Case, network: str) -> World:
    """Copy the data, the assignment of samples, the batches of each node and the initial model."""
    member, population = simulator.runs[0].plan.member, simulator.engine.population
    x, y = member.training.samples.x, member.training.samples.y
    return World(
        NETWORKS[network],
        x[:, 0].double().numpy(),
        y.numpy(),
        population.base[0, :2].double().numpy().copy(),
        lambda node, round: [b.numpy() for b in member.training.batches(member.shards[node], node, round)],
        case.weights,
        0.4,
        case.momentum,
    )


@pytest.mark.parametrize("engine", ["rows", "batched"])
@pytest.mark.parametrize(("name", "case", "network"), CASE_PARAMETERS)
def test_three_rounds_equal_the_reference_implementation(start, module, tmp_path, name, case, network, engine) -> None:
    algorithm = {"name": name, **case.parameters}
    spec = settings(f"{module(CHOICE)}:Choice", algorithm, case, network, tmp_path, runtime={"engine": engine})
    simulator = start(spec, loaded=offers(len(NETWORKS[network])))
    base = simulator.engine.population.base
    world = world_of(simulator, case, network)
    first = world.x.copy()
    for expected, ((_, record, _),) in zip(case.rounds(world, **case.parameters), simulator.rounds(), strict=True):
        np.testing.assert_allclose(base[:, :2].numpy(), expected, rtol=2e-5, atol=2e-6)
        assert not base[:, 2:].any()  # padding
        sent = NETWORKS[network].sum(axis=0) * case.message(2) * case.exchanges
        assert record["nodes"]["bytes_sent"] == sent.tolist()
    assert np.abs(expected - first).max() > 0.05  # the models did move


@pytest.mark.parametrize("engine", ["rows", "batched"])
@pytest.mark.parametrize("network", ["pair", "path"])
@pytest.mark.parametrize("aggregator", ["CA", "FA"])
def test_dfedhpo_is_the_search_followed_by_fedavg(start, module, tmp_path, aggregator, network, engine) -> None:
    algorithm = {"name": "dfedhpo", "trials": 3, "eval_epochs": 2, "top_k": 2, "rate_range": [0.01, 1.0]}
    algorithm |= {"aggregator": aggregator}
    more = {"data": {"nodes": len(NETWORKS[network]), "partition": "natural", "train_fraction": 0.5, "min_size": 1}}
    case = Case(plain_fedavg)
    spec = settings(f"{module(CHOICE)}:Choice", algorithm, case, network, tmp_path, runtime={"engine": engine}, **more)
    simulator = start(spec, loaded=offers(len(NETWORKS[network]), held_out=True))
    (simulation,) = simulator.runs
    member, drawn = simulation.plan.member, simulation.plan.algorithm
    world = world_of(simulator, case, network)
    result = search(simulator.engine, simulation)

    def trial_loss(node: int, rate: float) -> float:
        """Train two epochs on the batches of round 0; return the loss on the node's held-out samples."""
        w, v = world.start, np.zeros(2)
        for batch in member.training.batches(member.shards[node], node, 0, 2):
            v = 0.5 * v + world.gradient(w, batch.numpy())
            w = w - rate * v
        return world.loss(w, member.local[node].numpy())

    candidates = [drawn.draw(1, node) for node in range(world.nodes)]
    chosen = []
    for i in range(world.nodes):
        closed = [i, *np.flatnonzero(world.receives[i])]
        if aggregator == "CA":  # each rate is tried by the node that drew it
            chosen.append(min((trial_loss(j, rate), rate) for j in closed for rate in candidates[j])[1])
        else:  # each node tries all rates
            best = sorted((trial_loss(i, rate), rate) for j in closed for rate in candidates[j])[:2]
            chosen.append((best[0][1] + best[1][1]) / 2)
        assert result["epochs"][i] == 2 * (3 if aggregator == "CA" else 3 * len(closed))
    logs, exchanges = np.log(chosen), 0
    while logs.max() - logs.min() > math.log(1.01):
        logs, exchanges = world.W @ logs, exchanges + 1
    np.testing.assert_allclose(result["rates"], np.exp(logs), rtol=1e-9)
    assert result["consensus_exchanges"] == exchanges
    assert result["bytes_sent"] == world.receives.sum() * (3 * 16 + exchanges * 8)
    world.rate = np.exp(logs)
    for expected, ((_, record, _),) in zip(plain_fedavg(world), simulator.rounds(), strict=True):
        np.testing.assert_allclose(simulator.engine.population.base[:, :2].numpy(), expected, rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(np.squeeze(record["layers"]["rate"]), np.exp(logs), rtol=1e-9)


# --- the hooks of an exchange, called directly in float64 ---------------------------------------------------------


def rows(*values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def lengths(a: Tensor, b: Tensor) -> Tensor:
    """||b - a|| of every row, for one layer."""
    return (b - a).square().sum(dim=1, keepdim=True).sqrt()


def make_states(base: Tensor, trained: Tensor, **more: Any) -> NodeStates:
    """Node states with one layer. The defaults are rate 0.5 and 2 steps per round."""
    nodes, width = base.shape
    defaults: dict[str, Any] = {
        "round": 1,
        "seed": 1,
        "ids": tuple(range(nodes)),
        "state": {},
        "small_state": {},
        "rates": torch.full((nodes, 1), 0.5, dtype=torch.float64),
        "steps": torch.full((nodes,), 2.0, dtype=torch.float64),
        "momentum": 0.0,
        "columns": torch.arange(width),
        "movement": lengths,
        "expand": lambda values: values.expand(-1, width),
    }
    return NodeStates(base=base, trained=trained, **(defaults | more))


def make_neighbourhood(
    models: Tensor,
    base: Tensor,
    weights: list[float],
    samples: list[float],
    small_state: dict[str, Tensor],
    **more: Any,
) -> Neighbourhood:
    defaults: dict[str, Any] = {"node": 0, "ids": tuple(range(len(models))), "receive": lambda name: models}
    numbers = (torch.tensor(values, dtype=torch.float64) for values in (weights, samples))
    keys = dict(zip(("weights", "samples"), numbers, strict=True))
    return Neighbourhood(base=base, small_state=small_state, movement=lengths, **(keys | defaults | more))


BASE, TRAINED = rows([1.0, 2.0], [3.0, 0.0]), rows([2.0, 1.0], [4.0, 4.0])


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if not ALGORITHMS[n]().overrides("publish")])
def test_publish_sends_the_trained_model_by_default(name) -> None:
    sent = ALGORITHMS[name]().publish(make_states(BASE, TRAINED))
    assert list(sent) == ["model"]
    assert torch.equal(sent["model"], TRAINED)
    assert ALGORITHMS[name]().message_bytes(7, 64) == 28


def test_fedyogi_by_hand() -> None:
    """One node, two rounds. B starts as (1, 2); the average is (2, 0), then (1, 1)."""
    yogi = FedYogi(rate=0.1, beta1=0.5, beta2=0.75, tau=0.5, first_round="step")
    state = {"first": rows([0.0, 0.0]), "second": rows([0.0, 0.0])}
    A = yogi.accept(make_states(rows([1.0, 2.0]), rows([9.0, 9.0]), state=state), {}, {"model": rows([2.0, 0.0])})
    # d = (1, -2): m = d / 2; v = 0 - .25 d^2 sign(-d^2) = (.25, 1)
    assert A[0].tolist() == pytest.approx([1 + 0.1 * 0.5 / (0.5 + 0.5), 2 - 0.1 * 1.0 / (1.0 + 0.5)], abs=1e-15)
    base = A.clone()
    A = yogi.accept(make_states(A, rows([9.0, 9.0]), state=state, round=2), {}, {"model": rows([1.0, 1.0])})
    d = [1 - 1.05, 1 - (2 - 0.2 / 3)]
    m = [0.25 + d[0] / 2, -0.5 + d[1] / 2]
    v = [0.25 - 0.25 * d[0] ** 2, 1 - 0.25 * d[1] ** 2]  # v > d^2 in both entries, so v decreases
    expected = [base[0, k].item() + 0.1 * m[k] / (math.sqrt(v[k]) + 0.5) for k in range(2)]
    assert A[0].tolist() == pytest.approx(expected, abs=1e-14)
    assert state["second"][0].tolist() == pytest.approx(v, abs=1e-15)


def test_fedyogi_averages_in_round_1_and_starts_its_moments_in_round_2() -> None:
    """B = (1, 2) and the average is (2, 0), then (2.5, 0.25): d of round 2 is (.5, .25), independent of round 1."""
    yogi = FedYogi(rate=0.1, beta1=0.5, beta2=0.75, tau=0.5)
    state = {"first": rows([0.0, 0.0]), "second": rows([0.0, 0.0])}
    A = yogi.accept(make_states(rows([1.0, 2.0]), rows([9.0, 9.0]), state=state), {}, {"model": rows([2.0, 0.0])})
    assert A[0].tolist() == [2.0, 0.0]
    assert not any(values.any() for values in state.values())
    A = yogi.accept(make_states(A, rows([9.0, 9.0]), state=state, round=2), {}, {"model": rows([2.5, 0.25])})
    # m = d / 2 = (.25, .125); v = d^2 / 4, sqrt(v) = (.25, .125)
    assert A[0].tolist() == pytest.approx([2 + 0.1 * 0.25 / 0.75, 0.1 * 0.125 / 0.625], abs=1e-15)
    assert state["second"][0].tolist() == [0.0625, 0.015625]


def test_fedyogi_learns_from_separate_starts(start) -> None:
    """The distance between the initial models must not enter the moments. 30 rounds on the digits."""

    def accuracy(name: str, **parameters: Any) -> float:
        simulator = start({
            "rounds": 30,
            "model": {"init": "per_node"},
            "algorithm": {"name": name} | parameters,
            "rates": {"name": "constant"},
        })  # fmt: skip
        return [record["accuracy"] for ((_, record, _),) in simulator.rounds()][-1]

    fedavg = accuracy("fedavg")
    assert accuracy("fedyogi") > fedavg - 0.03
    assert accuracy("fedyogi", first_round="step") < fedavg - 0.2


def test_fedyogis_second_moment_is_constant_at_d2_and_stays_positive() -> None:
    yogi = FedYogi(beta2=0.0, first_round="step")
    state = {"first": rows([0.0, 0.0]), "second": rows([4.0, 1.0])}
    yogi.accept(make_states(rows([0.0, 0.0]), rows([0.0, 0.0]), state=state), {}, {"model": rows([2.0, 0.99])})
    assert state["second"][0].tolist() == pytest.approx([4.0, 1.0 - 0.99**2])


@pytest.mark.parametrize("round", [1, 2, 7])
def test_fedyogis_bias_correction_multiplies_the_step(round) -> None:
    def step(bias_correction: bool) -> Tensor:
        yogi = FedYogi(beta1=0.6, beta2=0.9, bias_correction=bias_correction, first_round="step")
        state = {"first": rows([0.1, -0.2]), "second": rows([0.3, 0.0])}
        states = make_states(rows([0.0, 0.0]), rows([0.0, 0.0]), state=state, round=round)
        return yogi.accept(states, {}, {"model": rows([0.5, 0.7])})

    factor = math.sqrt(1 - 0.9**round) / (1 - 0.6**round)
    torch.testing.assert_close(step(True), step(False) * factor, rtol=1e-14, atol=0)


AWA = [
    dict(zip(("regulariser", "init", "optimizer", "optimizer_state", "use", "steps"), values, strict=True))
    for values in itertools.product(
        ("weighted", "mean"), ("shares", "log_shares"), ("adam", "sgd"), ("fresh", "kept"), ("before", "after"), (1, 3)
    )
]


@pytest.mark.parametrize("parameters", AWA, ids=lambda p: " ".join(map(str, p.values())))
def test_fedawa_weights_equal_torch_optimizers_on_the_explicit_loss(parameters) -> None:
    algorithm = FedAWA(rate=0.2, **parameters)
    small_state = {name: values[1] for name, values in algorithm.small_state(torch.ones(2), nodes=4, layers=1).items()}
    samples = [10.0, 30.0, 20.0]
    plain = ReferenceFedAWA(torch.tensor(samples, dtype=torch.float64) / 60, rate=0.2, **parameters)
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        models = torch.randn(3, 2, generator=generator, dtype=torch.float64)
        base = torch.randn(2, generator=generator, dtype=torch.float64)
        # neighbours 0, 1 and 3 of four nodes: learned weights are stored by node id
        neighbourhood = make_neighbourhood(models, base, [1 / 3] * 3, samples, small_state, node=1, ids=(0, 1, 3))
        torch.testing.assert_close(algorithm.weigh(neighbourhood), plain.weights(models, base), rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(small_state["weights"][[0, 1, 3]], plain.w.detach(), rtol=1e-6, atol=1e-9)
        assert small_state["weights"][2].isnan()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_fedawa_uses_the_weights_before_the_last_of_several_steps(steps) -> None:
    """Two models, -1 and 3, at distance 2 from a base of 1, so that the gradient has a closed form.

    Let p be the weight of the first. Distances from the mean are 4 (1 - p) and 4 p, so the spread is
    8 p (1 - p). The cosines are -1 and 1, so the regulariser is 2 p. With p = softmax(w),
    dp/dw_0 = p (1 - p), so the gradient is g = p (1 - p) (8 (1 - 2 p) + 2) for w_0 and -g for w_1.
    """
    algorithm = FedAWA(init="log_shares", optimizer="sgd", rate=0.1, steps=steps)
    small_state = {name: values[0] for name, values in algorithm.small_state(torch.ones(1), nodes=2, layers=1).items()}
    neighbourhood = make_neighbourhood(
        rows([-1.0], [3.0]), torch.tensor([1.0], dtype=torch.float64), [0.5, 0.5], [1.0, 3.0], small_state
    )
    w, velocity, used = np.log([0.25, 0.75]), np.zeros(2), None
    for _ in range(steps):
        used = softmax(w)
        p = used[0]
        g = p * (1 - p) * (8 * (1 - 2 * p) + 2)
        velocity = 0.9 * velocity + np.array([g, -g]) + 5e-4 * w
        w = w - 0.1 * velocity
    np.testing.assert_allclose(algorithm.weigh(neighbourhood).numpy(), used, rtol=1e-12)
    np.testing.assert_allclose(small_state["weights"].numpy(), w, rtol=1e-12)


@pytest.mark.parametrize("regulariser", ["weighted", "mean"])
def test_fedawas_gradient_equals_finite_differences(regulariser) -> None:
    models, base = rows([1.0, 2.0], [-1.0, 0.5], [0.3, 0.1]), torch.tensor([0.4, 0.9], dtype=torch.float64)
    start = np.array([0.2, 0.5, 0.3])

    def loss(w: np.ndarray) -> float:
        p, theta, g = softmax(w), models.numpy(), base.numpy()
        tau = theta - g
        centre = sum(p[k] * tau[k] for k in range(3))
        spread = sum(p[k] * np.linalg.norm(tau[k] - centre) for k in range(3))

        def cosine(a: np.ndarray) -> float:
            return float(a @ g / (np.linalg.norm(a) * np.linalg.norm(g)))

        if regulariser == "weighted":
            return float(spread + sum(p[k] * (1 - cosine(theta[k])) for k in range(3)))
        return float(spread + 1 - cosine(p @ theta))

    step = 1e-6
    gradients = [(loss(start + step * e) - loss(start - step * e)) / (2 * step) for e in np.eye(3)]
    # one step of SGD reveals the gradient: w' = w - rate (gradient + 5e-4 w)
    algorithm = FedAWA(regulariser=regulariser, optimizer="sgd", rate=0.5)
    small_state = {name: values[0] for name, values in algorithm.small_state(torch.ones(1), nodes=3, layers=1).items()}
    algorithm.weigh(make_neighbourhood(models, base, [1 / 3] * 3, [2.0, 5.0, 3.0], small_state))
    actual = (start - small_state["weights"].numpy()) / 0.5 - 5e-4 * start
    np.testing.assert_allclose(actual, gradients, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("regulariser", ["weighted", "mean"])
def test_fedawa_learns_from_a_start_at_zero(regulariser) -> None:
    """The cosine to a base state of zeros is 0, as in torch. A linear model may start there."""
    algorithm = FedAWA(regulariser=regulariser, rate=0.2, use="after")
    small_state = {name: values[0] for name, values in algorithm.small_state(torch.ones(1), nodes=3, layers=1).items()}
    plain = ReferenceFedAWA(
        torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64), regulariser=regulariser, rate=0.2, use="after"
    )
    for models in (rows([1.0, 2.0], [0.0, 0.0], [0.3, 0.1]), rows([0.5, 2.0], [1.0, 0.0], [0.3, 0.3])):
        base = torch.zeros(2, dtype=torch.float64)
        actual = algorithm.weigh(make_neighbourhood(models, base, [1 / 3] * 3, [2.0, 5.0, 3.0], small_state))
        torch.testing.assert_close(actual, plain.weights(models, base), rtol=1e-6, atol=1e-9)


def test_fedawa_keeps_the_weight_of_an_absent_neighbour() -> None:
    algorithm = FedAWA(rate=0.2, use="after")
    small_state = {name: values[0] for name, values in algorithm.small_state(torch.ones(1), nodes=3, layers=1).items()}
    models, base = rows([1.0, 2.0], [-1.0, 0.5], [0.3, 0.1]), torch.tensor([0.4, 0.9], dtype=torch.float64)
    algorithm.weigh(make_neighbourhood(models, base, [1 / 3] * 3, [2.0, 5.0, 3.0], small_state))
    learned = small_state["weights"].clone()
    algorithm.weigh(make_neighbourhood(models[:2], base, [0.5] * 2, [2.0, 5.0], small_state, ids=(0, 1)))
    assert small_state["weights"][2] == learned[2]
    assert (small_state["weights"][:2] != learned[:2]).all()


def test_fedlws_by_hand() -> None:
    """Two layers of one column each. The second layer is 0 in the base state."""
    algorithm = FedLWS(beta=0.5, low=0.01, high=0.9)
    models, base = rows([3.0, 1.0], [5.0, -1.0]), rows([2.0, 0.0])

    def by_column(a: Tensor, b: Tensor) -> Tensor:
        return (b - a).abs()

    small_state = {name: values[0] for name, values in algorithm.small_state(torch.ones(1), nodes=2, layers=2).items()}
    neighbourhood = make_neighbourhood(models, base[0], [0.25, 0.75], [1.0, 1.0], small_state)
    neighbourhood = Neighbourhood(**(vars(neighbourhood) | {"movement": by_column}))
    assert torch.equal(algorithm.weigh(neighbourhood), neighbourhood.weights)
    # a = (4.5, -.5); mean_k |theta_k - a| = (1.5 + .5) / 2 and (1.5 + .5) / 2
    assert small_state["spread"].tolist() == [1.0, 1.0]
    states = make_states(
        base,
        models[:1],
        small_state={"spread": small_state["spread"][None]},
        movement=by_column,
        expand=lambda values: values,
    )
    A = algorithm.accept(states, {}, {"model": rows([4.5, -0.5])})
    assert A[0].tolist() == pytest.approx([4.5 * 2 / (2 + 0.5 * 2.5), 0.0])


@pytest.mark.parametrize(("beta", "tau"), [(0.5, 0.5), (0.001, 0.01), (2.0, 0.9)], ids=["within", "low", "high"])
def test_fedlws_keeps_tau_between_low_and_high(beta, tau) -> None:
    algorithm = FedLWS(beta=beta, low=0.01, high=0.9)
    states = make_states(rows([3.0, 4.0]), rows([0.0, 0.0]), small_state={"spread": rows([1.0])})
    A = algorithm.accept(states, {}, {"model": rows([3.0, 5.0])})
    assert A[0].tolist() == pytest.approx([3 * 5 / (5 + tau), 5 * 5 / (5 + tau)])


def test_fedlws_without_shrinking_keeps_a_layer_whose_base_is_0() -> None:
    states = make_states(rows([0.0, 0.0]), rows([1.0, 1.0]), small_state={"spread": rows([1.0])})
    A = FedLWS(beta=0.0, low=0.0, high=0.0).accept(states, {}, {"model": rows([0.5, 0.7])})
    assert A[0].tolist() == [0.5, 0.7]


def test_gradient_tracking_by_hand() -> None:
    """Rate .5 and 2 steps: z = B - T. W is (.75 .25; .25 .75)."""
    algorithm = GradientTracking()
    states = make_states(BASE, TRAINED, state={"correction": rows([0.1, 0.2], [-0.1, -0.2])})
    sent = algorithm.publish(states)
    assert torch.equal(sent["model"], TRAINED)
    assert sent["direction"].tolist() == [[-1.0, 1.0], [-1.0, -4.0]]
    W = rows([0.75, 0.25], [0.25, 0.75])
    A = algorithm.accept(states, sent, {name: W @ values for name, values in sent.items()})
    assert A.tolist() == [[2.5, 1.75], [3.5, 3.25]]
    # c - z + W z: (.1 + 1 - 1, .2 - 1 - .25), (-.1 + 1 - 1, -.2 + 4 - 2.75)
    expected = rows([0.1, -1.05], [-0.1, 1.05])
    torch.testing.assert_close(states.state["correction"], expected, rtol=0, atol=1e-15)


def test_gradient_tracking_removes_momentum_from_the_direction() -> None:
    states = make_states(BASE, TRAINED, momentum=0.75, state={"correction": torch.zeros_like(BASE)})
    assert GradientTracking().publish(states)["direction"].tolist() == [[-0.25, 0.25], [-0.25, -1.0]]


def test_a_layer_that_is_not_trained_has_no_direction() -> None:
    states = make_states(BASE, BASE, rates=rows([0.0], [0.5]), state={"correction": torch.zeros_like(BASE)})
    assert GradientTracking().publish(states)["direction"].tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_qg_dsgdm_by_hand() -> None:
    states = make_states(BASE, TRAINED, state={"momentum": rows([1.0, 0.0], [0.0, 2.0])})
    A = QGDSGDm(beta=0.9, mu=0.75).accept(states, {}, {"model": rows([2.0, 2.0], [3.0, 1.0])})
    assert A.tolist() == [[2.0, 2.0], [3.0, 1.0]]
    # .75 m + .25 (B - A) / (.5 x 2)
    assert states.state["momentum"].tolist() == [[0.75 - 0.25, 0.0], [0.0, 1.5 - 0.25]]
    gradient = QGDSGDm(beta=0.5).gradient(rows([1.0, 1.0]), rows([0, 0]), rows([0, 0]), {"momentum": rows([2.0, -4.0])})
    assert gradient.tolist() == [[2.0, -1.0]]


def test_choco_by_hand() -> None:
    """Top 1 of 2: replicas start at 0 and follow the trained models by one entry per round."""
    algorithm = Choco(compressor="top_k", ratio=0.5, gamma=0.5)
    W = rows([0.75, 0.25], [0.25, 0.75])
    state = {"replica": torch.zeros_like(TRAINED)}
    states = make_states(BASE, rows([2.0, 1.0], [3.0, 4.0]), state=state)
    sent = {"model": algorithm.publish(states)["model"].clone()}
    assert sent["model"].tolist() == [[2.0, 0.0], [0.0, 4.0]]
    A = algorithm.accept(states, sent, {"model": W @ sent["model"]})
    # T_1 + .5 x .25 (r_2 - r_1), and T_2 with the opposite sign
    assert A.tolist() == [[2 - 0.25, 1 + 0.5], [3 + 0.25, 4 - 0.5]]
    states = make_states(A, rows([2.5, 1.0], [3.0, 4.5]), state=state)
    assert algorithm.publish(states)["model"].tolist() == [[2.0, 1.0], [3.0, 4.0]]


def test_push_sum_by_hand() -> None:
    """Node 0 sends to both nodes, node 1 only to itself: W = (1/2 0; 1/2 1)."""
    algorithm = PushSum()
    small_state = {"share": torch.ones(2, dtype=torch.float64), "mass": torch.tensor([0.5, 1.5], dtype=torch.float64)}
    states = make_states(BASE, TRAINED, small_state=small_state)
    sent = algorithm.publish(states)
    # x_j / p_j: B + (T - B) / p
    assert sent["model"][0].tolist() == [1 + 2 * 1.0, 2 - 2 * 1.0]
    assert sent["model"][1].tolist() == pytest.approx([3 + 1 / 1.5, 0 + 4 / 1.5])
    assert sent["mass"].tolist() == [0.5, 1.5]
    receiver = {name: values[1] for name, values in small_state.items()}
    neighbourhood = make_neighbourhood(
        BASE, BASE[1], [0.5, 1.0], [1.0, 1.0], receiver, node=1, receive=lambda name: sent[name]
    )
    # p_2 = .5 x .5 + 1 x 1.5 = 1.75
    assert algorithm.weigh(neighbourhood).tolist() == pytest.approx([0.25 / 1.75, 1.5 / 1.75])
    assert small_state["mass"].tolist() == [0.5, 1.75]
    assert sent["mass"].tolist() == [0.5, 1.5]  # the sent message does not change


# --- FedNTD's loss ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5,), (3, 5)], ids=["one node", "three nodes"])
@pytest.mark.parametrize(("beta", "tau"), [(1.0, 1.0), (0.3, 4.0)])
def test_fedntds_loss_excludes_the_true_class(shape, beta, tau) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, base_outputs = (torch.randn(*shape, 7, generator=generator, dtype=torch.float64) * 9 for _ in range(2))
    targets = torch.randint(0, 7, shape, generator=generator)
    outputs.requires_grad_()
    others = torch.tensor([[c for c in range(7) if c != y] for y in targets.flatten().tolist()]).view(*shape, 6)
    student = (outputs.gather(-1, others) / tau).log_softmax(dim=-1).view(-1, 6)
    teacher = (base_outputs.gather(-1, others) / tau).softmax(dim=-1).view(-1, 6)
    each = F.kl_div(student, teacher, reduction="none").sum(dim=1).view(shape).mean(dim=-1)
    task = torch.randn(shape[:-1], generator=generator, dtype=torch.float64)
    expected = task + beta * tau**2 * each
    actual = FedNTD(beta=beta, tau=tau).loss(task, outputs, targets, base_outputs)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(value.sum(), outputs, retain_graph=True)[0] for value in (actual, expected)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-10, atol=1e-14)
    assert not gradients[0].gather(-1, targets.unsqueeze(-1)).any()


def test_fedntds_loss_is_finite_in_float32_for_distant_outputs() -> None:
    outputs = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    loss = FedNTD().loss(torch.tensor(0.0), outputs, torch.tensor([0]), torch.tensor([[0.0, 1e4, -1e4]]))
    assert loss.item() == pytest.approx(1e4)  # the teacher predicts class 1, the student class 2
    (gradient,) = torch.autograd.grad(loss, outputs)
    assert gradient.tolist() == [[0.0, -1.0, 1.0]]


# --- BatchNorm: one update per batch, and a teacher that does not change ------------------------------------------


def normed(name: str, algorithm: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "rounds": 1,
        "data": {"nodes": 3, "alpha": 1.0},
        "model": {"name": name},
        "topology": {"name": "star"},
        "algorithm": algorithm,
        "rates": {"name": "constant", "base": 0.05},
    } | more


def two_passes(model: nn.Module, x: Tensor, y: Tensor, radius: float) -> None:
    """Put SAM's gradient into `.grad`. The second pass runs on a copy, so it does not update the statistics."""
    F.cross_entropy(model(x), y).backward()
    norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))
    perturbed = copy.deepcopy(model)
    with torch.no_grad():
        for p, original in zip(perturbed.parameters(), model.parameters(), strict=True):
            p.add_(original.grad, alpha=radius / norm)
    perturbed.zero_grad()
    F.cross_entropy(perturbed(x), y).backward()
    for original, p in zip(model.parameters(), perturbed.parameters(), strict=True):
        original.grad = p.grad


def distilled(model: nn.Module, x: Tensor, y: Tensor, teacher: nn.Module) -> None:
    """Put FedNTD's gradient over nine of ten classes into `.grad`."""
    with torch.no_grad():
        base_outputs = teacher(x)
    outputs = model(x)
    keep = F.one_hot(y, 10) == 0
    student, target = (z[keep].view(-1, 9) for z in (outputs, base_outputs))
    divergence = F.kl_div(student.log_softmax(dim=1), target.softmax(dim=1), reduction="batchmean")
    (F.cross_entropy(outputs, y) + divergence).backward()


@pytest.mark.parametrize("name", ["dfedsam", "fedntd"])
def test_every_batch_updates_batchnorm_once(start, module, name) -> None:
    algorithm = {"name": name, "buffers": "local"} | ({"radius": 0.3} if name == "dfedsam" else {})
    settings = normed(f"{module(NORMED)}:Normed", algorithm, rounds=2)
    simulator = start(settings)
    (simulation,) = simulator.runs
    population, member = simulator.engine.population, simulation.plan.member
    template = initial_model(settings)
    models = [copy.deepcopy(template).train() for _ in range(3)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in models]
    samples = member.training.samples
    x, y, normalise = samples.x, samples.y, samples.normalise
    sizes = torch.tensor([float(len(shard)) for shard in member.shards])
    closed = torch.tensor([[1.0, 1, 1], [1, 1, 0], [1, 0, 1]])
    W = closed * sizes / (closed * sizes).sum(dim=1, keepdim=True)
    steps = [0] * 3
    for round, _ in enumerate(simulator.rounds(), 1):
        for node, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            teacher = copy.deepcopy(model).eval()
            for batch in member.training.batches(member.shards[node], node, round):
                optimizer.zero_grad()
                if name == "dfedsam":
                    two_passes(model, normalise(x[batch]), y[batch], 0.3)
                else:
                    distilled(model, normalise(x[batch]), y[batch], teacher)
                optimizer.step()
                steps[node] += 1
        trained = [[p.detach().clone() for p in model.parameters()] for model in models]
        with torch.no_grad():
            for node, model in enumerate(models):
                for k, p in enumerate(model.parameters()):
                    p.copy_(sum(W[node, j] * trained[j][k] for j in range(3)))
        for node, model in enumerate(models):
            for view, p in zip(population.layout.views(population.base[node]), model.parameters(), strict=True):
                torch.testing.assert_close(view, p.detach(), rtol=2e-3, atol=2e-4)
            for key, buffer in model.named_buffers():
                torch.testing.assert_close(population.buffers[key][node], buffer, rtol=2e-3, atol=2e-4)
    assert population.buffers["norm.num_batches_tracked"].tolist() == steps


def test_three_gossip_steps_mix_by_w_cubed_and_send_three_times_the_bytes(start, module) -> None:
    name = f"{module(NORMED)}:Normed"

    def started(gossip_steps: int) -> Any:
        algorithm = {"name": "dfedsam", "radius": 0.05, "gossip_steps": gossip_steps}
        return start(normed(name, algorithm, training={"momentum_state": "average"}))

    single = started(1)
    single.engine.train(single.runs[0].jobs())
    before = {**single.engine.population.buffers, **single.engine.population.optimizer_state}
    simulator = started(3)
    ((_, record, _),) = next(simulator.rounds())
    population, (simulation,) = simulator.engine.population, simulator.runs
    W3 = torch.linalg.matrix_power(simulation.plan.mixing.dense(), 3)
    torch.testing.assert_close(population.base.double(), W3 @ population.trained.double(), rtol=1e-5, atol=1e-6)
    for key in ("norm.running_mean", "norm.running_var"):
        torch.testing.assert_close(population.buffers[key].double(), W3 @ before[key].double(), rtol=1e-5, atol=1e-6)
    momentum = population.optimizer_state["momentum"].double()
    torch.testing.assert_close(momentum, W3 @ before["momentum"].double(), rtol=1e-4, atol=1e-5)
    ((_, once, _),) = next(single.rounds())
    assert record["nodes"]["bytes_sent"] == [3 * sent for sent in once["nodes"]["bytes_sent"]]
    parameters = 30 + 6 + 1090
    assert once["bytes_sent"] == 4 * 4 * (2 * parameters + 6)  # four messages of model, momentum and statistics


# --- CHOCO's messages ---------------------------------------------------------------------------------------------


def noise(nodes: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(nodes, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_top_k_keeps_the_largest_entries_unchanged() -> None:
    values = noise(3, 40)
    kept = top_k(values, 7)
    for row, original in zip(kept, values, strict=True):
        largest = sorted(original.abs().tolist())[-7:]
        assert sorted(row[row != 0].abs().tolist()) == largest
        assert torch.equal(row[row != 0], original[row != 0])


def test_every_receiver_can_redraw_the_columns_of_random_k() -> None:
    """A message holds only values. The receiver redraws their columns from (seed, node, round); never padding."""
    columns = torch.cat([torch.arange(0, 30), torch.arange(64, 90)])
    values = torch.zeros(2, 128, dtype=torch.float64)
    values[:, columns] = noise(2, 56)
    drawn = set()
    for round in (1, 2):
        kept = random_k(values, 9, columns, seed=4, round=round, ids=(5, 8))
        for row, node in enumerate((5, 8)):
            assert int((kept[row] != 0).sum()) == 9
            generator = torch_generator(4, node=node, round=round, purpose="random_k")
            chosen_columns = columns[torch.randperm(56, generator=generator)[:9]]
            message = values[row, chosen_columns]  # the whole message
            received = torch.zeros(128, dtype=torch.float64)
            received[chosen_columns] = message
            assert torch.equal(received, kept[row])
            drawn.add(tuple(sorted(chosen_columns.tolist())))
    assert len(drawn) == 4  # every node and round draws other columns


def test_random_k_of_a_node_does_not_depend_on_other_rows() -> None:
    values, columns = noise(3, 64), torch.arange(64)
    together = random_k(values, 5, columns, seed=1, round=2, ids=(0, 1, 2))
    alone = random_k(values[1:2], 5, columns, seed=1, round=2, ids=(1,))
    assert torch.equal(together[1:2], alone)


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_quantising_errors_are_at_most_half_a_level_of_the_block(bits) -> None:
    values = noise(2, 192) * torch.tensor([1.0, 1e-3, 1e3], dtype=torch.float64).repeat_interleave(64)
    values[0, 64:128] = 0  # an empty block
    coarse = quantise(values, bits)
    blocks, actual = values.view(2, 3, 64), coarse.view(2, 3, 64)
    level = blocks.abs().amax(dim=2, keepdim=True) / (2 ** (bits - 1) - 1)
    assert bool(((actual - blocks).abs() <= level / 2 * (1 + 1e-9)).all())
    assert not actual[0, 1].any()
    used = (actual / level.clamp_min(1e-300)).round()
    torch.testing.assert_close(used * level, actual, rtol=1e-12, atol=0)  # every value lies on a level
    assert int(used.abs().max()) == 2 ** (bits - 1) - 1


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"compressor": "none"}, 4 * 1001),
        ({"compressor": "top_k", "ratio": 0.1}, 100 * 8),
        ({"compressor": "top_k", "ratio": 1e-9}, 8),
        ({"compressor": "top_k", "ratio": 1.0}, 1001 * 8),
        ({"compressor": "random_k", "ratio": 0.1}, 100 * 4),
        ({"compressor": "quantise", "bits": 8}, 1001 + 16 * 4),  # 1001 = 15 x 64 + 41
        ({"compressor": "quantise", "bits": 3}, 376 + 16 * 4),  # 3003 bits are 375.375 bytes
    ],
)
def test_chocos_message_size_is_exact(parameters, expected) -> None:
    assert Choco(**parameters).message_bytes(1001, 16 * 64) == expected


@pytest.mark.parametrize("compressor", ["top_k", "random_k", "quantise", "none"])
def test_a_replica_is_the_sum_of_the_messages(compressor) -> None:
    """Mixing uses the sum that a neighbour can compute from messages of the counted size."""
    algorithm = Choco(compressor=compressor, ratio=0.25, bits=4)
    state = {"replica": torch.zeros(2, 64, dtype=torch.float64)}
    received = torch.zeros(2, 64, dtype=torch.float64)
    for round in range(1, 6):
        trained, before = noise(2, 64, seed=round), state["replica"].clone()
        sent = algorithm.publish(make_states(trained, trained, state=state, round=round))["model"]
        message = sent - before
        received += message
        entries = {"top_k": 16, "random_k": 16}.get(compressor, 64)
        assert int((message.abs() > 1e-12).sum(dim=1).max()) <= entries
        gap = trained - before
        assert bool(((sent - trained).norm(dim=1) <= gap.norm(dim=1)).all())  # compression never increases the distance
        torch.testing.assert_close(state["replica"], received, rtol=0, atol=1e-12)
    if compressor == "none":
        torch.testing.assert_close(state["replica"], trained, rtol=0, atol=1e-12)


# --- networks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_push_sum_reaches_the_mean_on_a_directed_graph_and_fedavg_does_not(start, module, tmp_path, weights) -> None:
    """The rates are too small for training, so only mixing acts, from a different initial model on every node."""

    def mixed(name: str) -> tuple[Tensor, Tensor, list[float]]:
        case = Case(plain_fedavg, weights=weights)
        spec = settings(f"{module(CHOICE)}:Choice", {"name": name}, case, "directed", tmp_path, rounds=60)
        spec["rates"]["base"] = 1e-30
        spec["model"]["init"] = "per_node"
        simulator = start(spec, loaded=offers(3))
        (simulation,), base = simulator.runs, simulator.engine.population.base
        before, sums = base[:, :2].double().clone(), []
        for _ in simulator.rounds():
            if name == "push_sum":
                mass = simulation.state.small_state["mass"]
                sums.append((mass @ base[:, :2].double()).tolist())
        return before, base[:, :2].double(), sums

    share = torch.tensor(SIZES if weights == "samples" else (1, 1, 1), dtype=torch.float64)
    before, after, sums = mixed("push_sum")
    for total in sums:  # the weighted sum is conserved
        assert total == pytest.approx((share @ before).tolist(), rel=1e-5)
    mean = share @ before / share.sum()
    torch.testing.assert_close(after, mean.expand(3, 2), rtol=1e-5, atol=1e-6)
    _, other, _ = mixed("fedavg")
    assert float((other[0] - other[2]).abs().max()) < 1e-5  # FedAvg reaches consensus too, on another average
    assert float((other[0] - mean).abs().max()) > 0.02


def test_columns_of_push_sum_weights_sum_to_one() -> None:
    mixing = build_mixing(build("random_out", 7, k=2, seed=3), "samples", [1, 2, 3, 4, 5, 6, 7], push=True)
    np.testing.assert_allclose(mixing.dense().sum(dim=0), np.ones(7), rtol=1e-12)


def balanced_settings(model: str, algorithm: str, network: str, folder: Path) -> dict[str, Any]:
    """Settings with balanced weights and no momentum."""
    case = Case(plain_fedavg, weights="metropolis", momentum=0.0)
    return settings(model, {"name": algorithm}, case, network, folder, training={"batch_size": 4, "momentum": 0.0})


@pytest.mark.parametrize("network", ["pair", "path"])
def test_corrections_of_gradient_tracking_sum_to_zero_after_every_round(start, module, tmp_path, network) -> None:
    spec = balanced_settings(f"{module(CHOICE)}:Choice", "gradient_tracking", network, tmp_path)
    simulator = start(spec | {"rounds": 12}, loaded=offers(len(NETWORKS[network])))
    correction = simulator.engine.population.algorithm_state["correction"]
    for _ in simulator.rounds():
        assert correction.double().sum(dim=0).abs().max() < 1e-6
        assert correction.abs().max() > 0.05


def full_batch(spec: dict[str, Any], size: int) -> dict[str, Any]:
    """Eight rounds in which every node trains on all of its `size` samples in one step."""
    return spec | {"training": {"batch_size": size, "momentum": 0.0}, "rounds": 8}


def equal_offers() -> Loaded:
    """Eight samples for each of three nodes."""
    images = offers(3).dataset
    return Loaded.of(Images(**(vars(images) | {"groups": torch.arange(24) % 3})))


def gradients(world: World, x: np.ndarray) -> np.ndarray:
    return np.array([world.gradient(x[i], world.batches(i, 1)[0]) for i in range(3)])


def test_one_full_step_of_gradient_tracking_is_dsgt(start, module, tmp_path) -> None:
    """x <- W (x - eta y);  y <- W y + g(x_new) - g(x_old), with y = g(x) at the start."""
    spec = full_batch(balanced_settings(f"{module(CHOICE)}:Choice", "gradient_tracking", "path", tmp_path), 8)
    simulator = start(spec, loaded=equal_offers())
    world = world_of(simulator, Case(plain_fedavg, weights="metropolis", momentum=0.0), "path")
    x = world.x
    g = y = gradients(world, x)
    for _ in simulator.rounds():
        x = world.W @ (x - 0.4 * y)
        new = gradients(world, x)
        y, g = world.W @ y + new - g, new
        np.testing.assert_allclose(simulator.engine.population.base[:, :2].numpy(), x, rtol=1e-4, atol=5e-6)
    np.testing.assert_allclose(y.mean(axis=0), g.mean(axis=0), atol=1e-12)  # the trackers keep the mean gradient


def test_one_full_step_of_qg_dsgdm_is_the_papers_update(start, module, tmp_path) -> None:
    """m = beta q + g;  x_half = x - eta m;  x_new = W x_half;  q <- mu q + (1 - mu) (x - x_new) / eta."""
    spec = full_batch(balanced_settings(f"{module(CHOICE)}:Choice", "qg_dsgdm", "path", tmp_path), 8)
    simulator = start(spec, loaded=equal_offers())
    world = world_of(simulator, Case(plain_fedavg, weights="metropolis", momentum=0.0), "path")
    x, q = world.x, np.zeros((3, 2))
    for _ in simulator.rounds():
        m = 0.9 * q + gradients(world, x)
        new = world.W @ (x - 0.4 * m)
        x, q = new, 0.9 * q + 0.1 * (x - new) / 0.4
        np.testing.assert_allclose(simulator.engine.population.base[:, :2].numpy(), x, rtol=1e-4, atol=5e-6)


@pytest.mark.parametrize("engine", ["rows", "batched"])
@pytest.mark.parametrize("steps", [1, 5])
def test_dpsgd_takes_its_steps_independent_of_epochs_and_exchanges_once(start, steps, engine) -> None:
    spec = {
        "rounds": 2,
        "data": {"nodes": 4, "alpha": 0.5},
        "topology": {"name": "ring"},
        "algorithm": {"name": "dpsgd", "steps": steps},
        "training": {"epochs": 3},
        "rates": {"name": "constant"},
        "runtime": {"engine": engine},
    }
    simulator = start(spec)
    parameters = simulator.engine.population.layout.parameters
    for round, ((_, record, _),) in enumerate(simulator.rounds(), 1):
        assert simulator.engine.population.steps.tolist() == [steps * round] * 4
        assert record["nodes"]["bytes_sent"] == [2 * 4 * parameters] * 4


def test_dpsgd_starts_a_new_epoch_when_a_shard_is_used_up(start) -> None:
    """A shard of 4 (or 3) batches and 10 steps: consecutive passes use every sample, in different orders."""
    data = {"nodes": 2, "partition": "iid", "train_fraction": 40 / 719, "min_size": 1}
    (simulation,) = start({"data": data, "algorithm": {"name": "dpsgd", "steps": 10}}).runs
    shard = simulation.plan.member.shards[0]
    assert len(shard) in (40, 39)
    batches = simulation.plan.member.training.batches(shard, 0, 1)
    assert [len(batch) for batch in batches] == [10] * 10
    whole = torch.cat(batches[: len(shard) // 10]).tolist()
    assert len(set(whole)) == len(whole)
    assert whole != torch.cat(batches[len(shard) // 10 : 2 * (len(shard) // 10)]).tolist()


def test_hooks_treat_rows_independently() -> None:
    """A peer calls hooks with a single row and gets the same values as the simulator with all rows."""
    for name, kind in ALGORITHMS.items():
        algorithm: Algorithm = kind()
        small_state = algorithm.small_state(torch.tensor([3.0, 5.0], dtype=torch.float64), 2, 1)
        base, trained = noise(2, 64, 1), noise(2, 64, 2)
        state = {key: noise(2, 64, 3) for key in algorithm.state}
        sent = algorithm.publish(
            make_states(base, trained, state=copy.deepcopy(state), small_state=copy.deepcopy(small_state), round=2)
        )
        for row in range(2):
            part = slice(row, row + 1)
            states = make_states(
                base[part],
                trained[part],
                state={key: values[part].clone() for key, values in state.items()},
                small_state={key: values[part].clone() for key, values in small_state.items()},
                ids=(row,),
                round=2,
            )
            for key, values in algorithm.publish(states).items():
                assert torch.equal(values, sent[key][part]), name
