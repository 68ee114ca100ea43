"""Records and checkpoints have the same bytes for any number of ranks as for one process."""

import json
from math import sin
from pathlib import Path
from typing import Any

import pytest
from launch import differing, finish, run_alone, run_on_ranks, torchrun


def spec(algorithm: str = "fedavg", topology: str = "ring", nodes: int = 5, **more: Any) -> dict[str, Any]:
    own = more.pop("algorithm_keys", {})
    graph = more.pop("topology_keys", {})
    values: dict[str, Any] = {
        "rounds": 3,
        "data": {"nodes": nodes} | more.pop("data", {}),
        "algorithm": {"name": algorithm, **own},
        "topology": {"name": topology, **graph},
    }
    return values | more


FEW = {
    "fedavg-ring": spec(),
    "fedyogi-full": spec("fedyogi", "full"),
    "fedawa-ring": spec("fedawa"),
    "median-k-regular": spec("coordinate_median:CoordinateMedian", "k_regular", 7, topology_keys={"k": 4}),
    "dfedsam-gossip-k-regular": spec(
        "dfedsam", "k_regular", 7, algorithm_keys={"gossip_steps": 2}, topology_keys={"k": 4}
    ),
    "push-sum-directed-ring": spec("push_sum", "directed_ring"),
    "gradient-tracking-ring": spec("gradient_tracking"),
    "parts-full": spec("drift_correction+prior_loss+outer_momentum", "full"),
    "fedavg-one-peer": spec(topology="one_peer_exponential", nodes=7),
    "local-scores": spec(evaluation={"on": "both"}),
    "averaged-adam": spec(training={"optimizer": "adam", "momentum_state": "average"}, rates={"base": 0.001}),
    "own-starts": spec(topology="full", model={"init": "per_node"}),
    "seldom-scored": spec(evaluation={"every": 2}),
    "theory": spec(evaluation={"theory_every": 2}),
    "simulated-time": spec(network={"compute_ms": 2.0, "speed": "phones", "links": "mobile"}),
}


MORE = {
    "fedavg-full": spec(topology="full", nodes=7),
    "fedavg-k-regular": spec(topology="k_regular", nodes=8, topology_keys={"k": 3}),
    "fedawa-full": spec("fedawa", "full", algorithm_keys={"scale": 0.9}),
    "fedprox-star": spec("fedprox", "star"),
    "choco-random-k": spec("choco", algorithm_keys={"compressor": "random_k"}),
    "qg-dsgdm-torus": spec("qg_dsgdm", "torus", 6),
    "dpsgd-exponential": spec("dpsgd", "exponential", 9, topology_keys={"weights": "uniform"}),
    "fedntd-ring": spec("fedntd"),
    "dfedhpo-ring": spec("dfedhpo", algorithm_keys={"trials": 2, "eval_epochs": 1}, rates={"name": "constant"}),
    "push-sum-samples": spec("push_sum", "random_out", 7, topology_keys={"k": 3, "weights": "samples"}),
    "one-cycle": spec(rates={"name": "one_cycle"}),
    "shuffled": spec(rates={"name": "shuffled", "warmup_rounds": 1, "window": 2}),
    "flayer": spec(rates={"name": "flayer"}),
    "scored-where-they-train": spec(topology="full", evaluation={"on": "local"}),
    "last-batches": spec(training={"drop_last": False, "epochs": 2}),
}
NORMED = {
    f"statistics-{policy}": spec(
        nodes=5, model={"name": "users_models:Normed"}, algorithm_keys={"buffers": policy}, topology_keys={"k": 2}
    )
    for policy in ("average", "local", "recalibrate")
} | {"statistics-one-model": spec(topology="full", model={"name": "users_models:Normed"})}


def check(runs: dict[str, dict[str, Any]], ranks: int, folder: Path) -> None:
    (folder / "ranks").mkdir()
    run_on_ranks(ranks, runs, folder / "ranks")
    for name, own in runs.items():
        alone = run_alone(own, folder / "one" / name)
        assert not differing(folder / "ranks" / name, alone), name


@pytest.fixture(autouse=True)
def _examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")


def test_two_ranks_have_the_same_bytes_as_one_process(tmp_path):
    check(FEW, 2, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [3, 4])
def test_more_ranks_and_algorithms_have_the_same_bytes(tmp_path, ranks):
    check(FEW | MORE, ranks, tmp_path)


@pytest.mark.long
def test_batchnorm_statistics_have_the_same_bytes(tmp_path):
    check(NORMED, 2, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("topology", ["ring", "full"])
def test_nodes_with_their_own_test_samples_have_the_same_bytes(tmp_path, topology):
    lines = ["site,level"]
    for site in range(5):
        lines += [f"{site},{(site + 1) * sin(hour / (4 + site)):.4f}" for hour in range(300)]
    (tmp_path / "sites.csv").write_text("\n".join(lines))
    data = {
        "name": "csv",
        "path": str(tmp_path / "sites.csv"),
        "node_column": "site",
        "input_length": 24,
        "horizon": 12,
    }
    own = spec(topology=topology, model={"name": "users_models:Forecaster"}) | {"data": data}
    check({"sites": own}, 2, tmp_path)


@pytest.mark.long
def test_a_pack_of_unequal_runs_has_the_same_bytes(tmp_path):
    """Each packed run has its own placement, and one run ends before the other."""
    runs = [spec(nodes=5) | {"name": "a"}, spec("fedyogi", "full", 4) | {"name": "b", "rounds": 2}]
    (tmp_path / "specs.json").write_text(json.dumps(runs))
    code, output = finish(torchrun(2, Path(__file__).with_name("pack.py"), tmp_path))
    assert code == 0, output
    for own in runs:
        assert not differing(tmp_path / own["name"], run_alone(own, tmp_path / "one" / own["name"]))
