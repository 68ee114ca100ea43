"""DFedHPO's search before round 1: candidates, trials, decision, consensus, cost and effect on the run."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import kstest

import feda2l
from feda2l.algorithms.dfedhpo import DFedHPO, Trial
from feda2l.data import Images
from feda2l.errors import FedA2LError
from feda2l.runs import pack
from feda2l.runs.datasets import Loaded
from feda2l.simulate.search import search
from first_models import NORMED

SAME = ("search.json", "rounds.jsonl", "rounds.parquet", "layers.parquet", "checkpoint.safetensors")


def spec(*, rounds: int = 3, nodes: int = 4, **more: Any) -> dict[str, Any]:
    """Two trials of one epoch on a quarter of the digits. Keys in `more` are merged into their section."""
    base: dict[str, Any] = {
        "rounds": rounds,
        "data": {"nodes": nodes, "alpha": 0.5, "train_fraction": 0.25},
        "topology": {"name": "ring"},
        "algorithm": {"name": "dfedhpo", "trials": 2, "eval_epochs": 1, "rate_range": [1e-3, 0.3]},
        "rates": {"name": "constant"},
        "runtime": {"workers": 0},
    }
    return base | {
        key: {**base.get(key, {}), **value} if isinstance(value, dict) else value for key, value in more.items()
    }


def search_result(simulator: Any) -> dict[str, Any]:
    return search(simulator.engine, simulator.runs[0])


def flat(rows: list[list[float]]) -> list[float]:
    return [value for row in rows for value in row]


# --- candidates and decision ---------------------------------------------------------------------------------------


def test_candidates_are_log_uniform_and_differ_by_node() -> None:
    algorithm = DFedHPO(trials=4000, rate_range=(1e-4, 1e-1))
    draws = algorithm.draw(seed=3, node=0)
    assert min(draws) >= 1e-4
    assert max(draws) <= 1e-1
    assert kstest([math.log10(rate) for rate in draws], "uniform", args=(-4, 3)).pvalue > 0.01
    assert algorithm.draw(seed=3, node=0) == draws
    assert not set(algorithm.draw(seed=3, node=1)) & set(draws)
    assert not set(algorithm.draw(seed=4, node=0)) & set(draws)


LOCAL = [Trial(0.1, 3.0), Trial(0.01, 1.0)]
RECEIVED = [Trial(0.05, 0.5), Trial(0.2, 4.0)]


def test_ca_takes_the_rate_with_the_lowest_loss_without_further_trials() -> None:
    algorithm = DFedHPO(aggregator="CA")
    assert algorithm.shortlist(LOCAL, RECEIVED, 1, 0) == []
    assert algorithm.decide(LOCAL, RECEIVED, []) == 0.05
    assert algorithm.decide(LOCAL, [], []) == 0.01


def test_fa_tries_received_rates_and_takes_the_mean_of_the_best() -> None:
    algorithm = DFedHPO(aggregator="FA", top_k=2)
    assert algorithm.shortlist(LOCAL, RECEIVED, 1, 0) == [0.05, 0.2]
    assert algorithm.shortlist(LOCAL, [*RECEIVED, Trial(0.1, 9.0)], 1, 0) == [
        0.05,
        0.2,
    ]  # the node has already tried 0.1
    # only the node's own losses count, not its neighbours': 0.2 is the best here
    tried = [Trial(0.05, 7.0), Trial(0.2, 0.9)]
    assert algorithm.decide(LOCAL, RECEIVED, tried) == pytest.approx((0.2 + 0.01) / 2)
    assert DFedHPO(aggregator="FA", top_k=9).decide(LOCAL, RECEIVED, tried) == pytest.approx(
        (0.1 + 0.01 + 0.05 + 0.2) / 4
    )


def test_ma_tries_the_forests_candidates_and_takes_the_best() -> None:
    algorithm = DFedHPO(aggregator="MA", top_k=4, rate_range=(1e-4, 1.0))
    # the minimum is at 10^-2, in the trials of the node and of its neighbours
    trials = [Trial(10**x, (x + 2) ** 2) for x in [-4 + k / 10 for k in range(41)]]
    shortlist = algorithm.shortlist(trials[::2], trials[1::2], 1, 0)
    assert len(shortlist) == 4
    assert all(1e-3 < rate < 1e-1 for rate in shortlist)
    grid = [math.log(1e-4) + (0 - math.log(1e-4)) * i / 199 for i in range(200)]
    assert all(min(abs(math.log(rate) - place) for place in grid) < 1e-9 for rate in shortlist)
    assert algorithm.shortlist(trials[::2], trials[1::2], 1, 0) == shortlist
    assert algorithm.decide(trials, [], [Trial(0.02, 0.3), Trial(0.03, 0.2), Trial(0.04, 0.4)]) == 0.03


def test_ma_avoids_rates_with_infinite_loss() -> None:
    algorithm = DFedHPO(aggregator="MA", top_k=3, rate_range=(1e-3, 1e3))
    trials = [Trial(10**x, math.inf if x > 0 else 1.0 - x / 10) for x in [-3 + k / 4 for k in range(25)]]
    assert all(rate < 2 for rate in algorithm.shortlist(trials, [], 1, 0))
    all_infinite = [Trial(rate, math.inf) for rate, _ in trials]
    assert len(algorithm.shortlist(all_infinite, [], 1, 0)) == 3


INFINITE = [Trial(1e3, math.inf), Trial(1e2, math.inf)]


@pytest.mark.parametrize("aggregator", ["CA", "FA", "MA"])
def test_a_rate_with_infinite_loss_is_chosen_only_without_alternative(aggregator) -> None:
    algorithm = DFedHPO(aggregator=aggregator, top_k=3)
    assert algorithm.decide([*INFINITE, Trial(0.1, 2.0)], [], [*INFINITE, Trial(0.1, 2.0)]) == 0.1
    # if every loss is infinite, the smallest rate is taken
    assert algorithm.decide(INFINITE, [], INFINITE) == 1e2


# --- trials --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mlp", "Normed"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_search_changes_nothing_but_the_rates(start, module, model, optimizer) -> None:
    name = "mlp" if model == "mlp" else f"{module(NORMED)}:Normed"
    more = {"model": {"name": name}, "training": {"optimizer": optimizer}}
    other = spec(**more) | {"algorithm": {"name": "fedyogi"}}
    simulator = start(other, spec(**more))
    population = simulator.engine.population
    generator = torch.Generator().manual_seed(0)
    matrices = [
        population.base,
        population.steps,
        *population.optimizer_state.values(),
        *population.algorithm_state.values(),
    ]
    for matrix in matrices:
        matrix += torch.rand(matrix.shape, generator=generator)
    before = [values.clone() for values in (*matrices, *population.buffers.values())]
    result = search(simulator.engine, simulator.runs[1])
    after = [*matrices, *population.buffers.values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert len({trial["loss"] for trials in result["trials"] for trial in trials}) > 4  # the trials did train
    assert simulator.runs[0].state.rates.rates.unique().tolist() == [0.01]


def with_changed_test_set(images: Images) -> Images:
    """Replace the test set by black images with changed labels."""
    return Images(**(vars(images) | {"test_x": torch.zeros_like(images.test_x), "test_y": 9 - images.test_y}))


@pytest.mark.parametrize("aggregator", ["CA", "FA", "MA"])
def test_the_search_uses_held_out_samples_and_not_the_test_set(start, digits, aggregator) -> None:
    settings = spec(nodes=3, algorithm={"aggregator": aggregator})
    result = search_result(start(settings))
    assert search_result(start(settings, loaded=Loaded.of(with_changed_test_set(digits.dataset)))) == result
    simulator = start(settings)
    images = digits.dataset
    labels = images.train_y.clone()
    for unused in simulator.runs[0].plan.member.local:
        labels[unused] = 9 - labels[unused]
    changed = Loaded.of(Images(**(vars(images) | {"train_y": labels})))
    # the assignment of samples depends on the labels, so it is restored
    other = start(settings, loaded=changed)
    other.runs[0].plan.member.local[:] = simulator.runs[0].plan.member.local
    other.runs[0].plan.member.shards[:] = simulator.runs[0].plan.member.shards
    losses = [trials[0]["loss"] for trials in result["trials"]]
    assert all(trials[0]["loss"] > loss for trials, loss in zip(search_result(other)["trials"], losses, strict=True))


def test_every_trial_has_the_same_batches_and_the_same_start(start) -> None:
    """Trying a rate twice gives the same loss."""
    simulator = start(spec(algorithm={"aggregator": "FA", "trials": 1}))
    first, second = search_result(simulator), search_result(simulator)
    assert first == second
    first_trials = {trials[0]["rate"]: trials[0]["loss"] for trials in first["trials"]}
    assert len(first_trials) == 4
    for trials in first["trials"]:
        assert [trial["rate"] in first_trials for trial in trials] == [
            True
        ] * 3  # its own rate and those of two neighbours


@pytest.mark.parametrize("aggregator", ["CA", "FA", "MA"])
def test_trials_with_infinite_loss_do_not_end_the_search(start, aggregator) -> None:
    """Half of the range overflows, and the resulting rates still train."""
    settings = spec(algorithm={"aggregator": aggregator, "trials": 4, "rate_range": [1e-3, 1e30]})
    simulator = start(settings)
    result = search_result(simulator)
    losses = [trial["loss"] for trials in result["trials"] for trial in trials]
    assert None in losses
    assert all(loss is None or math.isfinite(loss) for loss in losses)
    json.dumps(result, allow_nan=False)
    base = simulator.engine.population.base
    assert bool(base.isfinite().all())
    if aggregator == "CA":
        best = min((t["loss"], t["rate"]) for trials in result["trials"] for t in trials if t["loss"] is not None)
        assert best[1] < 100


@pytest.mark.parametrize("top", [1e3, 1e30])
def test_a_run_with_too_wide_a_range_still_finishes(tmp_path, top) -> None:
    settings = spec(nodes=3, algorithm={"aggregator": "CA", "trials": 6, "rate_range": [1e-3, top]})
    run = feda2l.run(settings | {"topology": {"name": "full"}}, out=tmp_path / "out", progress=False)
    assert run.summary["status"] == "finished"
    assert max(run.summary["search"]["rates"]) < 10


# --- consensus ----------------------------------------------------------------------------------------------------


def test_consensus_brings_the_rates_on_a_ring_within_one_percent(start) -> None:
    algorithm = {"aggregator": "CA", "trials": 1, "rate_range": [1e-5, 1e-1]}
    apart = search_result(start(spec(nodes=8, algorithm=algorithm | {"consensus": False})))
    assert max(apart["rates"]) > 1.5 * min(apart["rates"])
    assert apart["consensus_exchanges"] == 0
    agreed = search_result(start(spec(nodes=8, algorithm=algorithm)))
    assert 1 < max(agreed["rates"]) / min(agreed["rates"]) <= 1.01
    assert min(apart["rates"]) < min(agreed["rates"])
    assert max(agreed["rates"]) < max(apart["rates"])
    assert agreed["bytes_sent"] - apart["bytes_sent"] == 8 * 16 * agreed["consensus_exchanges"]  # 16 messages
    assert apart["trials"] == agreed["trials"]


def test_with_uniform_weights_the_consensus_keeps_the_geometric_mean(start) -> None:
    algorithm = {"aggregator": "CA", "trials": 1}
    more = {"topology": {"weights": "uniform"}}
    apart, agreed = (
        search_result(start(spec(nodes=5, algorithm=algorithm | {"consensus": both}, **more))) for both in (False, True)
    )
    means = [math.fsum(map(math.log, result["rates"])) / 5 for result in (apart, agreed)]
    assert means[0] == pytest.approx(means[1], rel=1e-12)


# --- after the search----------------------------------------------------------------------------------------------


RULES = {
    "constant": {"name": "constant"},
    "feda2l": {"name": "feda2l", "warmup_rounds": 1, "window": 2},
    "cawr": {"name": "cawr", "period": 3},
}


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_the_result_is_the_base_rate_of_the_rate_rule(start, rule) -> None:
    """On a full graph all nodes take the same rate, and FedAvg with this rate trains the same."""
    more = {"rounds": 5, "topology": {"name": "full"}}
    searching = start(spec(**more, rates={**rule, "base": 0.9}, algorithm={"aggregator": "CA"}))
    rates = search_result(searching)["rates"]
    assert len(set(rates)) == 1
    fedavg = start(spec(**more, rates={**rule, "base": rates[0]}) | {"algorithm": {"name": "fedavg"}})
    for ((_, one, _),), ((_, other, _),) in zip(searching.rounds(), fedavg.rounds(), strict=True):
        assert torch.allclose(torch.tensor(one["layers"]["rate"]), torch.tensor(other["layers"]["rate"]), rtol=1e-4)
        if one["round"] == 1:
            assert all(math.isclose(rate, rates[0], rel_tol=1e-12) for rate in flat(one["layers"]["rate"]))
    torch.testing.assert_close(searching.engine.population.base, fedavg.engine.population.base, rtol=1e-4, atol=1e-5)
    if rule["name"] == "feda2l":
        assert len(set(flat(one["layers"]["rate"]))) > 1


def test_without_consensus_base_rates_differ_by_node(start) -> None:
    simulator = start(spec(algorithm={"aggregator": "CA", "trials": 1, "consensus": False}))
    rates = search_result(simulator)["rates"]
    assert len(set(rates)) > 1
    ((_, record, _),) = next(simulator.rounds())
    for rate, layers in zip(rates, record["layers"]["rate"], strict=True):
        assert layers == pytest.approx([rate] * len(layers), rel=1e-12)


@pytest.mark.parametrize(("aggregator", "epochs"), [("CA", 2 * 3), ("FA", 3 * 2 * 3), ("MA", (2 + 2) * 3)])
def test_the_cost_in_rounds_is_search_epochs_over_epochs_per_round(tmp_path, aggregator, epochs) -> None:
    """Ring of four: with FA every node tries its two rates and two rates of each of two neighbours."""
    algorithm = {"aggregator": aggregator, "trials": 2, "eval_epochs": 3, "top_k": 2, "rate_range": [0.01, 0.1]}
    more = {"training": {"epochs": 2}, "evaluation": {"target": 0.2, "smoothing": 1}}
    run = feda2l.run(spec(algorithm=algorithm, **more), out=tmp_path / "out", progress=False)
    summary = run.summary
    assert summary["search"]["rounds"] == epochs / 2
    assert summary["target"]["round_with_search"] == summary["target"]["round"] + epochs / 2
    result = json.loads((tmp_path / "out" / "search.json").read_text())
    assert result["epochs"] == [epochs] * 4
    assert summary["search"]["rates"] == result["rates"]
    assert summary["rounds"] == 3  # the search does not count as a round


# --- interrupted, resumed, packed ----------------------------------------------------------------------------------


class Crash(Exception):
    """Stand in for a process that ends abruptly."""


def crash_in(round: int) -> Callable[[dict[str, Any]], None]:
    def on_round(record: dict[str, Any]) -> None:
        if record["round"] == round:
            raise Crash

    return on_round


def differing(one: Path, other: Path) -> list[str]:
    return [name for name in SAME if (one / name).read_bytes() != (other / name).read_bytes()]


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_a_run_that_stops_and_is_resumed_ends_in_the_same_bytes(tmp_path, monkeypatch, rule) -> None:
    settings = spec(rounds=4, rates=rule, algorithm={"aggregator": "CA"}, runtime={"checkpoint_seconds": 0})
    whole = feda2l.run(settings, out=tmp_path / "whole", progress=False).path
    broken = tmp_path / "broken"

    def interrupted(engine: Any, simulation: Any) -> None:
        search(engine, simulation)
        raise Crash

    with monkeypatch.context() as within:
        within.setattr(pack, "search", interrupted)
        with pytest.raises(Crash):
            feda2l.run(settings, out=broken, progress=False)
    assert not (broken / "search.json").exists()
    for round in (1, 2, 3):
        with pytest.raises(Crash):
            feda2l.run(settings, out=broken, resume=True, progress=False, on_round=crash_in(round))
    resumed = feda2l.run(settings, out=broken, resume=True, progress=False)
    assert differing(whole, broken) == []
    assert resumed.summary["search"] == feda2l.runs.run.Run(whole).summary["search"]


def test_after_the_first_checkpoint_the_search_is_not_repeated(tmp_path, monkeypatch) -> None:
    settings = spec(rounds=2, algorithm={"aggregator": "CA"})
    feda2l.run(settings, out=tmp_path / "out", progress=False)

    def again(*_: Any) -> None:
        raise AssertionError("the search was run again")

    monkeypatch.setattr(pack, "search", again)
    longer = feda2l.run(settings | {"rounds": 3}, out=tmp_path / "out", resume=True, progress=False)
    assert longer.summary["rounds"] == 3
    assert len(longer.summary["search"]["rates"]) == 4


def test_packed_runs_give_the_same_search_result_as_alone(tmp_path) -> None:
    specs = [
        spec(name="first", algorithm={"aggregator": "FA"}),
        spec(name="plain") | {"algorithm": {"name": "fedavg"}},
        spec(name="second", seed=2, nodes=3, algorithm={"aggregator": "MA"}, topology={"name": "full"}),
    ]
    packed = feda2l.run(specs, out=tmp_path / "packed", progress=False)
    for settings, together in zip(specs, packed, strict=True):
        alone = feda2l.run(settings, out=tmp_path / settings["name"], progress=False)
        assert (alone.path / "search.json").exists() == (settings["name"] != "plain")
        same = SAME if settings["name"] != "plain" else SAME[1:]
        assert [n for n in same if (alone.path / n).read_bytes() != (together.path / n).read_bytes()] == []


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_give_the_same_search_result(tmp_path, workers) -> None:
    settings = spec(rounds=1, nodes=3)
    alone = feda2l.run(settings, out=tmp_path / "alone", progress=False).path
    with_workers = feda2l.run(
        settings | {"runtime": {"workers": workers}}, out=tmp_path / "workers", progress=False
    ).path
    assert differing(alone, with_workers) == []


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate_range", [[0.1, 0.01], [0.1, 0.1], [0.0, 0.1], [-1.0, 0.1], [0.1, math.inf]])
def test_an_empty_range_is_rejected(tmp_path, rate_range) -> None:
    with pytest.raises(FedA2LError, match=r"algorithm\.rate_range = .*low.*high"):
        feda2l.run(spec(algorithm={"rate_range": rate_range}), out=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_the_search_needs_held_out_samples(tmp_path) -> None:
    with pytest.raises(FedA2LError, match=r'algorithm.name = "dfedhpo" needs held-out samples .*train_fraction = 1\.0'):
        feda2l.run(spec(data={"train_fraction": 1.0}), out=tmp_path / "out", progress=False)
