"""Studies: expansion of a file, effects of a reading, and runs that are packed, stopped and resumed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import feda2l
from feda2l.errors import FedA2LError
from feda2l.runs import pack
from feda2l.spec.spec import Spec
from feda2l.studies.api import study
from feda2l.studies.cells import StudyCell
from feda2l.studies.progress_table import StudyView
from feda2l.studies.run_study import Outcome, StudyRun, choose
from feda2l.studies.study import Study, shipped
from feda2l.studies.study_folder import Job, StudyFolder
from run_files import SAME

TINY: dict[str, Any] = {
    "name": "tiny",
    "seeds": 2,
    "base": {"rounds": 4, "data": {"nodes": 4}, "runtime": {"workers": 0, "checkpoint_seconds": 0}},
    "axes": {"rates.name": ["constant", "feda2l"]},
}


def tiny(**more: Any) -> Study:
    return Study.parse(TINY | more, "tiny.toml")


def write(path: Path, values: Mapping[str, Any]) -> Path:
    import tomli_w

    path.write_text(tomli_w.dumps(dict(values)))
    return path


def run(tmp_path: Path, values: Mapping[str, Any], out: str = "out", **options: Any) -> Outcome:
    return study(write(tmp_path / "study.toml", values), out=tmp_path / out, progress=False, **options)


def cell(study: Study, name: str) -> StudyCell:
    return next(cell for cell in study.cells if cell.name == name)


def files(folder: Path) -> dict[str, bytes]:
    """Return the reproducible files of every run below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.name in SAME}


# expansion of a study file


def test_variants_are_combined_with_axes_and_extra_cells_stand_alone() -> None:
    wanted = tiny(
        axes={"rates": {"name": ["constant", "feda2l"]}, "data.alpha": [0.1, 1.0]},
        variants={"ring": {"topology": {"name": "ring"}}, "full": {}},
        extra={"hpo": {"algorithm": {"name": "dfedhpo"}, "rates": {"name": "constant"}}},
    )
    assert [cell.name for cell in wanted.cells] == [
        "ring-constant-alpha-0.1",
        "ring-constant-alpha-1.0",
        "ring-feda2l-alpha-0.1",
        "ring-feda2l-alpha-1.0",
        "full-constant-alpha-0.1",
        "full-constant-alpha-1.0",
        "full-feda2l-alpha-0.1",
        "full-feda2l-alpha-1.0",
        "hpo",
    ]
    spec = cell(wanted, "ring-feda2l-alpha-1.0").spec(2)
    assert (spec.name, spec.seed, spec.topology.name, spec.data.alpha, spec.rounds) == (
        "ring-feda2l-alpha-1.0-2",
        2,
        "ring",
        1.0,
        4,
    )
    assert StudyFolder(Path("x")).run(wanted.cells[-1], 2).path == Path("x/hpo/seed-2")


def test_a_study_without_axes_is_one_cell_and_names_that_collide_get_a_number() -> None:
    assert [cell.name for cell in Study.parse({"name": "one"}).cells] == ["one"]
    same = Study.parse({"name": "x", "variants": {"a-b": {"seed": 3}}, "axes": {"model.loss": ["c:d", "c-d"]}})
    assert [cell.name for cell in same.cells] == ["a-b-c-d", "a-b-c-d-2"]


def test_the_resolved_study_parses_back_to_itself() -> None:
    wanted = Study.load("robustness-own-targets", ["rounds=7", "seeds=[4, 9]"])
    again = Study.parse(tomllib.loads(wanted.to_toml()))
    assert again.model_dump() == wanted.model_dump()
    assert [c.values for c in again.cells] == [c.values for c in wanted.cells]


def test_a_key_on_the_command_line_wins_over_base_and_variants() -> None:
    wanted = Study.load("robustness-topology", ["evaluation.target=0.2", "rounds=9", "data.nodes=12"])
    for own in wanted.cells:
        spec = own.spec(1)
        assert (spec.evaluation.target, spec.rounds, spec.data.nodes) == (0.2, 9, 12)
        assert spec.rates.horizon == 500  # a shortened run follows the same schedule


# hand calculation: cells x seeds from the paper's tables (six algorithms, six rules, DFedHPO once)
RUNS = {
    **dict.fromkeys(["cnn-cifar10", "cnn-cifar100", "resnet18-cifar100", "resnet34-cifar100"], 37 * 5),
    **dict.fromkeys(["resnet18-tinyimagenet", "resnet34-tinyimagenet"], 37 * 5),
    "time-to-target": 36 * 5,
    **dict.fromkeys(["robustness-heterogeneity", "robustness-nodes", "robustness-topology"], 2 * 2 * 6 * 5),
    "robustness-own-targets": 6 * 2 * 6 * 5,
    "series-exchange-rate": 2 * 6 * 5,
    "series-beijing": 2 * 6 * 5,
    **dict.fromkeys(["sensitivity-cnn", "sensitivity-resnet18", "sensitivity-resnet34"], (1 + 5 * 2) * 5),
    "rate-dynamics": 2 * 3 * 5,
    "beta-curves": 3 * 6 * 5,
    **dict.fromkeys(["controls-cnn-cifar10", "controls-cnn-cifar100"], 36 * 5),
    "controls-resnet18-cifar100": (36 + 6) * 5,
    "digits-rules": 6 * 3,
}


def test_every_shipped_study_has_the_size_of_its_table() -> None:
    assert {name: len(own.cells) * len(own.seeds) for name, own in loaded().items()} == RUNS
    assert all(own.name == name and own.title for name, own in loaded().items())


def loaded() -> dict[str, Study]:
    return {name: Study.load(name) for name in shipped()}


TARGETS = {
    "cnn-cifar10": 0.64,
    "cnn-cifar100": 0.29,
    "resnet18-cifar100": 0.45,
    "resnet18-tinyimagenet": 0.35,
    "resnet34-cifar100": 0.41,
    "resnet34-tinyimagenet": 0.30,
    "series-exchange-rate": 0.0575,
    "sensitivity-resnet34": 0.45,
}


@pytest.mark.parametrize(("name", "target"), TARGETS.items())
def test_targets_and_horizons_match_the_paper(name: str, target: float) -> None:
    rounds = 100 if name.startswith("series") else 500
    for own in Study.load(name).cells:
        spec = own.spec(1)
        assert (spec.evaluation.target, spec.rounds, spec.rates.horizon) == (target, rounds, rounds)


# readings, row by row of the specification's table A.6


def read(reading: str, deep: bool, **rates: Any) -> dict[str, Spec]:
    """Return the specs of a cell by block, resolved for a shallow or a deep model."""
    base = {"data": {"name": "cifar100"}, "model": {"name": "resnet18" if deep else "cnn"}, "rates": rates}
    cells = Study.parse({"name": "x", "seeds": [7], "reading": reading, "base": base}).cells
    return {
        own.block: own.spec(7).resolved(layers=41 if deep else 4, model="resnet18" if deep else "cnn") for own in cells
    }


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(("reading", "preset"), [("paper", "paper"), ("reference", "reference"), ("fair", "paper")])
def test_reading_rule(reading: str, preset: str, deep: bool) -> None:
    for name in ("feda2l", "decay_only", "random_multiplier"):
        assert {spec.rates.rule.preset for spec in read(reading, deep, name=name).values()} == {preset}  # type: ignore[attr-defined]
    assert read(reading, deep, name="hidden_schedule")[""].rates.rule.preset == "reference"  # type: ignore[attr-defined]


def test_reading_momentum() -> None:
    for name in ("constant", "one_cycle", "feda2l"):
        for deep in (False, True):
            assert read("paper", deep, name=name)[""].training.momentum == 0.9
            none = name == "feda2l" and deep
            assert read("reference", deep, name=name)[""].training.momentum == (0.0 if none else 0.9)
            fair = read("fair", deep, name=name)
            assert (fair[""].training.momentum, fair["momentum-0"].training.momentum) == (0.9, 0.0)


def test_reading_one_cycle() -> None:
    cycles = {
        reading: read(reading, False, name="one_cycle")[""].rates.rule.cycle_momentum  # type: ignore[attr-defined]
        for reading in ("paper", "reference", "fair")
    }
    assert cycles == {"paper": True, "reference": True, "fair": False}


def test_reading_hyperbolic() -> None:
    names = [read(r, False, name="hyperbolic")[""].rates.name for r in ("paper", "reference", "fair")]
    assert names == ["hyperbolic", "hyperbolic_reference", "hyperbolic"]
    assert read("reference", False, name="hyperbolic", upper_bound=1000)[""].rates.name == "hyperbolic"


def test_reading_start_statistics_partition_and_base_rate() -> None:
    for reading, init, buffers in (
        ("paper", "per_node", "local"),
        ("reference", "per_node", "local"),
        ("fair", "common", "average"),
    ):
        spec = read(reading, True, name="feda2l")[""]
        assert (spec.model.init, spec.algorithm.buffers) == (init, buffers)
        assert spec.data.partition_seed == (7 if reading == "fair" else 1)
        tuning = Study.parse({"name": "x", "reading": reading}).tuning
        assert (spec.rates.base if tuning is None else tuning.values) == (
            (0.03, 0.01, 0.003, 0.001) if reading == "fair" else 0.01
        )
    assert read("fair", True, name="feda2l")["buffers-local"].algorithm.buffers == "local"
    assert set(read("fair", False, name="feda2l")) == {"", "momentum-0"}  # a CNN has no statistics


def test_what_the_study_gives_wins_over_its_reading() -> None:
    own = {
        "data": {"partition_seed": 5},
        "model": {"init": "per_node"},
        "algorithm": {"buffers": "local"},
        "rates": {"name": "feda2l", "preset": "reference", "base": 0.05},
        "training": {"momentum": 0.5},
    }
    (only,) = Study.parse({"name": "x", "reading": "fair", "base": own}).cells
    spec = only.spec(3)
    assert not only.tuned
    assert (spec.data.partition_seed, spec.model.init, spec.algorithm.buffers) == (5, "per_node", "local")
    assert (spec.rates.base, spec.training.momentum, spec.rates.rule.preset) == (0.05, 0.5, "reference")  # type: ignore[attr-defined]


def test_a_search_is_not_tuned() -> None:
    fair = Study.load("cnn-cifar10", ['reading="fair"'])
    assert {own.tuned for own in fair.cells if own.variant == "dfedhpo"} == {False}
    assert {own.tuned for own in fair.cells if own.variant != "dfedhpo"} == {True}


# bad input

BAD = [
    ({"nmae": "x"}, r"tiny.toml: nmae: unknown key or section; did you mean 'name'\?"),
    ({"tune": {"vaules": [1]}}, r"tiny.toml: tune.vaules: unknown key; did you mean 'values'\?"),
    ({"report": {"rwos": "rates.name"}}, r"tiny.toml: report.rwos: unknown key; did you mean 'rows'"),
    ({"reading": "fairer"}, r"tiny.toml: reading = 'fairer': input should be 'paper', 'reference' or 'fair'"),
    ({"seeds": 0}, r"tiny.toml: seeds = 0: .*at least one seed"),
    ({"seeds": []}, r"tiny.toml: seeds = \[\]: .*at least one seed"),
    ({"seeds": [1, 1]}, r"seeds = .*twice"),
    ({"seeds": [1, 1000], "tune": {}}, r"tiny.toml: tune.seed = 1000 is one of the study's own seeds"),
    ({"axes": {"rates.name": []}}, r"tiny.toml: axes = .*rates.name has no value"),
    ({"axes": {"rates.nmae": ["x"]}}, r"tiny.toml, cell x: rates.nmae: unknown key; did you mean 'name'\?"),
    ({"axes": {"rate.name": ["x"]}}, r"tiny.toml, cell x: rate: unknown key or section; did you mean 'rates'\?"),
    (
        {"axes": {"data.alpha": [-1.0]}},
        r"tiny.toml, cell alpha--1.0: data.alpha = -1.0: input should be greater than 0",
    ),
    ({"axes": {"rates.name": ["constant", "constant"]}}, r"cells constant and constant-2 are the same"),
    ({"variants": {"a": {}, "b": {"rates": {"base": 0.01}}}}, r"cells a-constant and b-constant are the same"),
    ({"base": {"data": 3}}, r"tiny.toml: base = .*data is a section"),
    ({"target_from": {"cell": "cosine"}}, r"target_from.cell = 'cosine': constant has no such cell"),
]


@pytest.mark.parametrize(("more", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_an_error_names_the_file_and_the_key(more: dict[str, Any], message: str) -> None:
    with pytest.raises(FedA2LError) as error:
        tiny(**more)
    assert re.search(message, str(error.value)), str(error.value)


def test_command_line_errors_name_the_argument(tmp_path: Path) -> None:
    for options, message in (
        ({"sets": ["rates.name=step"]}, "rates.name is an axis of the study"),
        ({"sets": ["seed=3"]}, "a study has seeds"),
        ({"sets": ["data.alpa=3"]}, "--set data.alpa=3: data.alpa: unknown key; did you mean 'alpha'"),
        ({"only": ["feda3l*"]}, "no run of tiny has such a name"),
        ({"shard": "3/2"}, "--shard 3/2: write it as I/K"),
        ({"limit_minutes": 0}, "--limit-minutes 0: must be above 0"),
        ({"seeds": 0}, "--set seeds=0: seeds = 0"),
    ):
        with pytest.raises(FedA2LError, match=re.escape(message)):
            run(tmp_path, TINY, **options)  # type: ignore[arg-type]
    with pytest.raises(FedA2LError, match="study = 'digits-rule' is unknown; did you mean 'digits-rules'"):
        study("digits-rule")
    assert not (tmp_path / "out").exists()


# running


def test_a_study_runs_is_skipped_when_finished_and_takes_more_seeds(tmp_path: Path) -> None:
    said: list[str] = []
    outcome = run(tmp_path, TINY, say=said.append)
    assert [str(done.path.relative_to(tmp_path / "out")) for done in outcome.runs] == [
        "constant/seed-1",
        "constant/seed-2",
        "feda2l/seed-1",
        "feda2l/seed-2",
    ]
    assert {done.summary["pack"] for done in outcome.runs} == {4}
    assert said[0].startswith("tiny: a study (2 cells, 4 runs)")
    assert said[1] == "to run: 4 runs, 16 rounds"
    measured = "20 training steps measured on each of 4 nodes, in run .* and 3 other runs"
    assert re.fullmatch(rf"about .* here \(.* s per round from {measured}\)", said[2])
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("summary.json")}
    again = run(tmp_path, TINY | {"seeds": 3, "title": "other words"}, say=said.append)
    assert len(again.runs) == 6
    assert all(path.stat().st_mtime_ns == when for path, when in times.items())
    assert "timed rounds of" in said[-1]
    assert Study.load(tmp_path / "out" / "study.toml").seeds == (1, 2, 3)


def test_a_folder_of_another_study_is_an_error_with_differences(tmp_path: Path) -> None:
    run(tmp_path, TINY, seeds=1)
    with pytest.raises(FedA2LError, match=r"different study:\n  base.rounds: 4 in the folder, 5 now\n"):
        run(tmp_path, TINY, sets=["rounds=5"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(FedA2LError, match="not empty and holds no study"):
        run(tmp_path, TINY, "other")


def test_runs_trained_separately_have_their_own_seconds(tmp_path: Path) -> None:
    outcome = run(tmp_path, TINY, timing=True, only=["feda2l"])
    assert [done.summary["pack"] for done in outcome.runs] == [1, 1]


def test_a_failed_run_is_recorded_and_the_others_continue(tmp_path: Path) -> None:
    values = TINY | {
        "variants": {"fine": {}, "crowd": {"data": {"nodes": 1000}}, "wild": {"rates": {"base": 1e30}}},
        "axes": {},
        "base": TINY["base"] | {"rates": {"name": "constant"}},
    }
    outcome = run(tmp_path, values, seeds=1)
    assert [done.spec.name for done in outcome.runs] == ["fine-1"]
    assert [line.split(":")[0] for line in outcome.failed] == ["crowd-1", "wild-1"]
    error = json.loads((tmp_path / "out/crowd/seed-1/error.json").read_text())
    assert error["name"] == "crowd-1"
    assert "cell crowd" in error["error"]
    assert json.loads((tmp_path / "out/wild/seed-1/summary.json").read_text())["status"] == "non_finite"
    # the next call repeats the failed run and skips the diverged one
    assert len(run(tmp_path, values, seeds=1).failed) == 2


def test_a_failed_pack_reports_the_reason_before_it_is_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = TINY | {
        "variants": {"fine": {}, "poor": {"data": {"min_size": 100_000}}},
        "axes": {},
        "base": TINY["base"] | {"rates": {"name": "constant"}},
    }
    path = write(tmp_path / "study.toml", values)
    assert len(study(path, out=tmp_path / "out", seeds=1).runs) == 1
    said = capsys.readouterr().err
    assert "2 runs failed together, so they are tried in two packs (FedA2LError: " in said
    assert "cell poor" in said


def test_shards_partition_the_study(tmp_path: Path) -> None:
    values = TINY | {"axes": {"rates.name": ["constant", "step", "cawr"]}}
    whole = run(tmp_path, values, "whole")
    first, second = (run(tmp_path, values, "parts", shard=f"{i}/2") for i in (1, 2))
    names = [{done.spec.name for done in part.runs} for part in (first, second, whole)]
    assert names[0] & names[1] == set()
    assert names[0] | names[1] == names[2]
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


def test_a_control_stays_in_the_shard_of_its_pair() -> None:
    wanted = Study.load("controls-cnn-cifar10")
    shards = [{own.name for own, _ in choose(wanted, [], (i, 5))} for i in range(1, 6)]
    assert sum(map(len, shards)) == 36
    (home,) = [shard for shard in shards if "decay_only_matched" in shard]
    assert "feda2l" in home
    assert {own.name for own, _ in choose(wanted, ["decay_only_matched"], (1, 1))} == {"feda2l", "decay_only_matched"}


def test_only_selects_cells_and_runs_by_pattern() -> None:
    names = [f"{own.name}-{seed}" for own, seed in choose(tiny(), ["feda*", "constant-2"], (1, 1))]
    assert names == ["constant-2", "feda2l-1", "feda2l-2"]


MATCHED = {"rates": {"name": "decay_only_matched", "paired": "feda2l", "warmup_rounds": 1, "window": 2}}
PAIRED = TINY | {
    "axes": {},
    "variants": {"matched": MATCHED, "feda2l": {"rates": {"warmup_rounds": 1, "window": 2}}},
}


def test_a_control_is_trained_after_its_paired_run(tmp_path: Path) -> None:
    outcome = run(tmp_path, PAIRED)
    assert len(outcome.runs) == 4
    own = next(done for done in outcome.runs if done.spec.name == "matched-2")
    assert own.spec.rates.rule.paired == str(tmp_path / "out/feda2l/seed-2")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fitting", "packs"),  # number of runs per pack, and the packs of constant (c) and feda2l (f)
    [(1, ["c1", "f1", "c2", "f2"]), (2, ["c1 f1", "c2 f2"]), (3, ["c1 f1", "c2 f2"]), (4, ["c1 f1 c2 f2"])],
)
def test_compared_runs_share_a_pack(
    fitting: int, packs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    monkeypatch.setattr(StudyRun, "_rows", lambda self, jobs: 4 * fitting)
    run_pack = StudyRun._pack

    def note(self: StudyRun, pack: list[Job], view: StudyView) -> None:
        found.append(" ".join(f"{job.cell.name[0]}{job.spec.seed}" for job in pack))
        run_pack(self, pack, view)

    monkeypatch.setattr(StudyRun, "_pack", note)
    assert len(run(tmp_path, TINY).runs) == 4
    assert found == packs


def test_a_control_whose_pair_is_finished_is_packed_with_the_others(tmp_path: Path) -> None:
    run(tmp_path, PAIRED, only=["feda2l-1"])
    packs = {done.spec.name: done.summary["pack"] for done in run(tmp_path, PAIRED).runs}
    assert packs == {"feda2l-1": 1, "matched-1": 2, "feda2l-2": 2, "matched-2": 1}


@pytest.mark.parametrize("kept", [True, False])
def test_unneeded_checkpoints_are_not_written(kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    write_checkpoint = pack.write_checkpoint

    def note(state: dict[str, Tensor], path: Path) -> None:
        written.append(path)
        write_checkpoint(state, path)

    monkeypatch.setattr(pack, "write_checkpoint", note)
    base = TINY["base"] | {"runtime": {"workers": 0, "checkpoint_seconds": 1000}}
    outcome = run(tmp_path, TINY | {"base": base, "keep_checkpoints": kept})
    there = {done.path for done in outcome.runs if (done.path / "checkpoint.safetensors").exists()}
    assert there == {path.parent for path in written}
    assert len(written) == (4 if kept else 0)


def test_a_time_limit_saves_and_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = TINY | {"base": TINY["base"] | {"rounds": 9, "runtime": {"workers": 0, "checkpoint_seconds": 1000}}}
    asked = iter(range(100))
    with monkeypatch.context() as patch:
        patch.setattr(StudyRun, "_over", lambda self: next(asked) >= 5)  # once before the pack, then after each round
        cut = run(tmp_path, values, limit_minutes=10)
    assert (cut.runs, cut.failed, len(cut.left)) == ([], [], 4)
    parts = [path.parent for path in (tmp_path / "out").rglob("rounds.jsonl")]
    assert [len((path / "rounds.jsonl").read_text().splitlines()) for path in parts] == [5] * 4
    assert all((path / "checkpoint.safetensors").exists() for path in parts)
    assert len(run(tmp_path, values, limit_minutes=1e-6).left) == 4
    assert len(run(tmp_path, values, limit_minutes=10).runs) == 4
    run(tmp_path, values, "whole")
    assert files(tmp_path / "out") == files(tmp_path / "whole")


# the first stages


def test_every_cell_is_tuned_on_held_out_samples(tmp_path: Path) -> None:
    tune = {"values": [0.1, 1e-6], "rounds": 3, "seed": 50}
    outcome = run(tmp_path, TINY | {"tune": tune}, seeds=1)
    assert [done.spec.rates.base for done in outcome.runs] == [0.1, 0.1]
    for name in ("constant", "feda2l"):
        folder = tmp_path / "out" / "stages" / "tune" / name
        facts = json.loads((folder / "chosen.json").read_text())
        assert (facts["key"], facts["value"]) == ("rates.base", 0.1)
        trial = feda2l.Run(folder / "1e-06")
        assert (trial.spec.evaluation.on, trial.spec.seed, trial.spec.rounds) == ("local", 50, 3)
        assert trial.spec.rates.horizon == 4
        assert [score for _, score in facts["scores"]][1] == trial.summary["accuracy"]["last_10"]


def test_the_fair_reading_gives_every_rule_the_same_grid_and_budget(tmp_path: Path) -> None:
    outcome = run(tmp_path, TINY, reading="fair", seeds=2)
    trials = sorted(path.parent for path in (tmp_path / "out" / "stages").rglob("spec.toml"))
    assert len(trials) == 2 * 2 * 4  # rules, blocks, rates
    assert {feda2l.Run(path).spec.rounds for path in trials} == {1}
    assert len(outcome.runs) == 2 * 2 * 2
    assert [done.spec.data.partition_seed for done in outcome.runs] == [1, 2] * 4


def test_the_target_comes_from_a_separate_run(tmp_path: Path) -> None:
    values = TINY | {
        "base": TINY["base"] | {"evaluation": {"smoothing": 2}},
        "variants": {"ring": {"topology": {"name": "ring"}}, "full": {}},
        "target_from": {"cell": "constant", "share": 0.5, "seed": 60},
    }
    outcome = run(tmp_path, values, seeds=1)
    for variant in ("ring", "full"):
        source = feda2l.Run(tmp_path / "out" / "stages" / "target" / f"{variant}-constant")
        assert source.spec.seed == 60
        best = source.summary["accuracy"]["best_smoothed"]
        targets = {done.spec.evaluation.target for done in outcome.runs if done.spec.name.startswith(variant)}
        assert targets == {0.5 * best}


# killed processes


def test_a_killed_study_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    base = TINY["base"] | {"rounds": 20, "runtime": {"workers": 0, "checkpoint_seconds": 0.1}}
    values = TINY | {"base": base, "tune": {"values": [0.1, 0.01], "rounds": 3, "seed": 50}}
    file = write(tmp_path / "study.toml", values)
    command = [sys.executable, "-m", "feda2l", "study", str(file), "--out", str(tmp_path / "killed")]
    rounds = tmp_path / "killed" / "feda2l" / "seed-2" / "rounds.jsonl"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + 180
        while not (rounds.exists() and rounds.read_bytes().count(b"\n") >= 5):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not (rounds.parent / "summary.json").exists()
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "4 of 4 runs finished" in done.stdout
    assert len(run(tmp_path, values, "whole").runs) == 4
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


def test_the_command_line_reports_failed_and_remaining_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from feda2l.cli.main import main

    file = write(tmp_path / "study.toml", TINY | {"variants": {"fine": {}, "crowd": {"data": {"nodes": 1000}}}})
    monkeypatch.setattr(sys, "argv", ["feda2l", "study", str(file), "--out", str(tmp_path / "out"), "--seeds", "1"])
    with pytest.raises(SystemExit) as stop:
        main()
    shown = capsys.readouterr()
    assert stop.value.code == 1
    assert "2 of 4 runs finished" in shown.out
    assert "2 runs failed:\ncrowd-constant-1: " in shown.err
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--dry-run", "--only", "fine-*"])
    main()
    assert "fine-feda2l-1: finished" in capsys.readouterr().out
