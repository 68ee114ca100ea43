"""The record of a round: its keys, its JSON line and its rows in the tables."""

import math
from pathlib import Path
from typing import Any

import pytest

import feda2l
from feda2l.records.round_record import (
    Evaluation,
    LayerColumns,
    NodeColumns,
    RoundRecord,
    from_line,
    layer_columns,
    main_score,
    missed_round,
    node_scores,
    round_columns,
    to_line,
    unscored,
    update_scores,
)
from feda2l.records.round_timings import TRAINING, round_timings, total_seconds


def evaluated() -> RoundRecord:
    """Two nodes and one layer; node 1 was absent."""
    return {
        "round": 1,
        "train_loss": 0.5,
        "disagreement": 0.25,
        "bytes_sent": 8,
        "multiplier_min": 1.0,
        "multiplier_max": 1.0,
        "multiplier_change": 0.0,
        "nodes": {"train_loss": [0.5, None], "bytes_sent": [8, 0], "accuracy": [0.75, None], "test_loss": [2.0, None]},
        "layers": {
            "name": ["fc"],
            "disagreement": [0.25],
            "rate": [[0.1], [None]],
            "multiplier": [[1.0], [None]],
            "divergence": [[0.3], [None]],
            "stability": [[0.2], [None]],
        },
        "accuracy": 0.75,
        "test_loss": 2.0,
        "accuracy_std": 0.0,
        "accuracy_worst": 0.75,
    }


def check_keys(record: Any, kind: Any) -> None:
    assert kind.__required_keys__ <= record.keys() <= kind.__required_keys__ | kind.__optional_keys__


def test_a_line_keeps_the_record_and_the_order_of_its_keys():
    record = evaluated()
    assert to_line(record).startswith('{"round": 1, "train_loss": 0.5, "disagreement": 0.25, "bytes_sent": 8, ')
    assert to_line(record).endswith('"accuracy_worst": 0.75}\n')
    assert from_line(to_line(record)) == record


@pytest.mark.parametrize("loss", [math.inf, -math.inf, math.nan])
def test_a_loss_that_overflowed_is_null_on_disk(loss):
    record = evaluated()
    update_scores(record, {"test_loss": loss}, {"test_loss": [loss, None]})
    read = from_line(to_line(record))
    assert read["test_loss"] is None
    assert read["nodes"]["test_loss"] == [None, None]
    update_scores(record, {"test_loss": None}, {"test_loss": [None, None]})
    assert read == record


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"evaluation": {"every": 2, "on": "both"}},
        {"network": {"compute_ms": 2.0, "participation": 0.5}},
        {"algorithm": {"name": "push_sum"}, "topology": {"name": "directed_ring"}},
    ],
    ids=["plain", "both", "network", "directed"],
)
def test_a_run_writes_the_keys_of_the_type_and_no_others(tmp_path: Path, changes):
    spec = {"rounds": 3, "data": {"nodes": 4}, "runtime": {"workers": 0}}
    run = feda2l.run(spec | changes, out=tmp_path / "run", progress=False)
    records = run.folder.read()
    for record in records:
        check_keys(record, RoundRecord)
        check_keys(record["nodes"], NodeColumns)
        check_keys(record["layers"], LayerColumns)
    if "evaluation" in changes:
        assert main_score(records[0]) is None
        assert unscored(records[1]).keys() == records[0].keys()
        assert unscored(records[1])["nodes"].keys() == records[0]["nodes"].keys()
        assert unscored(records[0]) == records[0]


def test_a_repeated_evaluation_has_the_keys_of_its_type(tmp_path: Path):
    from feda2l.runs.evaluate import evaluate

    feda2l.run({"rounds": 1, "data": {"nodes": 3}, "runtime": {"workers": 0}}, out=tmp_path / "run", progress=False)
    check_keys(evaluate(tmp_path / "run"), Evaluation)


def test_a_round_that_is_not_evaluated_has_no_scores():
    without_scores = unscored(evaluated())
    assert without_scores["nodes"] == {"train_loss": [0.5, None], "bytes_sent": [8, 0]}
    assert without_scores == {
        key: value for key, value in evaluated().items() if "accuracy" not in key and "test" not in key
    } | {"nodes": without_scores["nodes"]}


def test_a_missed_round_has_every_key_and_no_value():
    missed = missed_round(7)
    check_keys(missed, RoundRecord)
    check_keys(missed["nodes"], NodeColumns)
    check_keys(missed["layers"], LayerColumns)
    assert (missed["round"], missed["bytes_sent"], missed["received"]) == (7, 0, [])
    assert main_score(missed) is None
    assert from_line(to_line(missed)) == missed


def test_scores_are_selected_by_name():
    record = evaluated()
    update_scores(record, {"local_mse": 4.0}, {"local_mse": [4.0, None]})
    assert main_score(record) == ("accuracy", 0.75)
    assert node_scores(record["nodes"]) == {"accuracy": [0.75, None], "test_loss": [2.0, None]}
    assert node_scores(record["nodes"], "local_") == {"mse": [4.0, None]}


def test_the_tables_have_one_row_per_node_and_per_layer():
    records = [evaluated(), unscored({**evaluated(), "round": 2})]
    assert round_columns(records) == {
        "round": [1, 1, 2, 2],
        "node": [0, 1, 0, 1],
        "train_loss": [0.5, None, 0.5, None],
        "accuracy": [0.75, None, None, None],
        "test_loss": [2.0, None, None, None],
        "bytes_sent": [8, 0, 8, 0],
        "disagreement": [0.25] * 4,
        "multiplier_min": [1.0] * 4,
        "multiplier_max": [1.0] * 4,
        "multiplier_change": [0.0] * 4,
    }
    assert layer_columns(records) == {
        "round": [1, 1, 2, 2],
        "node": [0, 1, 0, 1],
        "layer": ["fc"] * 4,
        "rate": [0.1, None] * 2,
        "multiplier": [1.0, None] * 2,
        "divergence": [0.3, None] * 2,
        "stability": [0.2, None] * 2,
    }


def test_a_missed_round_has_a_row_of_nulls_and_no_layers():
    assert round_columns([missed_round(1)]) == {"round": [1], "node": [0], "bytes_sent": [0]}
    assert not any(layer_columns([missed_round(1)]).values())


def test_timings_hold_the_parts_that_took_time():
    timing = round_timings(3, {"train": 2.0, "mix": 0.5, "adapt": 0.25, "evaluate": 1.0}, pack=4)
    assert to_line(timing) == '{"round": 3, "train": 2.0, "mix": 0.5, "adapt": 0.25, "evaluate": 1.0, "pack": 4}\n'
    assert (total_seconds(timing), total_seconds(timing, TRAINING)) == (3.75, 2.75)
    assert total_seconds(round_timings(4, {}, pack=1)) == 0
