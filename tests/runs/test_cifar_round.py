"""Real CIFAR-10: one round of the paper's CNN, and the paper's partition in a run."""

import json

import pytest
import torch

import feda2l
from feda2l import data
from feda2l.runs.assign_samples import assign_samples, partition_of
from feda2l.spec.spec import Spec

GOLDEN = [6630, 3448, 6186, 3102, 1060, 6377, 8199, 2853, 5184, 6961]  # spec B.4: CIFAR-10, 10 nodes, alpha .1
CNN = 878_538


@pytest.fixture(scope="module")
def cifar10(official) -> data.Images:
    return data.load("cifar10", official)


def test_a_run_has_the_shards_of_the_paper(cifar10):
    spec = Spec.parse({"data": {"name": "cifar10"}})
    parts = partition_of(spec, cifar10)
    assert [len(part) for part in parts] == GOLDEN
    shards, local = assign_samples(spec, cifar10)
    assert [len(shard) for shard in shards] == [size * 3 // 4 for size in GOLDEN]  # three quarters, rounded down
    assert sum(len(shard) for shard in shards) == pytest.approx(37_500, abs=10)
    for part, own, rest in zip(parts, shards, local, strict=True):
        assert sorted([*own.tolist(), *rest.tolist()]) == sorted(part.tolist())


def test_one_round_of_the_paper_cnn(official, cifar10, tmp_path):
    """Three nodes train 12 batches each of their iid third, and agree after it."""
    spec = {
        "name": "cifar",
        "rounds": 1,
        "data": {"name": "cifar10", "nodes": 3, "partition": "iid", "train_fraction": 0.0075},
        "rates": {"name": "feda2l"},
    }
    run = feda2l.run(spec, out=tmp_path / "run", data=official, progress=False)
    (record,) = (json.loads(line) for line in (run.path / "rounds.jsonl").read_text().splitlines())
    assert run.spec.model.name == "cnn"
    assert record["layers"]["name"] == ["conv1", "conv2", "fc1", "fc2"]
    assert record["nodes"]["bytes_sent"] == [2 * CNN * 4] * 3
    assert record["layers"]["rate"] == [[0.01] * 4] * 3
    assert record["disagreement"] == 0
    assert all(2.0 < loss < 2.6 for loss in record["nodes"]["train_loss"])  # the loss starts at ln 10 = 2.303
    assert all(0 < sigma < 1 for node in record["layers"]["divergence"] for sigma in node)
    assert all(0 <= zeta <= 1 for node in record["layers"]["stability"] for zeta in node)

    by_class = run.summary["class_accuracy"]
    assert list(by_class) == list(cifar10.class_names)
    assert sum(by_class.values()) / 10 == pytest.approx(record["accuracy"], abs=1e-12)
    assert record["nodes"]["accuracy"] == [record["accuracy_worst"]] * 3
    model = run.model(0)
    for label in (1, 8):  # two classes are enough
        pictures = cifar10.test_x[cifar10.test_y == label]
        with torch.no_grad():
            right = int((model(cifar10.normalise(pictures)).argmax(dim=1) == label).sum())
        assert by_class[cifar10.class_names[label]] == pytest.approx(right / 1000, abs=2e-3)
