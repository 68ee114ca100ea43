"""The data of the live page while runs start, grow, stop, resume and end; without a browser."""

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from growing import begin, cut_back, end, grow, record, spec

from feda2l.records.folder_locks import is_locked, locked_folders
from feda2l.records.round_record import missed_round
from feda2l.records.run_folder import RunFolder
from feda2l.report.page_data import BINS, POINTS
from feda2l.watch import incoming_records
from feda2l.watch.find_folders import HOT
from feda2l.watch.follow import Follower
from feda2l.watch.heat import heat_of_rounds
from feda2l.watch.presence import QUIET


@pytest.fixture
def follower(tmp_path: Path) -> Follower:
    return Follower(tmp_path)


def told(follower: Follower, since: int = -1) -> dict[str, dict[str, Any]]:
    follower.refresh()
    return {run["id"]: run for run in json.loads(follower.since(since))["runs"]}


def age(path: Path, seconds: float = 10 * QUIET) -> None:
    """Set the modification times back, as if the folder had not changed for a while."""
    for file in (*path.iterdir(), path):
        os.utime(file, (file.stat().st_mtime - seconds,) * 2)


def test_an_empty_folder_shows_runs_when_they_start(follower: Follower, tmp_path: Path) -> None:
    assert told(follower) == {}
    assert json.loads(follower.since(-1))["ids"] == []
    folder = begin(tmp_path / "deep" / "first")
    run = told(follower)["deep/first"]
    assert (run["state"], run["round"], run["rounds"]) == ("running", 0, 100)
    folder.close()


def test_a_running_run_shows_new_rounds(follower: Follower, tmp_path: Path) -> None:
    folder = begin(tmp_path / "one")
    grow(folder, range(1, 4), seconds=2.0)
    run = told(follower)["one"]
    assert run["x"] == [1, 2, 3]
    assert run["score"] == [0.01, 0.02, 0.03]
    assert run["sent"] == 9000
    assert run["left"] == pytest.approx(2.0 * 97)
    version = follower.version
    assert not follower.refresh()  # nothing is new
    grow(folder, range(4, 6))
    assert told(follower, version)["one"]["score"] == [0.01, 0.02, 0.03, 0.04, 0.05]
    folder.close()


def test_a_killed_run_is_stopped_and_resumes_without_duplicate_rounds(follower: Follower, tmp_path: Path) -> None:
    folder = begin(tmp_path / "one")
    grow(folder, range(1, 8))
    assert told(follower)["one"]["state"] == "running"
    folder.close()  # the kernel does this for a process that is killed
    assert told(follower)["one"]["state"] == "stopped"
    folder.open()
    cut_back(folder, 5)
    grow(folder, range(6, 9), add=0.001)
    run = told(follower)["one"]
    assert run["state"] == "running"
    assert run["x"] == list(range(1, 9))
    assert run["score"] == [0.01, 0.02, 0.03, 0.04, 0.05, 0.061, 0.071, 0.081]
    folder.close()


def test_a_new_file_with_the_same_inode_is_detected(follower: Follower, tmp_path: Path) -> None:
    folder = begin(tmp_path / "one")
    grow(folder, range(1, 3))
    told(follower)
    os.truncate(folder.rounds, 0)  # overwritten in place with the same size
    grow(folder, range(1, 10), add=0.5)
    assert told(follower)["one"]["score"][:2] == [0.51, 0.52]
    folder.close()


def test_a_finished_run_has_the_same_data_as_in_the_report(follower: Follower, tmp_path: Path) -> None:
    folder = begin(tmp_path / "one", rounds=6)
    grow(folder, range(1, 7))
    before = told(follower)["one"]
    end(folder, 6)
    after = told(follower)["one"]
    assert (after["state"], after["round"], after["left"]) == ("finished", 6, None)
    assert [after[key] for key in ("x", "score", "distance")] == [before[key] for key in ("x", "score", "distance")]
    detail = json.loads(follower.detail("one"))
    assert (detail["heat"]["nodes"], detail["heat"]["bins"]) == (3, 6)
    assert detail["edges"] == [[0, 1], [0, 2], [1, 2]]
    # the run is extended: the summary is removed, and new rounds arrive
    folder.open()
    folder.summary.unlink()
    folder.write(folder.spec, spec(8))
    grow(folder, range(7, 8))
    run = told(follower)["one"]
    assert (run["state"], run["round"], run["rounds"]) == ("running", 7, 8)
    folder.close()


def test_diverged_and_failed_runs_show_a_reason(follower: Follower, tmp_path: Path) -> None:
    folder = begin(tmp_path / "one")
    grow(folder, range(1, 3))
    folder.write_tables()
    where = {"round": 3, "node": 1, "layer": "b"}
    summary = {"name": "one", "status": "non_finite", "rounds": 2, "metric": "accuracy", "non_finite": where}
    folder.write_json(folder.summary, summary)
    folder.close()
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "error.json").write_text(json.dumps({"error": "there is no such data set"}))
    runs = told(follower)
    assert (runs["one"]["state"], runs["one"]["words"]) == ("non_finite", "round 3, node 1, layer b")
    age(tmp_path / "two")
    runs = told(follower)
    assert (runs["two"]["state"], runs["two"]["words"]) == ("failed", "there is no such data set")


def test_file_changes_show_a_running_process_without_locks(follower: Follower, tmp_path: Path) -> None:
    folder = begin(tmp_path / "one")
    folder.close()  # a process on another machine: its lock is not visible here
    assert told(follower)["one"]["state"] == "running"
    age(folder.path)
    assert told(follower)["one"]["state"] == "stopped"
    grow(folder, range(1, 2))
    assert told(follower)["one"]["state"] == "running"


def test_watching_takes_no_lock_and_writes_nothing(follower: Follower, tmp_path: Path) -> None:
    folder = begin(tmp_path / "one")
    grow(folder, range(1, 3))
    assert is_locked(folder.path, locked_folders())
    folder.close()
    assert not is_locked(folder.path, locked_folders())
    before = {path: path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))}
    folder.path.chmod(0o555)
    try:
        told(follower)
        follower.detail("one")
    finally:
        folder.path.chmod(0o755)
    assert {path: path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))} == before


def test_a_study_shows_its_runs_and_planned_runs(follower: Follower, tmp_path: Path) -> None:
    study = tmp_path / "rules"
    study.mkdir()
    axes = '[axes]\n"rates.name" = ["constant", "feda2l"]\n'
    (study / "study.toml").write_text(f'name = "rules"\nseeds = 2\n[base]\nrounds = 9\n{axes}')
    assert {(id, run["state"]) for id, run in told(follower).items()} == {
        (f"rules/{rule}/seed-{seed}", "waiting") for rule in ("constant", "feda2l") for seed in (1, 2)
    }
    (study / "study.toml").write_text(f'name = "rules"\nseeds = 3\n[base]\nrounds = 9\n{axes}')  # one more seed
    assert len(told(follower)) == 6
    folder = begin(study / "feda2l" / "seed-2", rounds=9, seed=2)
    trial = begin(study / "stages" / "tune" / "trial", rounds=2)
    runs = told(follower)
    assert sorted(run["state"] for run in runs.values()) == ["running"] * 2 + ["waiting"] * 5
    assert runs["rules/feda2l/seed-2"]["method"] == runs["rules/feda2l/seed-1"]["method"] == "rules/feda2l"
    assert runs["rules/feda2l/seed-2"]["setting"] == "rules: digits, mlp"
    assert runs["rules/stages/tune/trial"]["setting"] == "rules, trials: digits, mlp"
    folder.close()
    trial.close()


def test_a_swarm_is_shown_per_node_and_as_one_run(follower: Follower, tmp_path: Path) -> None:
    nodes = tmp_path / "swarm" / "nodes"
    states = []
    for number in range(3):
        (nodes / f"n{number}").mkdir(parents=True)
        (nodes / f"n{number}" / "node.toml").touch()
    (nodes / "spec.toml").write_bytes(spec(100))
    assert told(follower) == {}  # node folders are not runs, and the swarm has not started
    swarm = begin(tmp_path / "swarm")
    for number in range(2):
        states.append(begin(nodes / f"n{number}" / "state"))
    for round, (first, second) in enumerate([(0.1, 0.3), (0.2, 0.4)], start=1):
        timing = {"round": round, "train": 0.5}
        states[0].append(record(round, first, nodes=1, received=[1, 2]), timing)
        states[1].append(record(round, second, nodes=1, received=[0]), timing)
    states[0].append(record(3, 0.5, nodes=1, received=[1]), {"round": 3, "train": 0.5})
    run = told(follower)["swarm"]
    assert run["score"] == [0.2, 0.3, 0.5]
    assert run["sent"] == 5000
    assert [(node["name"], node["state"], node["round"], node["received"]) for node in run["swarm"]] == [
        ("n0", "running", 3, 1),
        ("n1", "running", 2, 1),
        ("n2", "waiting", 0, None),
    ]
    heat = json.loads(follower.detail("swarm"))["heat"]
    assert (heat["nodes"], heat["of"], heat["bins"]) == (3, 3, 3)
    for folder in (*states, swarm):
        folder.close()
    run = told(follower)["swarm"]
    assert (run["state"], [node["state"] for node in run["swarm"]]) == ("stopped", ["stopped", "stopped", "waiting"])


@pytest.mark.parametrize("missed", [1, 2, 3])
def test_a_round_that_a_node_missed_is_a_gap(missed: int, tmp_path: Path) -> None:
    nodes = []
    for number in range(2):
        rounds = incoming_records.RoundSeries()
        for round in range(1, 4):
            gone = number == 0 and round == missed
            rounds.add(missed_round(round) if gone else record(round, number / 2, nodes=1, received=[1 - number]))
        nodes.append(rounds)
    assert [math.isnan(score) for score in nodes[0].score] == [round == missed for round in (1, 2, 3)]
    whole = incoming_records.joined(nodes)
    assert whole.score == [0.5 if round == missed else 0.25 for round in (1, 2, 3)]
    assert np.isnan(whole.signals[missed - 1][:, 0]).all()
    assert not np.isnan(whole.signals[missed - 1][:, 1]).any()
    for rounds, count in ((nodes[0], 1), (whole, 2)):
        heat = heat_of_rounds(rounds)
        assert isinstance(heat, dict)
        assert (heat["layers"], heat["nodes"], heat["bins"]) == (["a", "b"], count, 3)


def test_a_removed_folder_disappears_from_the_page(follower: Follower, tmp_path: Path) -> None:
    begin(tmp_path / "one").close()
    begin(tmp_path / "two").close()
    assert set(told(follower)) == {"one", "two"}
    version = follower.version
    shutil.rmtree(tmp_path / "one")
    follower.refresh()
    news = json.loads(follower.since(version))
    assert (news["ids"], news["runs"]) == (["two"], [])


def test_a_damaged_folder_does_not_affect_other_runs(follower: Follower, tmp_path: Path) -> None:
    sound, torn, wrong = (begin(tmp_path / name) for name in ("sound", "torn", "wrong"))
    grow(sound, range(1, 3))
    grow(torn, range(1, 3))
    with open(torn.rounds, "a") as file:
        file.write('{"round": 4}\n')
    wrong.write(wrong.spec, spec(5, seed="many"))
    runs = told(follower)
    assert runs["sound"]["words"] == ""
    assert "line 3 of rounds.jsonl is invalid" in runs["torn"]["words"]
    assert runs["torn"]["x"] == [1, 2]
    assert runs["wrong"]["words"].startswith("its folder cannot be read: ValueError")
    for folder in (sound, torn, wrong):
        folder.close()


def test_only_folders_that_changed_are_listed_again(
    follower: Follower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        begin(tmp_path / name / "run").close()
        age(tmp_path / name / "run", 2 * HOT)
        age(tmp_path / name, 2 * HOT)
    age(tmp_path, 2 * HOT)
    told(follower)
    listed: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(Path(path).name) or scandir(path))
    begin(tmp_path / "b" / "more").close()
    assert set(told(follower)) == {"a/run", "b/run", "b/more", "c/run"}
    assert set(listed) == {"b", "more"}


def test_a_long_curve_is_thinned_and_keeps_its_last_point(follower: Follower, tmp_path: Path) -> None:
    folder = begin(tmp_path / "one", rounds=1000)
    grow(folder, range(1, 552))
    run = told(follower)["one"]
    assert len(run["x"]) <= POINTS + 1
    assert run["x"][-1] == run["round"] == 551
    assert all(x % 4 == 0 for x in run["x"][:-1])
    heat = json.loads(follower.detail("one"))["heat"]
    assert (heat["width"], heat["bins"]) == (6, math.ceil(551 / 6))
    assert heat["bins"] <= BINS
    folder.close()


def test_heat_maps_are_means_over_present_nodes() -> None:
    rounds = incoming_records.RoundSeries()
    for number in range(1, BINS + 2):  # one more than the number of bins: two rounds per bin
        away = record(number, 0.5)
        away["layers"]["divergence"][1] = [None, None] if number % 2 else [4.0, 6.0]
        rounds.add(away)
    heat = heat_of_rounds(rounds)
    assert isinstance(heat, dict)
    assert (heat["width"], heat["bins"]) == (2, 51)
    assert (heat["divergence"]["low"], heat["divergence"]["high"]) == (0.0, 6.0)
    assert heat["rate"]["high"] == pytest.approx((0.01 + 0.005) / 2, rel=1e-6)


def test_number_of_nodes_in_heat_maps_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming_records, "CELLS", 5)
    rounds = incoming_records.RoundSeries()
    rounds.add(record(1, 0.5, nodes=9))
    assert np.shape(rounds.signals[0]) == (3, 2, 2)  # two nodes with two layers each
    heat = heat_of_rounds(rounds)
    assert isinstance(heat, dict)
    assert (heat["nodes"], heat["of"]) == (2, 9)


def test_a_single_node_folder_is_shown_as_a_run(tmp_path: Path) -> None:
    state = RunFolder(tmp_path / "state")
    begin(state.path).close()
    state.append(record(1, 0.4, nodes=1, received=[1]), {"round": 1, "train": 1.0})
    run = told(Follower(state.path))["."]
    assert (run["name"], run["score"]) == ("grown", [0.4])
