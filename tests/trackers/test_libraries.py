"""The real tracking libraries read a tracked run back. Libraries that are not installed are skipped."""

import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import feda2l
from feda2l.trackers.figures import figures

SPEC = {"name": "small", "rounds": 3, "data": {"nodes": 4}, "runtime": {"workers": 0, "checkpoint_seconds": 0}}
LONGER = SPEC | {"rounds": 5}


class Stop(Exception):
    pass


def interrupted(out: Path, tracker: str) -> None:
    """A run that sent rounds 1 to 4 and has a checkpoint of round 3."""

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 4:
            raise Stop

    with pytest.raises(Stop):
        feda2l.run(LONGER, out=out, trackers=[tracker], on_round=stop, progress=False)


def resumed(out: Path, tracker: str) -> feda2l.Run:
    return feda2l.run(LONGER, out=out, trackers=[tracker], resume=True, progress=False)


def expected(run: feda2l.Run) -> list[dict[str, float]]:
    """Return the figures of every round from the records of the run."""
    timings = run.folder.read_timings()
    parts = ("train", "mix", "adapt", "evaluate")
    seconds = [sum(timing.get(part, 0) for part in parts) for timing in timings]
    return [figures(record | {"seconds": own}) for record, own in zip(run.folder.read(), seconds, strict=True)]


def test_figures_include_scores_losses_rates_and_time(tmp_path: Path) -> None:
    run = feda2l.run(SPEC, out=tmp_path / "run", progress=False)
    last, record = expected(run)[-1], run.folder.read()[-1]
    assert last["accuracy"] == pytest.approx(sum(record["nodes"]["accuracy"]) / 4)
    assert last["worst_accuracy"] == min(record["nodes"]["accuracy"])
    assert {"train_loss", "test_loss", "disagreement", "seconds"} <= last.keys()
    for layer, name in enumerate(record["layers"]["name"]):
        for key in ("rate", "multiplier"):
            assert last[f"{key}/{name}"] == pytest.approx(sum(row[layer] for row in record["layers"][key]) / 4)


# TensorBoard


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reading.EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def by_tag(run: feda2l.Run) -> dict[str, list[Any]]:
    rounds = expected(run)
    tags = {tag for found in rounds for tag in found}
    single = {tag: [(n, found[tag]) for n, found in enumerate(rounds, start=1) if tag in found] for tag in tags}
    return {
        tag: [(n, pytest.approx(struct.unpack("f", struct.pack("f", value))[0])) for n, value in values]
        for tag, values in single.items()
    }


def test_tensorboard_has_every_figure_and_the_spec(tmp_path: Path) -> None:
    run = feda2l.run(SPEC, out=tmp_path / "run", trackers=["tensorboard"], progress=False)
    assert scalars(run.path / "tensorboard") == by_tag(run)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert b'name = "small"' in events.Tensors("spec")[0].tensor_proto.string_val[0]


def test_a_resumed_run_is_one_curve_in_tensorboard(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", "tensorboard")
    assert [step for step, _ in scalars(tmp_path / "run" / "tensorboard")["accuracy"]] == [1, 2, 3, 4]
    run = resumed(tmp_path / "run", "tensorboard")
    assert scalars(run.path / "tensorboard") == by_tag(run)


def test_a_full_disk_stops_tensorboard_but_not_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    feda2l.run(SPEC, out=tmp_path / "run", progress=False)
    events = tmp_path / "run" / "tensorboard"
    events.mkdir()
    (events / "events.out.tfevents.0000000001.feda2l").symlink_to("/dev/full")
    run = resumed(tmp_path / "run", "tensorboard")
    assert run.summary["rounds"] == 5
    said = capsys.readouterr().err
    assert "tracker tensorboard stopped: OSError: [Errno 28] No space left on device" in said
    assert "Traceback" not in said


# Weights & Biases


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return pytest.importorskip("wandb", reason="pip install 'feda2l[wandb]'")


def offline_records(path: Path) -> list[Any]:
    """Return all records of a W&B file. W&B's process writes the last ones shortly after the end of the run."""
    found: list[Any] = []
    for _ in range(200):
        found = list(read_records(path))
        if found and found[-1].WhichOneof("record_type") == "exit":
            break
        time.sleep(0.05)
    return found


def read_records(path: Path) -> Iterator[Any]:
    """Return the records of a W&B file: 7 bytes, then 32 KiB blocks as in LevelDB's log, with protobuf records."""
    from wandb.proto.wandb_internal_pb2 import Record

    raw, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(raw):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", raw[at : at + 7])
        parts += raw[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a complete record, or the last of several parts
            yield Record.FromString(parts)
            parts = b""


def offline_history(path: Path) -> dict[int, dict[str, float]]:
    found = {}
    for record in offline_records(path):
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            assert items["_step"] not in found
            found[items["_step"]] = {key: value for key, value in items.items() if not key.startswith("_")}
    return found


def test_wandb_has_every_figure_and_the_spec_offline(wandb: Any, tmp_path: Path) -> None:
    run = feda2l.run(SPEC, out=tmp_path / "run", trackers=["wandb"], progress=False)
    (path,) = (run.path / "wandb").glob("offline-run-*/*.wandb")
    assert offline_history(path) == dict(enumerate(map(pytest.approx, expected(run)), start=1))
    records = offline_records(path)
    (begun,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    config = {update.key: json.loads(update.value_json) for update in begun.config.update}
    assert config["data"]["nodes"] == 4
    assert begun.display_name == "small"
    summary = {u.key: u.value_json for r in records if r.HasField("summary") for u in r.summary.update}
    assert json.loads(summary["final_accuracy"]) == run.summary["accuracy"]["final"]


def test_a_resumed_wandb_run_has_one_id_and_no_duplicate_steps(wandb: Any, tmp_path: Path) -> None:
    interrupted(tmp_path / "run", "wandb")
    run = resumed(tmp_path / "run", "wandb")
    files = sorted((run.path / "wandb").glob("offline-run-*/*.wandb"))
    assert len({path.name for path in files}) == 1  # run-ID.wandb
    assert [list(offline_history(path)) for path in files] == [[1, 2, 3, 4], [5]]


# MLflow


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("mlflow", reason="pip install 'feda2l[mlflow]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'store.db'}")
    from mlflow import MlflowClient

    return lambda: MlflowClient(os.environ["MLFLOW_TRACKING_URI"])


def test_mlflow_has_one_run_with_every_figure_after_a_resume(mlflow: Any, tmp_path: Path) -> None:
    interrupted(tmp_path / "run", "mlflow")
    client = mlflow()
    experiment = client.get_experiment_by_name("feda2l").experiment_id
    assert [run.info.status for run in client.search_runs([experiment])] == ["KILLED"]
    run = resumed(tmp_path / "run", "mlflow")
    (found,) = client.search_runs([experiment])
    assert (found.info.status, found.info.run_name) == ("FINISHED", "small")
    assert found.data.params["data.nodes"] == "4"
    assert found.data.metrics["final_accuracy"] == run.summary["accuracy"]["final"]
    history = client.get_metric_history(found.info.run_id, "rate/fc1")
    assert [(one.step, one.value) for one in history] == [
        (number, pytest.approx(values["rate/fc1"])) for number, values in enumerate(expected(run), start=1)
    ]
    assert [one.step for one in client.get_metric_history(found.info.run_id, "accuracy")] == [1, 2, 3, 4, 5]


def test_a_dead_mlflow_server_does_not_affect_the_run(
    mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{closed.getsockname()[1]}")
        run = feda2l.run(SPEC, out=tmp_path / "run", trackers=["mlflow"], progress=False)
    assert run.summary["status"] == "finished"
    said = capsys.readouterr().err
    assert "tracker mlflow stopped: MlflowException: API request to http://127.0.0.1:" in said
    assert said.count("tracker mlflow stopped") == 1
