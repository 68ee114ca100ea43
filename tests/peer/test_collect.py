"""Collect one run folder from the folders of many nodes: with and without faults."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import demand_same
from networks import configs, run_together

import feda2l
from feda2l.records.run_folder import RunFolder
from feda2l.runs.evaluate import evaluate
from feda2l.simulate.checkpoint import read_checkpoint
from feda2l.spec.spec import Spec
from feda2l.swarm.collect import collect
from feda2l.topology import build

SMALL: dict[str, Any] = {
    "name": "small",
    "rounds": 4,
    "data": {"name": "digits", "nodes": 3, "alpha": 0.5},
    "topology": {"name": "ring"},
    "rates": {"name": "feda2l", "warmup_rounds": 1, "window": 2, "base": 0.05},
}


def _run(values: dict[str, Any], folder: Path) -> list[RunFolder]:
    """The folders of nodes that ran a spec together."""
    return [node.folder for node in run_together(configs(values, folder))]


def _collect(values: dict[str, Any], states: list[RunFolder], out: Path) -> RunFolder:
    out.mkdir()
    spec = Spec.load(states[0].spec)
    spec = Spec.parse(values | {"data": spec.data.model_dump(exclude_none=True)})
    topology = spec.topology
    graph = build(topology.name, len(states), k=topology.k, p=topology.p, seed=topology.seed)
    collect(RunFolder(out), states, spec, graph)
    return RunFolder(out)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"evaluation": {"every": 3, "on": "both"}},
        {"evaluation": {"on": "local"}, "training": {"optimizer": "adam"}, "rates": {"base": 0.001}},
        {"algorithm": {"name": "push_sum"}, "topology": {"name": "directed_ring"}},
        {"algorithm": {"name": "dfedhpo", "trials": 2, "eval_epochs": 1, "consensus": False}},
        {"rates": {"name": "one_cycle"}, "model": {"init": "per_node"}},
    ],
    ids=["plain", "both", "local-adam", "directed", "searching", "schedule"],
)
def test_the_collected_folder_equals_the_simulators(tmp_path, changes):
    values = SMALL | changes
    simulated = feda2l.run(values, out=tmp_path / "simulated", progress=False)
    collected = _collect(values, _run(values, tmp_path / "peers"), tmp_path / "collected")
    demand_same(collected.path, simulated.path)
    ours, theirs = feda2l.Run(collected.path).summary, simulated.summary
    assert ours.pop("engine") == "peers"
    for summary in (ours, theirs):
        for key in ("engine", "seconds"):
            summary.pop(key, None)
    assert ours == theirs
    assert not collected.faults.exists()


def test_the_collected_folder_works_like_any_other_run(tmp_path):
    states = _run(SMALL, tmp_path / "peers")
    collected = _collect(SMALL, states, tmp_path / "collected")
    run = feda2l.Run(collected.path)
    assert run.rounds.height == run.layers.height // len(run.layers["layer"].unique()) == 4 * 3
    own = read_checkpoint(states[2].checkpoint)
    for name, value in run.state(2).items():
        assert torch.equal(value, own[f"model.{name}"][0])
    assert run.model()(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    assert evaluate(collected.path)["accuracy"] == run.summary["accuracy"]["final"]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, list[RunFolder]]:
    """Node 2 died after round 2, and node 1 did not receive node 0's message in round 3."""
    folder = tmp_path_factory.mktemp("broken")
    states = _run(SMALL, folder / "peers")
    early = _run(SMALL | {"rounds": 2, "rates": SMALL["rates"] | {"horizon": 4}}, folder / "early")
    shutil.copy(early[2].checkpoint, states[2].checkpoint)
    for path in (states[2].rounds, states[2].timings):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    lines = [json.loads(line) for line in states[1].rounds.read_text().splitlines()]
    for line in lines[2:]:
        line["received"] = [0]
    lines[2]["received"] = []
    states[1].rounds.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for line in (lines := [json.loads(line) for line in states[0].rounds.read_text().splitlines()])[2:]:
        line["received"] = [1]
    states[0].rounds.write_text("".join(json.dumps(line) + "\n" for line in lines))
    # as in a log: the line of a message rejected in round 3 has the number of the last completed round
    with open(states[1].path / "log.jsonl", "a") as log:
        log.write(json.dumps({"event": "rejected", "round": 2, "neighbour": "n0", "reason": "digest"}) + "\n")
    return _collect(SMALL, states, folder / "collected"), states


def test_observed_faults_are_written_as_a_plan(broken):
    collected, _ = broken
    plan = tomllib.loads(collected.faults.read_text())["fault"]
    assert plan == [
        {"kind": "crash", "node": 2, "round": 3},
        {"kind": "drop", "node": 0, "round": 3, "rounds": 1, "to": [1]},
    ]
    assert Spec.load(collected.spec).faults == str(collected.faults)


def test_a_missing_node_has_no_values(broken):
    collected, _ = broken
    records = collected.read()
    assert [record["nodes"]["accuracy"][2] is None for record in records] == [False, False, True, True]
    assert [record["nodes"]["received"] for record in records] == [[2, 2, 2], [2, 2, 2], [1, 0, None], [1, 1, None]]
    assert [record["nodes"]["rejected"] for record in records][2] == [0, 1, None]
    sent = records[0]["nodes"]["bytes_sent"][0] // 2
    assert records[2]["nodes"]["bytes_sent"] == [sent, sent, 0]  # a rejected message was sent
    there = records[3]["nodes"]["accuracy"][:2]
    assert records[3]["accuracy"] == sum(there) / 2
    assert records[3]["accuracy_worst"] == min(there)
    summary = feda2l.Run(collected.path).summary
    assert summary["faults"] == {"missed": 2, "alone": 1, "rejected": 1}


def test_histories_of_different_lengths_stay_separate(broken):
    collected, states = broken
    whole = read_checkpoint(collected.checkpoint)
    for id, state in enumerate(states):
        own = read_checkpoint(state.checkpoint)
        for key, value in own.items():
            if key.startswith("rates."):
                assert torch.equal(whole[f"rates.{id}.{key.removeprefix('rates.')}"], value)
            elif key != "round":
                assert torch.equal(whole[key][id : id + 1], value)
    assert int(whole["round"]) == 4


def test_a_node_that_is_gone_is_not_in_the_mean(broken):
    collected, states = broken
    run = feda2l.Run(collected.path)
    key = next(key for key in read_checkpoint(collected.checkpoint) if key.startswith("model."))
    own = [read_checkpoint(state.checkpoint)[key][0].double() for state in states]
    mean = ((own[0] + own[1]) / 2).float()
    assert torch.equal(run.state()[key.removeprefix("model.")], mean)
    scores = evaluate(collected.path)
    assert scores["nodes"]["accuracy"][2] is None
    assert scores["accuracy"] == run.summary["accuracy"]["final"]
    assert scores["mean_model_accuracy"] == collected.read()[-1]["mean_model_accuracy"]
