"""K peers give the simulator's bits: parameters, optimizer state, rates, histories and the records of each node."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import configs, run_together

import feda2l
from feda2l.errors import FedA2LError
from feda2l.peer import node as peer_node
from feda2l.peer.messenger import Messenger
from feda2l.peer.node import PeerNode
from feda2l.simulate.checkpoint import read_checkpoint
from feda2l.wire.mailbox import NEWEST
from feda2l.wire.message import HEAD_LIMIT, unseal
from feda2l.wire.transport import Transport
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
        id = node.exchange.id
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
                assert value == [record["nodes"][key][node.exchange.id]], key
            for key in ("rate", "multiplier", "divergence", "stability"):
                assert own_record["layers"][key] == [record["layers"][key][node.exchange.id]]


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


PARTS = {
    "name": "drift_correction+prior_loss+outer_momentum",
    "drift_correction": {"damping": 0.5},
    "outer_momentum": {"beta": 0.3},
}


@pytest.mark.parametrize(
    ("algorithm", "topology"),
    [
        ({"name": "drift_correction+prior_loss+outer_momentum"}, {"name": "full"}),
        (PARTS, {"name": "ring", "weights": "metropolis"}),
        ({"name": "outer_momentum+push_sum"}, {"name": "ring"}),
    ],
    ids=["full", "ring", "push-sum"],
)
def test_several_parts(tmp_path, algorithm, topology):
    _check(SMALL | {"algorithm": algorithm, "topology": topology}, tmp_path)


def test_drift_correction_needs_equal_weights_unless_the_graph_is_full(tmp_path):
    values = SMALL | {"algorithm": PARTS, "topology": {"name": "ring", "weights": "samples"}}
    with pytest.raises(FedA2LError, match="needs the same weight on both ends"):
        run_together(configs(values, tmp_path))


@pytest.mark.parametrize("topology", ["ring", "full"])
def test_a_users_algorithm_that_sees_every_received_state(tmp_path, topology, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    algorithm = {"name": "coordinate_median:CoordinateMedian"}
    _check(SMALL | {"algorithm": algorithm, "topology": {"name": topology}}, tmp_path)


DIRECTED = SMALL | {"algorithm": {"name": "push_sum"}, "topology": {"name": "directed_ring"}}


def test_a_directed_graph(tmp_path):
    _check(DIRECTED, tmp_path)


def _wait_for(transport: Transport, name: str, round: int) -> None:
    """Wait until a node has published its message of a round."""
    until = time.monotonic() + 60
    while (sealed := transport.ask(name, NEWEST, 1.0, HEAD_LIMIT)) is None or unseal(sealed, None).round < round:
        assert time.monotonic() < until, f"{name} does not come to round {round}"
        time.sleep(0.01)


# n0 receives from n3: only n1 waits for n0, so n3 is that far ahead before n0 has started or met its neighbours
@pytest.mark.parametrize(
    ("late", "ahead"), [((PeerNode, "connect"), 2), ((Messenger, "newest"), 3)], ids=["start", "look"]
)
@pytest.mark.parametrize("before", [0, 2])
def test_a_directed_graph_where_one_node_starts_or_resumes_late(tmp_path, monkeypatch, late, ahead, before):
    if before:
        run_together(configs(DIRECTED | {"rounds": before}, tmp_path / "peers"))
    in_time: Callable[..., Any] = getattr(*late)

    def begin(self: Any, *rest: Any, **more: Any) -> Any:
        if (self.config if isinstance(self, PeerNode) else self.facts).name == "n0":
            _wait_for(self.transport, "n3", before + ahead)
        return in_time(self, *rest, **more)

    monkeypatch.setattr(*late, begin)
    _check(DIRECTED, tmp_path)


def test_a_directed_graph_where_one_node_is_slow_until_the_end(tmp_path, monkeypatch):
    """n3 has finished while n0 has two rounds left, each longer than a node stays without progress."""
    monkeypatch.setattr(peer_node, "LEAVING", 0.2)
    in_time = Messenger.publish

    def publish(self: Messenger, round: int, *rest: Any) -> None:
        if self.facts.name == "n0" and round in (3, 4):
            _wait_for(self.transport, "n3", 5)
            time.sleep(1.0)
        in_time(self, round, *rest)

    monkeypatch.setattr(Messenger, "publish", publish)
    _check(DIRECTED, tmp_path)


def test_a_search_waits_for_nodes_that_have_not_started(tmp_path, monkeypatch):
    """Like the first round: the least deadline applies only to nodes that were present and disappeared."""
    in_time = PeerNode.connect

    def connect(self: PeerNode) -> Messenger:
        if self.config.name == "n0":
            assert self.transport is not None
            _wait_for(self.transport, "n1", 0)
            time.sleep(2.0)
        return in_time(self)

    monkeypatch.setattr(PeerNode, "connect", connect)
    algorithm = {"name": "dfedhpo", "trials": 2, "eval_epochs": 1, "consensus": False}
    values = SMALL | {"rounds": 2, "algorithm": algorithm, "topology": {"name": "ring"}}
    _check(values, tmp_path, deadline={"least": 1.0, "most": 600.0})


@pytest.mark.parametrize("rule", ["flare", "one_cycle", "random_multiplier", "shuffled", "autolr"])
def test_other_rate_rules(tmp_path, rule):
    _check(SMALL | {"rates": {"name": rule}, "topology": {"name": "ring"}}, tmp_path)


def test_averaged_momentum_and_adam(tmp_path):
    _check(SMALL | {"training": {"momentum_state": "average"}, "topology": {"name": "ring"}}, tmp_path / "momentum")
    adam = {"optimizer": "adam", "momentum_state": "average"}
    _check(SMALL | {"training": adam, "rates": {"base": 0.001}}, tmp_path / "adam")


def test_one_initial_model_per_node(tmp_path):
    # all nodes meet before any trains: in one process, training seeds the generator of the other nodes' initial models
    _check(SMALL | {"model": {"init": "per_node"}, "topology": {"name": "full"}}, tmp_path)


def test_a_network_with_statistics(tmp_path, module):
    """The running means and variances of BatchNorm are sent and averaged like parameters."""
    name = module("from torch import nn\n" + NORMED)
    _check(SMALL | {"model": {"name": f"{name}:Normed"}, "topology": {"name": "ring"}}, tmp_path)
