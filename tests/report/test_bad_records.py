"""What a report leaves out, and that it says so."""

import fcntl
import json
import os
from pathlib import Path

import polars
import pytest

from feda2l.errors import FedA2LError
from feda2l.report.find_runs import Notes
from feda2l.report.report import read
from synthetic_runs import rising, write_run


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write_run(tmp_path / "good", rising(3))


def left_out(folder: Path) -> str:
    """The notes of a report of which exactly the good run is left."""
    notes = Notes()
    _, figures = read([folder], notes)
    assert [run.run.name for run in figures] == ["good"]
    return "\n".join(notes.lines())


def test_a_folder_that_is_not_there_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(FedA2LError, match="is not a folder"):
        read([tmp_path / "nowhere"], Notes())
    with pytest.raises(FedA2LError, match="no finished run"):
        read([tmp_path], Notes())


def test_a_run_that_is_still_going_and_one_that_stopped(good: Path, tmp_path: Path) -> None:
    for name in ("going", "stopped"):
        path = write_run(tmp_path / name, rising(3), seed=2, rates=name)
        (path / "summary.json").unlink()
        (path / "rounds.jsonl").write_text("{}\n{}\n")
    lock = os.open(tmp_path / "going", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    notes = left_out(tmp_path)
    os.close(lock)
    assert f"still running: {tmp_path / 'going'} (2 of 10 rounds)" in notes
    assert f"--resume): {tmp_path / 'stopped'} (2 of 10 rounds)" in notes


def test_only_unfinished_runs_are_an_error_that_names_them(tmp_path: Path) -> None:
    (write_run(tmp_path / "one", rising(3)) / "summary.json").unlink()
    with pytest.raises(FedA2LError, match=r"(?s)no finished run.*stopped before its end.*one"):
        read([tmp_path], Notes())


def test_a_failed_run_of_a_study_and_its_trials(good: Path, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text('name = "some"\n')
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed" / "error.json").write_text(json.dumps({"error": "no memory\nat all"}))
    write_run(tmp_path / "stages" / "trial", rising(3), seed=1000)
    notes = left_out(tmp_path)
    assert "failed (no memory)" in notes
    assert "trials that a study's settings were chosen by" in notes


@pytest.mark.parametrize("file", ["spec.toml", "summary.json"])
def test_a_file_cut_off_in_the_middle(good: Path, tmp_path: Path, file: str) -> None:
    path = write_run(tmp_path / "cut", rising(3), seed=2) / file
    path.write_text(path.read_text()[:17])
    assert str(tmp_path / "cut") in left_out(tmp_path)


def test_parquet_cut_off_without_lines(good: Path, tmp_path: Path) -> None:
    path = write_run(tmp_path / "cut", rising(3), seed=2) / "rounds.parquet"
    path.write_bytes(path.read_bytes()[:200])
    assert "neither rounds.parquet nor rounds.jsonl can be read" in left_out(tmp_path)


def test_parquet_cut_off_with_lines_is_read_from_them(tmp_path: Path) -> None:
    path = write_run(tmp_path / "cut", rising(2, length=3))
    (path / "rounds.parquet").write_bytes(b"PAR1")
    lines = [
        {"round": round, "nodes": {"train_loss": [1, 1], "accuracy": [value, value], "bytes_sent": [1, 1]}}
        for round, value in enumerate(rising(2, length=3), start=1)
    ]
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"round"')
    notes = Notes()
    (table,), _ = read([tmp_path], notes)
    assert table.contests[0].cells[0].reach.mean == 2
    assert "rounds.parquet is damaged" in "\n".join(notes.lines())


def test_bytes_spoilt_inside_a_parquet_file(good: Path, tmp_path: Path) -> None:
    path = write_run(tmp_path / "spoilt", rising(3, length=400), seed=2) / "rounds.parquet"
    content = bytearray(path.read_bytes())
    content[4:60] = b"\xff" * 56
    path.write_bytes(content)
    assert "spoilt" in left_out(tmp_path)


def test_records_that_end_before_the_run_did(good: Path, tmp_path: Path) -> None:
    path = write_run(tmp_path / "short", rising(3), seed=2) / "rounds.parquet"
    polars.read_parquet(path).filter(polars.col("round") < 5).write_parquet(path)
    assert "its records are cut off" in left_out(tmp_path)


def test_a_run_that_was_never_evaluated(good: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "blind", [None] * 5, seed=2)
    assert "never evaluated" in left_out(tmp_path)


def test_records_of_an_older_version_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    path = write_run(tmp_path / "old", rising(3))
    polars.read_parquet(path / "rounds.parquet").drop("disagreement").write_parquet(path / "rounds.parquet")
    summary = {"status": "finished", "rounds": 10, "accuracy": {"best": 0.6}}
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "environment.json").unlink()
    notes = Notes()
    (table,), _ = read([tmp_path], notes)
    assert table.contests[0].cells[0].reach.mean == 3
    assert "older version (without disagreement, summary's metric)" in "\n".join(notes.lines())


def test_of_one_run_in_two_folders_the_newest_finished_is_kept(tmp_path: Path) -> None:
    for number, (name, status, reached) in enumerate(
        [("first", "finished", 3), ("good", "finished", 5), ("third", "non_finite", 7)]
    ):
        path = write_run(tmp_path / name / name, rising(reached), status=status)
        os.utime(path / "summary.json", (number, number))
    notes = left_out(tmp_path)
    assert f"{tmp_path / 'first' / 'first'} (kept {tmp_path / 'good' / 'good'})" in notes
    assert f"{tmp_path / 'third' / 'third'} (kept" in notes


def test_of_one_run_in_two_folders_the_one_with_its_own_times_is_kept(tmp_path: Path) -> None:
    for number, (name, pack) in enumerate([("good", 1), ("packed", 6)]):
        path = write_run(tmp_path / name / name, rising(3), pack=pack)
        os.utime(path / "summary.json", (number, number))
    assert f"{tmp_path / 'packed' / 'packed'} (kept {tmp_path / 'good' / 'good'})" in left_out(tmp_path)


def test_a_folder_given_twice_counts_once(good: Path, tmp_path: Path) -> None:
    notes = Notes()
    _, figures = read([tmp_path, good], notes)
    assert len(figures) == 1
    assert notes.lines() == []


def test_a_key_that_moves_with_the_rule_is_said_to_be_confounded(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rising(3), rates="constant", more={"training": {"momentum": 0.9}})
    write_run(tmp_path / "b", rising(3), rates="feda2l", more={"training": {"momentum": 0.0}})
    notes = Notes()
    read([tmp_path], notes)
    (line,) = notes.lines()
    assert line.endswith("their effects cannot be separated: training.momentum changes with rates.name")


def test_two_runs_of_one_seed_are_reported(tmp_path: Path) -> None:
    """The default of a key that the other record is too old to have: two records of equal settings."""
    write_run(tmp_path / "a", rising(3))
    write_run(tmp_path / "b", rising(4), more={"data": {"clusters": 10}})
    notes = Notes()
    read([tmp_path], notes)
    assert f"have the same seed; all count, paired tests use the first: {tmp_path / 'b'}" in "\n".join(notes.lines())
