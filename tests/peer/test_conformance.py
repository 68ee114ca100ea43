"""K peers come to the simulator's bits: parameters, optimiser memory, rates, histories, and each node's records."""

from pathlib import Path
from typing import Any

import pytest
import torch
from networks import configs, run_together

import feda2l
from feda2l.simulate.checkpoint import read_checkpoint
from first_models import NORMED

SMALL: dict[str, Any] = {
    "name": "small",
    "rounds": 4,
    "data": {"name": "digits", "nodes": 4, "alpha": 0.5},
    "rates": {"name": "feda2l", "warmup_rounds": 1, "window": 2, "base": 0.05},
}


def _check(values: dict[str, Any], folder: Path, **more: Any) -> None:
    run = feda2l.run(values, out=folder / "simulated", progress=False)
    nodes = run_together(configs(values, folder / "peers", **more))
    whole = read_checkpoint(run.checkpoint)
    for node in nodes:
        id = node.peer.id
        own = read_checkpoint(node.folder.checkpoint)
        assert own.keys() == whole.keys()
        for name, values_ in own.items():
            axis = [i for i, (a, b) in enumerate(zip(values_.shape, whole[name].shape, strict=True)) if a != b]
            there = whole[name].narrow(axis[0], id, 1) if axis else whole[name]
            torch.testing.assert_close(values_, there, rtol=0, atol=0, equal_nan=True, msg=name)
    for round, record in enumerate(run.folder.read()):
        for node in nodes:
            own_record = node.folder.read()[round]
            for key, value in own_record["nodes"].items():
                assert value == [record["nodes"][key][node.peer.id]], key
            for key in ("rate", "multiplier", "sigma", "zeta"):
                assert own_record["layers"][key] == [record["layers"][key][node.peer.id]]


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "fedyogi", "fedntd", "fedawa", "dfedsam"])
@pytest.mark.parametrize("topology", ["ring", "full"])
def test_the_papers_algorithms(tmp_path, algorithm, topology):
    _check(SMALL | {"algorithm": {"name": algorithm}, "topology": {"name": topology}}, tmp_path)


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "dfedsam", "gossip_steps": 3},
        {"name": "fedawa", "scale": 0.9},
        {"name": "fedlws"},
        {"name": "dpsgd"},
        {"name": "dfedavgm"},
        {"name": "qg_dsgdm"},
        {"name": "gradient_tracking"},
        {"name": "choco"},
        {"name": "push_sum"},
        {"name": "dfedhpo", "trials": 2, "eval_epochs": 1, "consensus": False},
    ],
    ids=lambda algorithm: "-".join(map(str, algorithm.values())),
)
def test_every_other_algorithm(tmp_path, algorithm):
    _check(SMALL | {"algorithm": algorithm, "topology": {"name": "ring"}}, tmp_path)


def test_a_directed_graph(tmp_path):
    _check(SMALL | {"algorithm": {"name": "push_sum"}, "topology": {"name": "directed_ring"}}, tmp_path)


@pytest.mark.parametrize("rule", ["flare", "one_cycle", "random_multiplier", "shuffled", "autolr"])
def test_other_rate_rules(tmp_path, rule):
    _check(SMALL | {"rates": {"name": rule}, "topology": {"name": "ring"}}, tmp_path)


def test_averaged_momentum_and_adam(tmp_path):
    _check(SMALL | {"training": {"momentum_state": "average"}, "topology": {"name": "ring"}}, tmp_path / "momentum")
    adam = {"optimizer": "adam", "momentum_state": "average"}
    _check(SMALL | {"training": adam, "rates": {"base": 0.001}}, tmp_path / "adam")


def test_one_start_a_node(tmp_path):
    # all meet all before any trains: in one process who trains seeds the generator that others draw their start from
    _check(SMALL | {"model": {"init": "per_node"}, "topology": {"name": "full"}}, tmp_path)


def test_a_network_with_statistics(tmp_path, module):
    """BatchNorm's running means and variances travel and are averaged like parameters."""
    name = module("from torch import nn\n" + NORMED)
    _check(SMALL | {"model": {"name": f"{name}:Normed"}, "topology": {"name": "ring"}}, tmp_path)
