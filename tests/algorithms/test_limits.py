"""Limits of each algorithm: parameters at which it equals FedAvg, and training of an isolated node."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from feda2l.algorithms import ALGORITHMS, Neighbourhood
from feda2l.algorithms.fedawa import FedAWA
from feda2l.data import Images
from feda2l.engines.engine import RowEngine
from feda2l.engines.stacked import Stacked
from feda2l.runs.datasets import Loaded
from feda2l.simulate.search import search
from first_models import NORMED, initial_model

ROUNDS = 3
# these equal FedAvg bit by bit
EQUAL: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0.0},
    "dfedsam": {"radius": 0.0},
    "fedntd": {"beta": 0.0},
    "fedlws": {"beta": 0.0, "low": 0.0, "high": 0.0},
    "push_sum": {},  # masses stay 1 if W is doubly stochastic
    "dfedavgm": {},  # only the defaults of other sections differ, and they are set below
}
# and this up to rounding: T + (W r - r) with r = T differs from W T in the last bits
CLOSE: dict[str, dict[str, Any]] = {"choco": {"compressor": "none", "gamma": 1.0}}
LIMITS = [pytest.param(name, parameters, id=name) for name, parameters in (EQUAL | CLOSE).items()]


def spec(algorithm: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "rounds": ROUNDS,
        "data": {"nodes": 4, "alpha": 0.5, "train_fraction": 0.25},
        "topology": {"name": "star", "weights": "metropolis"},
        "algorithm": algorithm,
        "rates": {"name": "constant", "base": 0.05},
        "training": {"momentum": 0.9, "momentum_state": "keep"},
        "evaluation": {"every": ROUNDS},
    } | more


def outcome(simulator: Any) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The state that a run carries to the next round, except the algorithm state, and its records."""
    records = [completed[0].record for completed in simulator.rounds()]
    population = simulator.engine.population
    return {"model": population.base, **population.optimizer_state, **population.buffers}, records


def assert_agree(name: str, actual: Any, expected: Any) -> None:
    (states, records), (plain_states, plain_records) = actual, expected
    for key, values in plain_states.items():
        if name in EQUAL:
            assert torch.equal(states[key], values), key
        else:
            torch.testing.assert_close(states[key], values, rtol=1e-4, atol=1e-5)
    for record, plain in zip(records, plain_records, strict=True):
        for key in ("train_loss", "accuracy", "test_loss"):
            if key in plain:
                assert record[key] == (plain[key] if name in EQUAL else pytest.approx(plain[key], abs=1e-3))


@pytest.mark.parametrize("engine", ["auto", "rows"])
@pytest.mark.parametrize(("name", "parameters"), LIMITS)
def test_the_limit_is_fedavg(start, name, parameters, engine) -> None:
    runtime = {"runtime": {"engine": engine}}
    plain, simulator = start(spec({}, **runtime)), start(spec({"name": name, **parameters}, **runtime))
    assert type(simulator.engine) is (Stacked if engine == "auto" else RowEngine)
    assert_agree(name, outcome(simulator), outcome(plain))


@pytest.mark.parametrize("buffers", ["average", "local", "recalibrate"])
@pytest.mark.parametrize(("name", "parameters"), LIMITS)
def test_the_limit_is_fedavg_for_a_model_with_batchnorm(start, module, name, parameters, buffers) -> None:
    model = {"rounds": 2, "model": {"name": f"{module(NORMED)}:Normed"}}
    plain = start(spec({"buffers": buffers}, **model))
    simulator = start(spec({"name": name, "buffers": buffers, **parameters}, **model))
    assert_agree(name, outcome(simulator), outcome(plain))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("fedprox", {"mu": 0.1}),
        ("dfedsam", {"radius": 0.05}),
        ("fedntd", {"beta": 0.5}),
        ("fedlws", {}),
        ("choco", {"compressor": "none", "gamma": 0.9}),
        ("dfedsam", {"radius": 0.0, "gossip_steps": 2}),
    ],
)
def test_other_parameters_differ_from_fedavg(start, name, parameters) -> None:
    (actual, _), (plain, _) = outcome(start(spec({"name": name, **parameters}))), outcome(start(spec({})))
    assert float((actual["model"] - plain["model"]).abs().max()) > 1e-4


def test_runs_with_different_numbers_of_steps_share_a_pack(start) -> None:
    """Runs of one step per round and of full epochs share a kernel, and each equals the run alone."""
    specs = [spec({}), spec({"name": "dpsgd"}), spec({"name": "dpsgd", "steps": 40})]
    alone = [outcome(start(one))[0]["model"].clone() for one in specs]
    packed = start(*specs)
    assert isinstance(packed.engine, Stacked)
    list(packed.rounds())
    for simulation, expected in zip(packed.runs, alone, strict=True):
        assert torch.equal(packed.engine.population.base[simulation.state.rows], expected)


def test_fedntd_of_two_classes_has_nothing_to_distil(start, digits) -> None:
    """Without the true class one class is left, and its probability is 1 for student and teacher."""
    images = digits.dataset
    even = vars(images) | {"train_y": images.train_y % 2, "test_y": images.test_y % 2}
    loaded = Loaded.of(Images(**(even | {"classes": 2, "class_names": ("even", "odd")})))
    actual, plain = (outcome(start(spec({"name": name}), loaded=loaded))[0] for name in ("fedntd", "fedavg"))
    torch.testing.assert_close(actual["model"], plain["model"], rtol=1e-5, atol=1e-6)


# --- FedAWA with equal neighbours ---------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["before", "after"])
@pytest.mark.parametrize("regulariser", ["weighted", "mean"])
def test_fedawa_learns_nothing_from_equal_neighbours(regulariser, use) -> None:
    """The gradient of the loss is 0 there, so with `log_shares` the weights stay those of FedAvg."""
    algorithm = FedAWA(init="log_shares", regulariser=regulariser, use=use, optimizer_state="kept")
    small_state = {name: values[0] for name, values in algorithm.small_state(torch.ones(1), nodes=3, layers=1).items()}
    samples = torch.tensor([10.0, 30.0, 20.0], dtype=torch.float64)
    models = torch.tensor([1.0, 2.0], dtype=torch.float64).expand(3, 2)
    for base in ([1.0, 2.0], [0.5, 1.0], [3.0, -1.0]):
        neighbourhood = Neighbourhood(
            0,
            (0, 1, 2),
            samples / 60,
            samples,
            torch.tensor(base, dtype=torch.float64),
            small_state,
            lambda name: models,
            lambda a, b: b - a,
        )
        torch.testing.assert_close(algorithm.weigh(neighbourhood), samples / 60, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "parameters", [{}, {"init": "log_shares", "use": "after", "regulariser": "mean"}], ids=["", "after"]
)
def test_fedawa_of_nodes_with_the_same_samples_is_fedavg(start, digits, parameters) -> None:
    """Three nodes train on the same twenty samples in one step, so their models stay equal."""
    images, chosen = digits.dataset, torch.arange(20).repeat(3)
    copies = {"train_x": images.train_x[chosen], "train_y": images.train_y[chosen]}
    loaded = Loaded.of(Images(**(vars(images) | copies | {"groups": torch.arange(3).repeat_interleave(20)})))
    more = {
        "data": {"nodes": 3, "partition": "natural", "train_fraction": 1.0, "min_size": 1},
        "topology": {"name": "full"},
        "training": {"batch_size": 20},
    }
    actual, plain = (
        outcome(start(spec({"name": name, **extra}, **more), loaded=loaded))[0]
        for name, extra in (("fedawa", parameters), ("fedavg", {}))
    )
    torch.testing.assert_close(actual["model"], plain["model"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("use", ["before", "after"])
def test_fedawa_starts_from_sample_shares_only_with_log_shares(start, use) -> None:
    """With `log_shares` the first round equals FedAvg up to a small step; with the authors' start it does not."""
    more = {"rounds": 1, "topology": {"name": "ring", "weights": "samples"}}
    plain, logs, shares = (
        outcome(start(spec(algorithm, **more)))[0]["model"].double()
        for algorithm in (
            {},
            {"name": "fedawa", "init": "log_shares", "use": use, "rate": 1e-4},
            {"name": "fedawa", "use": use, "rate": 1e-4},
        )
    )
    torch.testing.assert_close(logs, plain, rtol=1e-3, atol=1e-4)
    assert float((shares - plain).abs().max()) > 1e-3


# --- an isolated node ---------------------------------------------------------------------------------------------

# by definition these reduce to plain training without neighbours
PLAIN = ("fedavg", "fedawa", "dpsgd", "dfedavgm", "gradient_tracking", "choco", "push_sum", "dfedhpo")
# these change the local steps (a proximal term, an ascent, a teacher, a momentum) or the step from B to A
OTHER = ("fedprox", "fedyogi", "fedntd", "dfedsam", "fedlws", "qg_dsgdm")


def test_every_algorithm_is_in_one_of_the_two_lists() -> None:
    assert sorted((*PLAIN, *OTHER)) == sorted(ALGORITHMS)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_isolated_node_trains_plainly_if_the_definition_says_so(start, name) -> None:
    parameters = {"trials": 2, "eval_epochs": 1} if name == "dfedhpo" else {"steps": 7} if name == "dpsgd" else {}
    momentum = 0.0 if name == "qg_dsgdm" else 0.9
    settings = spec(
        {"name": name, **parameters},
        data={"nodes": 1, "train_fraction": 0.1},
        topology={"name": "full"},
        training={"momentum": momentum},
        runtime={"engine": "rows"},
    )
    simulator = start(settings)
    member, rate = simulator.runs[0].plan.member, 0.05
    if name == "dfedhpo":
        (rate,) = search(simulator.engine, simulator.runs[0])["rates"]
        assert not math.isclose(rate, 0.05)
    (actual, _) = outcome(simulator)
    model = copy.deepcopy(initial_model(settings)).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    samples = member.training.samples
    x, y, normalise = samples.x, samples.y, samples.normalise
    for round in range(1, ROUNDS + 1):
        if name == "dfedavgm":
            optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
        batches = member.training.batches(member.shards[0], 0, round)
        assert len(batches) == (7 if name == "dpsgd" else 14)
        for batch in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(normalise(x[batch])), y[batch]).backward()
            optimizer.step()
    views = simulator.engine.population.layout.views(actual["model"][0])
    gap = max(float((view - p.detach()).abs().max()) for view, p in zip(views, model.parameters(), strict=True))
    assert gap < 1e-5 if name in PLAIN else gap > 1e-4


def test_isolated_choco_is_exact_for_every_compressor(start) -> None:
    """Without neighbours A = T + gamma (r - r) = T."""
    alone = {"data": {"nodes": 1}, "topology": {"name": "full"}}
    plain, _ = outcome(start(spec({}, **alone)))
    for compressor in ("top_k", "random_k", "quantise"):
        actual, _ = outcome(start(spec({"name": "choco", "compressor": compressor}, **alone)))
        assert torch.equal(actual["model"], plain["model"])


def test_isolated_nodes_train_as_with_fedavg(start) -> None:
    """Without neighbours push-sum, gradient tracking, FedAWA and CHOCO equal FedAvg."""
    isolated = {"topology": {"name": "isolated"}, "rounds": 2}
    expected = outcome(start(spec({}, **isolated)))[0]["model"]
    for name in ("push_sum", "gradient_tracking", "fedawa", "choco"):
        actual = outcome(start(spec({"name": name}, **isolated)))[0]["model"]
        np.testing.assert_allclose(actual.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)
