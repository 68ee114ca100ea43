"""Bundles: their content, reports that equal those of the run folders, and rejected input."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars
import pytest
import tomli_w

from feda2l.errors import FedA2LError
from feda2l.rates.decay_only_matched import mean_multipliers
from feda2l.records.bundle import open_bundle, write_bundle
from feda2l.report.bundle_runs import bundle_runs, unbundle
from feda2l.report.compare import compare
from feda2l.report.find_runs import Notes, find_runs
from feda2l.report.page_data import heat_of, page_data
from feda2l.report.related_work import related_work
from feda2l.report.report import read, report
from feda2l.report.run_records import FolderRecords, records_at
from feda2l.watch.follow import Follower
from synthetic_runs import rising, write_run

RULES = ("constant", "feda2l", "decay_only")
TEXT_FILES = ("spec.toml", "environment.json", "summary.json")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A study of three rules with two seeds each: one non-finite run, one rule with timings, and trials."""
    folder = tmp_path / "runs"
    for rule, target_rounds in (("constant", (6, None)), ("feda2l", (4, 5)), ("decay_only", (5, 5))):
        for seed, target_round in enumerate(target_rounds, start=1):
            options: dict[str, Any] = {"rates": rule, "seed": seed}
            if rule == "feda2l":
                options |= {"pack": 1, "every_second": 1.0, "simulated": 2.0}
            if (rule, seed) == ("constant", 2):
                options |= {"status": "non_finite"}
            write_run(folder / rule / f"seed-{seed}", rising(target_round), **options)
    study = {
        "name": "made",
        "title": "Synthetic",
        "variants": {rule: {"rates": {"name": rule}} for rule in RULES},
    }
    (folder / "study.toml").write_text(tomli_w.dumps(study))
    trial = write_run(folder / "stages/tune/constant/0.1", rising(2), seed=1000)
    (trial.parent / "chosen.json").write_text('{"value": 0.1}')
    return folder


def data_of(folder: Path) -> tuple[dict[str, Any], list[Any]]:
    """The data of a report page with paths relative to `folder`, and separately the heat maps."""
    notes = Notes()
    tables, _ = read([folder], notes)
    data = page_data(tables, related_work(), notes.lines())
    heats = [run.pop("heat") for run in data["runs"]]
    return json.loads(json.dumps(data).replace(str(folder), "RUNS")), heats


def test_the_report_of_a_bundle_equals_the_report_of_its_runs(runs: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle_runs([runs], bundle, layers=["*"])
    for folder in (runs, bundle):
        report([folder], tmp_path / f"report of {folder.name}")
    for name in ("table.csv", "table.md", "table.tex"):
        of_runs, of_bundle = ((tmp_path / f"report of {kind}" / name).read_text() for kind in ("runs", "bundle"))
        assert of_bundle.replace(str(bundle), str(runs)) == of_runs
    assert "seeds" in of_runs
    assert data_of(bundle)[0] == data_of(runs)[0]


def test_rows_per_layer_of_a_bundle_draw_the_same_heat_map(runs: Path, tmp_path: Path) -> None:
    bundle_runs([runs], tmp_path / "bundle", layers=["feda2l/*"])
    name = "feda2l/seed-2"
    first, second = (find_runs([folder / name], Notes())[0] for folder in (runs, tmp_path / "bundle"))
    of_runs, of_bundle = heat_of(first), heat_of(second)
    assert isinstance(of_runs, dict)
    assert isinstance(of_bundle, dict)
    assert of_bundle["layers"] == of_runs["layers"]
    for signal in ("rate", "divergence", "stability"):
        assert of_bundle[signal]["low"] == pytest.approx(of_runs[signal]["low"], rel=1e-7)
        assert of_bundle[signal]["high"] == pytest.approx(of_runs[signal]["high"], rel=1e-7)
    # the bundle holds no rows per layer of the other runs
    (other,) = find_runs([tmp_path / "bundle/constant/seed-1"], Notes())
    assert isinstance(heat_of(other), str)


def test_a_bundle_holds_one_row_per_run_and_all_rows_per_round(runs: Path, tmp_path: Path) -> None:
    bundle_runs([runs], tmp_path / "bundle", layers=["*"])
    rows = polars.read_parquet(tmp_path / "bundle/runs.parquet")
    assert rows["name"].to_list() == [
        *(f"{rule}/seed-{seed}" for rule in ("constant", "decay_only", "feda2l") for seed in (1, 2)),
        "stages/tune/constant",
        "stages/tune/constant/0.1",
    ]
    assert rows["chosen"].drop_nulls().to_list() == ['{"value": 0.1}']
    rounds = polars.read_parquet(tmp_path / "bundle/rounds.parquet")
    assert len(rounds) == 7 * 10 * 2  # six runs and a trial, ten rounds, two nodes
    layers = polars.read_parquet(tmp_path / "bundle/layers.parquet")
    assert layers.columns == ["run", "round", "node", "layer", "rate", "multiplier", "divergence", "stability"]
    assert {layers[name].dtype for name in layers.columns[4:]} == {polars.Float32}
    assert len(layers) == 2 * len(rounds)  # two layers
    # the synthetic divergence is 0.1 (node + 1) / round, so 0.15 / 4 on average in round 4; stability is 0.9 and 0.5
    fourth = rounds.filter((polars.col("run") == 0) & (polars.col("round") == 4))
    assert fourth["divergence_mean"].to_list() == pytest.approx([0.0375] * 2)
    assert fourth["stability_mean"].to_list() == pytest.approx([0.7] * 2)
    assert fourth["multiplier_mean"].to_list() == [1.0] * 2


def test_float32_keeps_every_printed_digit(runs: Path, tmp_path: Path) -> None:
    bundle_runs([runs], tmp_path / "bundle", layers=["*"])
    columns = ("rate", "multiplier", "divergence", "stability")
    full, reduced = (records_at(folder / "feda2l/seed-1").layers(columns) for folder in (runs, tmp_path / "bundle"))
    assert full is not None
    assert reduced is not None
    assert [[f"{value:.6g}" for value in row] for row in reduced.rows()] == [
        [f"{value:.6g}" for value in row] for row in full.rows()
    ]


def test_unbundle_writes_the_run_folders_again(runs: Path, tmp_path: Path) -> None:
    bundle_runs([runs], tmp_path / "bundle")
    again = tmp_path / "again"
    assert unbundle(tmp_path / "bundle", again) == 8
    assert (again / "study.toml").read_text() == (runs / "study.toml").read_text()
    for path in runs.rglob("spec.toml"):
        folder = again / path.parent.relative_to(runs)
        assert [(folder / name).read_text() for name in TEXT_FILES] == [
            (path.parent / name).read_text() for name in TEXT_FILES
        ]
        assert (folder / "summary.json").stat().st_mtime_ns == (path.parent / "summary.json").stat().st_mtime_ns
    rounds = polars.read_parquet(runs / "feda2l/seed-1/rounds.parquet")
    assert polars.read_parquet(again / "feda2l/seed-1/rounds.parquet").select(rounds.columns).equals(rounds)
    assert mean_multipliers(str(again / "feda2l/seed-1")) == [1.0] * 10
    with pytest.raises(FedA2LError, match="already exists"):
        unbundle(tmp_path / "bundle", again)
    with pytest.raises(FedA2LError, match="is not a bundle"):
        unbundle(runs, tmp_path / "other")


def test_a_bundle_of_unbundled_runs_has_the_same_tables(runs: Path, tmp_path: Path) -> None:
    bundle_runs([runs], tmp_path / "first")
    unbundle(tmp_path / "first", tmp_path / "again")
    bundle_runs([tmp_path / "again"], tmp_path / "second")
    assert (tmp_path / "first/MANIFEST").read_text() == (tmp_path / "second/MANIFEST").read_text()


def test_compare_reads_runs_of_a_bundle_by_their_paths(runs: Path, tmp_path: Path) -> None:
    bundle_runs([runs], tmp_path / "bundle")
    of_runs, of_bundle = (compare(folder / "decay_only", folder / "feda2l") for folder in (runs, tmp_path / "bundle"))
    assert of_bundle.verdict == of_runs.verdict
    assert of_bundle.measures == of_runs.measures
    assert of_runs.seeds == [1, 2]
    with pytest.raises(FedA2LError, match="no finished run"):
        compare(tmp_path / "bundle/feda2", tmp_path / "bundle/feda2l")


def test_watch_shows_the_runs_of_a_bundle_as_those_of_folders(runs: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle_runs([runs], bundle, layers=["*"])
    of_runs, of_bundle = Follower(runs), Follower(bundle)
    assert of_runs.refresh()
    assert of_bundle.refresh()
    assert not of_bundle.refresh()

    def runs_shown(follower: Follower) -> dict[str, Any]:
        return {run["id"]: run for run in json.loads(follower.since(0))["runs"]}

    assert runs_shown(of_bundle) == runs_shown(of_runs)
    assert "constant/seed-2" in runs_shown(of_bundle)
    first, second = (json.loads(follower.detail("feda2l/seed-1")) for follower in (of_runs, of_bundle))
    assert first["heat"].keys() == second["heat"].keys()
    assert {**first, "heat": None} == {**second, "heat": None}
    # a rewritten bundle is read again, and a damaged one is reported
    bundle_runs([runs / "constant"], bundle, overwrite=True)
    assert of_bundle.refresh()
    assert set(runs_shown(of_bundle)) == {"seed-1", "seed-2"}
    with open(bundle / "rounds.parquet", "ab") as file:
        file.write(b"more")
    assert of_bundle.refresh()
    (line,) = runs_shown(of_bundle).values()
    assert "SHA-256" in line["words"]


@pytest.mark.parametrize("name", ["runs.parquet", "rounds.parquet", "layers.parquet", "study.toml"])
def test_a_damaged_or_missing_file_is_reported(runs: Path, tmp_path: Path, name: str) -> None:
    bundle = tmp_path / "bundle"
    bundle_runs([runs], bundle, layers=["*"])
    report([bundle], tmp_path / "report")
    file = bundle / name
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(FedA2LError, match=f"{name}: its SHA-256 differs"):
        read([bundle], Notes())
    file.unlink()
    with pytest.raises(FedA2LError, match=f"{name}: cannot be read"):
        read([bundle], Notes())
    file.write_bytes(whole)
    read([bundle], Notes())


def test_the_manifest_has_the_format_of_sha256sum(runs: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle_runs([runs], bundle)
    lines = (bundle / "MANIFEST").read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["rounds.parquet", "runs.parquet", "study.toml"]
    for line in lines:
        digest, name = line.split("  ")
        assert hashlib.sha256((bundle / name).read_bytes()).hexdigest() == digest
    (bundle / "MANIFEST").write_text("nothing\n")
    with pytest.raises(FedA2LError, match="MANIFEST: cannot be read"):
        read([bundle], Notes())


def test_a_bundle_is_replaced_only_on_request_and_other_files_never(runs: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle_runs([runs], bundle, layers=["*"])
    before = (bundle / "MANIFEST").read_bytes()
    with pytest.raises(FedA2LError, match="--overwrite"):
        bundle_runs([runs], bundle)
    assert (bundle / "MANIFEST").read_bytes() == before
    bundle_runs([runs], bundle, overwrite=True)
    assert sorted(path.name for path in bundle.iterdir()) == [
        "MANIFEST",
        "rounds.parquet",
        "runs.parquet",
        "study.toml",
    ]
    with pytest.raises(FedA2LError, match="other files"):
        bundle_runs([runs], runs, overwrite=True)


def test_bundles_and_folders_of_one_study_are_joined(runs: Path, tmp_path: Path) -> None:
    bundle_runs([runs], tmp_path / "both")
    for seed in (1, 2):
        part = tmp_path / f"part-{seed}"
        for rule in RULES:
            shutil.copytree(runs / rule / f"seed-{seed}", part / rule / f"seed-{seed}")
        (part / "study.toml").write_text(f"seeds = [{seed}]\n" + (runs / "study.toml").read_text())
    bundle_runs([tmp_path / "part-1"], tmp_path / "bundle-1")
    bundle_runs([tmp_path / "bundle-1", tmp_path / "part-2"], tmp_path / "joined")
    joined, both = open_bundle(tmp_path / "joined"), open_bundle(tmp_path / "both")
    assert joined.names == [name for name in both.names if not name.startswith("stages/")]
    assert joined.study is not None
    assert "seeds = [\n    1,\n    2,\n]" in joined.study
    with pytest.raises(FedA2LError, match="another folder has a run constant/seed-1 too"):
        bundle_runs([tmp_path / "part-1", tmp_path / "bundle-1"], tmp_path / "twice")
    with pytest.raises(FedA2LError, match="some of the folders belong to a study"):
        bundle_runs([tmp_path / "part-1", runs / "feda2l"], tmp_path / "mixed")
    (tmp_path / "part-2/study.toml").write_text('name = "another"\n')
    with pytest.raises(FedA2LError, match="different study"):
        bundle_runs([tmp_path / "part-1", tmp_path / "part-2"], tmp_path / "mixed")


def test_runs_that_cannot_be_bundled_are_reported(runs: Path, tmp_path: Path) -> None:
    (runs / "constant/seed-1/summary.json").unlink()
    (runs / "feda2l/seed-1/rounds.parquet").unlink()
    written, left_out = bundle_runs([runs], tmp_path / "bundle")
    assert len(written) == 6
    assert left_out == [
        f"left out, not finished: {runs / 'constant/seed-1'}",
        f"left out, neither rounds.parquet nor rounds.jsonl can be read: {runs / 'feda2l/seed-1'}",
    ]
    with pytest.raises(FedA2LError, match="bundle each study by itself"):
        bundle_runs([tmp_path], tmp_path / "all")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FedA2LError, match="no finished run to bundle"):
        bundle_runs([tmp_path / "empty"], tmp_path / "none")
    with pytest.raises(FedA2LError, match="is not a folder"):
        bundle_runs([tmp_path / "nowhere"], tmp_path / "none")


def test_the_path_of_a_paired_run_is_relative(tmp_path: Path) -> None:
    """An absolute path is valid on one machine only, and the folder may come from another machine."""
    paired = "/other/machine/study/feda2l/seed-1"
    write_run(tmp_path / "study/feda2l/seed-1", rising(3))
    more = {"rates": {"paired": paired}}
    write_run(tmp_path / "study/decay_only_matched/seed-1", rising(3), rates="decay_only_matched", more=more)
    bundle_runs([tmp_path / "study"], tmp_path / "bundle")
    text = open_bundle(tmp_path / "bundle").texts("decay_only_matched/seed-1")["spec"]
    assert 'paired = "../../feda2l/seed-1"' in text


def test_a_bundle_with_a_run_outside_its_folder_is_rejected(runs: Path, tmp_path: Path) -> None:
    """Otherwise unbundling a file from another person could write anywhere."""
    bundle_runs([runs], tmp_path / "bundle")
    run = open_bundle(tmp_path / "bundle").run("feda2l/seed-1")
    for name in ("../escaped", "/tmp/escaped", "feda2l/../../escaped"):
        write_bundle(tmp_path / "sent", [replace(run, name=name)], None)
        with pytest.raises(FedA2LError, match="lies outside the bundle"):
            unbundle(tmp_path / "sent", tmp_path / "out")


def test_old_and_new_names_of_the_signals_give_the_same_records(tmp_path: Path) -> None:
    old, new = (write_run(tmp_path / name, rising(3)) for name in ("old", "new"))
    table = polars.read_parquet(old / "layers.parquet")
    first, second = table.columns[-2:]
    values = {"round": table["round"], "node": table["node"], "layer": table["layer"], "rate": table["rate"]}
    for path, names in ((old, ("sigma", "zeta")), (new, ("divergence", "stability"))):
        signals = {names[0]: table[first], names[1]: table[second]}
        polars.DataFrame({**values, **signals}).write_parquet(path / "layers.parquet")
    columns = ("round", "node", "layer", "rate", "divergence", "stability")
    frames = [FolderRecords(path).layers(columns) for path in (old, new)]
    assert frames[0] is not None
    assert frames[1] is not None
    assert frames[0].equals(frames[1])


def test_a_bundle_without_its_manifest_is_reported(runs: Path, tmp_path: Path) -> None:
    bundle_runs([runs], tmp_path / "bundle")
    (tmp_path / "bundle" / "MANIFEST").unlink()
    for reader in (
        lambda: read([tmp_path / "bundle"], Notes()),
        lambda: bundle_runs([tmp_path / "bundle"], tmp_path / "out"),
    ):
        with pytest.raises(FedA2LError, match="MANIFEST: is missing, so the files of this bundle cannot be checked"):
            reader()


def test_a_bundle_without_layers_says_how_to_get_them(runs: Path, tmp_path: Path) -> None:
    bundle_runs([runs], tmp_path / "bundle")
    left_out = report([tmp_path / "bundle"], tmp_path / "out")[2]
    assert any(line.endswith("the bundle has no layers: make it with feda2l bundle --layers") for line in left_out)
