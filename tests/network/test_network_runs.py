"""Whole runs on a simulated network: same bytes in every way of running, and the same training as without one."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

import feda2l
from feda2l.errors import FedA2LError
from feda2l.network import Participation
from feda2l.peer.check import refuse_network
from feda2l.runs.assemble import assemble
from feda2l.runs.evaluate import evaluate
from feda2l.spec.spec import Spec
from run_files import content, stopped

SPEC = {
    "rounds": 5,
    "data": {"nodes": 6},
    "topology": {"name": "ring"},
    "rates": {"warmup_rounds": 1, "window": 3},
    "runtime": {"workers": 0},
}
SLOW = {"compute_ms": 2.0, "speed": "phones", "links": "mobile"}
HALF = {**SLOW, "participation": 0.5}


@pytest.fixture(autouse=True)
def _one_thread(one_thread_each: None) -> None:
    """Use one thread, as the engines do."""


def run(out: Path, **sections) -> feda2l.Run:
    return feda2l.run({**SPEC, **sections}, out=out, progress=False)


def without_time(record):
    record.pop("simulated_seconds")
    record["nodes"].pop("simulated_seconds")
    return record


# --- simulated time ----------------------------------------------------------------------------------------------


def test_simulated_time_does_not_change_the_rounds(tmp_path):
    plain, timed = run(tmp_path / "plain"), run(tmp_path / "timed", network=SLOW)
    assert "network" not in plain.folder.spec.read_text()
    assert "simulated" not in plain.folder.rounds.read_text() + plain.folder.summary.read_text()
    assert [without_time(record) for record in timed.folder.read()] == plain.folder.read()
    assert (plain.path / "layers.parquet").read_bytes() == (timed.path / "layers.parquet").read_bytes()


def test_records_have_the_time_of_each_node_and_the_latest(tmp_path, digits):
    """On a full graph with unequal numbers of samples, all nodes wait for the one that trains longest."""
    done = run(
        tmp_path / "run",
        topology={"name": "full"},
        network={"compute_ms": 10.0, "speed": 2.0, "latency_ms": 500.0, "uplink_mbit": 8.0},
        evaluation={"target": 0.2, "smoothing": 1},
    )
    message = done.folder.read()[0]["nodes"]["bytes_sent"][0] / 5
    batch = done.spec.training.batch_size
    samples = [len(shard) // batch * batch for shard in assemble(done.spec, digits).live.plan.member.shards]
    longest = max(samples)
    # 5 ms per sample; five messages share 1,000,000 bytes per second
    each = 0.005 * longest + 0.5 + 5 * message / 1e6
    first = done.folder.read()[0]
    assert first["simulated_seconds"] == pytest.approx(each, rel=1e-12)
    slowest = samples.index(longest)
    others = max(count for node, count in enumerate(samples) if node != slowest)
    assert first["nodes"]["simulated_seconds"][slowest] == pytest.approx(
        max(0.005 * longest, 0.005 * others + 0.5) + 5 * message / 1e6
    )
    records = done.folder.read()
    assert all(max(r["nodes"]["simulated_seconds"]) == r["simulated_seconds"] for r in records)
    summary = done.summary
    assert summary["simulated_seconds"] == records[-1]["simulated_seconds"]
    reached = summary["target"]["round"]
    assert summary["target"]["simulated_seconds"] == records[reached - 1]["simulated_seconds"]
    table = done.rounds
    assert table["simulated_seconds"].to_list() == [t for r in records for t in r["nodes"]["simulated_seconds"]]


def test_sam_trains_twice_as_long_and_gossip_exchanges_several_times(tmp_path):
    network = {"compute_ms": 1.0, "latency_ms": 1000.0}
    equal = {"data": {"nodes": 4, "partition": "iid"}, "topology": {"name": "full"}, "rounds": 1, "network": network}
    plain = run(tmp_path / "plain", **equal).summary["simulated_seconds"]
    sam = run(tmp_path / "sam", algorithm={"name": "dfedsam", "gossip_steps": 3}, **equal).summary["simulated_seconds"]
    assert sam == pytest.approx(2 * (plain - 1) + 3)


def test_a_rate_search_takes_simulated_time(tmp_path):
    network = {"compute_ms": 1.0, "latency_ms": 1000.0}
    equal = {"data": {"nodes": 4, "partition": "iid"}, "topology": {"name": "full"}, "rounds": 1, "network": network}
    plain = run(tmp_path / "plain", **equal).summary["simulated_seconds"]
    algorithm = {"name": "dfedhpo", "trials": 2, "eval_epochs": 3, "aggregator": "CA", "consensus": False}
    found = run(tmp_path / "hpo", algorithm=algorithm, **equal).summary["simulated_seconds"]
    # two trials of three epochs, one exchange of their results, then the round
    assert found == pytest.approx(6 * (plain - 1) + 1 + plain)


# --- participation ---------------------------------------------------------------------------------------------


def test_participants_are_drawn_anew_in_each_round():
    some = Participation.of(0.3, 2, 10, seed=1)
    assert some == Participation(10, 3, seed=1)
    rounds = [some.drawn(round) for round in range(1, 201)]
    assert {len(drawn) for drawn in rounds} == {3}
    assert len(set(rounds)) > 50
    counts = np.bincount([node for drawn in rounds for node in drawn], minlength=10)
    assert counts.min() > 30  # 60 on average
    assert rounds != [Participation(10, 3, seed=2).drawn(round) for round in range(1, 201)]


def test_min_nodes_is_a_lower_bound_of_participants():
    assert Participation.of(0.01, 2, 10, seed=1).count == 2
    assert Participation.of(0.01, 5, 10, seed=1).count == 5
    assert Participation.of(1.0, 20, 10, seed=1) is None
    assert Participation.of(0.99, 2, 10, seed=1) is None  # rounded to all nodes
    with pytest.raises(FedA2LError, match=r"network\.min_nodes = 11 is more than data\.nodes = 10"):
        Participation.of(0.5, 11, 10, seed=1)


def test_resting_nodes_keep_model_and_rates_and_are_scored(start):
    simulator = start({**SPEC, "network": {"participation": 0.5}})
    (simulation,) = simulator.runs
    population, layers = simulation.state.population, len(simulation.plan.layers)
    rounds = simulator.rounds()
    for round in range(1, 6):
        before = population.base.clone()
        (completed,) = next(rounds)
        record = completed.record
        there = list(simulation.exchange.present(round))
        rests = [node for node in range(6) if node not in there]
        assert len(there) == 3
        assert (population.base[rests] == before[rests]).all()
        assert (population.base[there] != before[there]).any(dim=1).all()
        assert all((record["nodes"]["train_loss"][node] is None) == (node in rests) for node in range(6))
        assert all(record["nodes"]["bytes_sent"][node] == 0 for node in rests)
        assert None not in record["nodes"]["accuracy"]
        for node in rests:
            assert record["layers"]["divergence"][node] == record["layers"]["rate"][node] == [None] * layers
    # only present nodes observe a round, so a history is as long as the number of rounds in which its node mixed
    state = simulation.state.rates.state_dict()
    for node in range(6):
        mixed = sum(
            node in simulation.exchange.mixed(round, simulation.exchange.present(round)) for round in range(1, 6)
        )
        assert len(state[f"{node}.divergence_history"]) == min(mixed, 3)


def test_participation_without_costs_has_no_simulated_time(tmp_path):
    done = run(tmp_path / "run", network={"participation": 0.5})
    assert "simulated_seconds" not in done.folder.read()[0]
    assert done.summary["participation"]["missed"] == 5 * 3
    assert "faults" not in done.summary


@pytest.mark.parametrize("name", ["fedyogi", "choco", "push_sum", "gradient_tracking"])
def test_algorithms_work_with_partial_participation(name, tmp_path):
    training = {"momentum": 0.0} if name == "gradient_tracking" else {}
    done = run(tmp_path / "run", network=HALF, algorithm={"name": name}, training=training, rounds=3)
    assert done.summary["status"] == "finished"


# --- the same bytes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", [SLOW, HALF], ids=["all", "half"])
def test_same_bytes_when_repeated_packed_and_resumed(network, tmp_path):
    sections = {"network": network, "evaluation": {"every": 2}}
    whole = run(tmp_path / "whole", **sections)
    assert content(run(tmp_path / "again", **sections)) == content(whole)
    packed = feda2l.run(
        [{**SPEC, "name": "calm"}, {**SPEC, "name": "own", **sections}], out=tmp_path / "pack", progress=False
    )
    assert content(packed[1]) == content(whole)
    assert "simulated_seconds" not in packed[0].folder.read()[0]
    for after in (2, 4):
        part = tmp_path / f"part-{after}"
        stopped({**SPEC, **sections}, part, after)
        assert content(feda2l.run({**SPEC, **sections}, out=part, resume=True, progress=False)) == content(whole)


def test_an_extended_run_continues_its_simulated_time(tmp_path):
    sections = {"network": HALF, "evaluation": {"every": 4}, "rates": {"name": "constant"}}
    whole = run(tmp_path / "whole", **sections)
    run(tmp_path / "part", **sections | {"rounds": 3})
    longer = feda2l.run({**SPEC, **sections}, out=tmp_path / "part", resume=True, progress=False)
    assert (longer.path / "rounds.jsonl").read_bytes() == (whole.path / "rounds.jsonl").read_bytes()


def test_a_run_resumes_only_with_its_own_links(tmp_path):
    path = tmp_path / "mine.csv"
    lines = [f"{i},{(i + 1) % 6},{10 * i},{1 + i}" for i in range(6)]
    path.write_text("from,to,latency_ms,mbit\n" + "\n".join(lines) + "\n")
    sections = {"network": {"file": str(path)}, "rounds": 3}
    whole = run(tmp_path / "whole", **sections)
    assert (whole.path / "links.csv").read_text() == path.read_text()
    stopped({**SPEC, **sections}, tmp_path / "part", 2)
    path.write_text(path.read_text().replace("0,1,0,1", "0,1,9,1"))
    with pytest.raises(FedA2LError, match="differs from the file this run started with"):
        feda2l.run({**SPEC, **sections}, out=tmp_path / "part", resume=True, progress=False)
    path.unlink()
    assert evaluate(whole.path)["accuracy"] == whole.folder.read()[-1]["accuracy"]


def test_a_run_resumes_only_with_its_own_graph(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("".join(f"{i} {(i + 1) % 6}\n" for i in range(6)))
    sections = {"topology": {"name": "file", "file": str(path)}, "rounds": 3}
    whole = run(tmp_path / "whole", **sections)
    assert (whole.path / "graph.txt").read_bytes() == path.read_bytes()
    stopped({**SPEC, **sections}, tmp_path / "part", 2)
    path.write_text(path.read_text() + "0 3\n")
    with pytest.raises(FedA2LError, match=r"topology.file = .* differs from the file this run started with"):
        feda2l.run({**SPEC, **sections}, out=tmp_path / "part", resume=True, progress=False)
    path.unlink()
    assert evaluate(whole.path)["accuracy"] == whole.folder.read()[-1]["accuracy"]


def test_the_mean_model_is_the_mean_of_all_nodes(tmp_path):
    done = run(tmp_path / "run", network=HALF)
    scores, last = evaluate(done.path), done.folder.read()[-1]
    assert scores["nodes"]["accuracy"] == last["nodes"]["accuracy"]
    assert scores["mean_model_accuracy"] == last["mean_model_accuracy"]
    everyone = sum(done.state(node)["fc1.weight"].double() for node in range(6)) / 6
    assert (done.state()["fc1.weight"] - everyone).abs().max() < 1e-7


# --- errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ({"links": "hoem"}, "network.links = 'hoem' is unknown; did you mean 'home'?"),
        ({"compute_ms": 1, "speed": "fast"}, "network.speed = 'fast' is unknown; known: uniform, computers, phones"),
        ({"compute_ms": 1, "speed": 0}, "network.speed = 0: must be a number above 0"),
        ({"compute_ms": 1, "speed": [1, 1, 1, -1, 1, 1]}, "network.speed = -1: must be a number above 0"),
        (
            {"compute_ms": 1, "speed": [1, 2]},
            "network.speed has 2 numbers for data.nodes = 6; give one number per node",
        ),
        ({"compute_ms": 1, "speed": True}, "network.speed = True: must be a number above 0"),
        ({"uplink_mbit": [1, 2]}, "network.uplink_mbit has 2 numbers for data.nodes = 6"),
        ({"uplink_mbit": "wide"}, "network.uplink_mbit = 'wide': must be a number above 0"),
        ({"speed": 2}, "set network.compute_ms too"),
        ({"compute_ms": -1}, "network.compute_ms = -1: input should be greater than or equal to 0"),
        ({"participation": 0}, "network.participation = 0: input should be greater than 0"),
        ({"participation": 1.5}, "network.participation = 1.5: input should be less than or equal to 1"),
        ({"participation": 0.5, "min_nodes": 7}, "network.min_nodes = 7 is more than data.nodes = 6"),
        ({"latency_ms": float("nan")}, "network.latency_ms = nan"),
        ({"bandwidth_mbit": 0}, "network.bandwidth_mbit = 0: input should be greater than 0"),
        ({"file": "none.csv"}, "network.file = none.csv cannot be read"),
        ({"file": "x.csv", "links": "lan"}, "network.links and network.file both define the links"),
        ({"latency": 3}, "network.latency: unknown key; did you mean 'latency_ms'?"),
    ],
)
def test_an_invalid_network_is_an_error_before_training(network, said, tmp_path):
    with pytest.raises(FedA2LError) as error:
        run(tmp_path / "run", network=network)
    assert said in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("network", [SLOW, {"participation": 0.5}])
def test_faults_and_network_cannot_be_combined(network, tmp_path):
    (tmp_path / "faults.toml").write_text('[[fault]]\nkind = "crash"\nnode = 1\nround = 2\n')
    with pytest.raises(FedA2LError, match=r"faults and \[network\] cannot be combined"):
        run(tmp_path / "run", network=network, faults=str(tmp_path / "faults.toml"))


def test_real_nodes_reject_a_simulated_network():
    refuse_network(Spec.parse({}))
    with pytest.raises(FedA2LError, match=r"is for the simulator, and real nodes use the real network"):
        refuse_network(Spec.parse({"network": SLOW}))


def test_a_spec_with_a_network_round_trips():
    spec = Spec.parse({"network": {**SLOW, "speed": [1, 2.5], "uplink_mbit": 3}})
    again = Spec.parse(json.loads(json.dumps(spec.model_dump(exclude_none=True))))
    assert again == spec
    assert Spec.parse(tomllib.loads(spec.to_toml())) == spec
    assert spec.network is not None
    assert spec.network.speed == (1.0, 2.5)
