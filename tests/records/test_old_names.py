"""Old keys in a spec raise an error with the new name. Run folders of older versions load under the current names."""

import json
from pathlib import Path

import polars
import pytest

from feda2l.errors import FedA2LError
from feda2l.old_names import SPEC_KEYS, current_record, current_spec, current_summary
from feda2l.records.round_record import from_line
from feda2l.records.run_folder import RunFolder
from feda2l.runs.resume import saved_spec
from feda2l.runs.run import Run
from feda2l.spec.spec import Spec


@pytest.mark.parametrize("key", SPEC_KEYS)
def test_an_old_key_of_a_spec_names_the_new_one(key: str) -> None:
    section, _, name = key.partition(".")
    with pytest.raises(FedA2LError, match=f"unknown key; it is now called {SPEC_KEYS[key]}"):
        Spec.parse({section: {name: "x"}})


@pytest.mark.parametrize("key", SPEC_KEYS.values())
def test_every_new_key_exists(key: str) -> None:
    section, _, name = key.partition(".")
    assert name in type(getattr(Spec(), section)).model_fields


def test_a_run_folder_of_an_older_version_is_resumed_under_the_new_keys(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.spec.write_text('[model]\nname = "cnn"\nstart = "weights.safetensors"\nfresh = ["head"]\n')
    saved = saved_spec(folder)
    assert saved is not None
    assert (saved.model.initial_weights, saved.model.reinitialize) == ("weights.safetensors", ("head",))


def test_a_finished_run_of_an_older_version_is_opened_under_the_new_names(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.spec.write_text("[data]\ntest_share = 0.5\n")
    folder.summary.write_text('{"status": "diverged", "diverged": {"round": 3}}')
    columns = {"round": [1], "node": [0], "layer": ["a"], "sigma": [0.3], "zeta": [0.2]}
    polars.DataFrame(columns).write_parquet(folder.layers_table)
    run = Run(tmp_path)
    assert run.spec.data.test_fraction == 0.5
    assert run.summary["status"] == "non_finite"
    assert run.layers.columns == ["round", "node", "layer", "divergence", "stability"]


def test_old_records_are_read_under_the_new_names() -> None:
    layers = {"name": ["a"], "rate": [[0.1]], "multiplier": [[1.0]], "sigma": [[0.3]], "zeta": [[0.2]]}
    old = {"round": 1, "heard": [2], "nodes": {"heard": [1], "rejected": [0]}, "layers": layers}
    record = from_line(json.dumps(old))
    assert record == {
        "round": 1,
        "received": [2],
        "nodes": {"received": [1], "rejected": [0]},
        "layers": {"name": ["a"], "rate": [[0.1]], "multiplier": [[1.0]], "divergence": [[0.3]], "stability": [[0.2]]},
    }
    assert current_record(dict(record)) == record


def test_old_summaries_and_specs_are_read_under_the_new_names() -> None:
    summary = {"status": "diverged", "diverged": {"round": 3}}
    assert current_summary(summary) == {"status": "non_finite", "non_finite": {"round": 3}}
    assert current_spec({"rounds": 2, "data": {"node": "site"}}) == {"rounds": 2, "data": {"node_column": "site"}}
