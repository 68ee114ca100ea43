"""Every command and the Python API from the outside: files, exit codes and printed lines."""

import contextlib
import dataclasses
import json
import os
import pty
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars
import pytest
import torch
from safetensors.torch import load_file

import feda2l
from feda2l.algorithms import ALGORITHMS, PARTS
from feda2l.cli import catalogue
from feda2l.data import images
from feda2l.errors import RunFailed
from feda2l.models import build
from feda2l.rates import RULES

Cli = Callable[..., Any]
SPEC = """
name = "small"
rounds = 4
[data]
nodes = 5
[topology]
name = "ring"
[rates]
warmup_rounds = 1
window = 2
[runtime]
workers = 0
"""


@pytest.fixture
def spec(cli: Cli) -> str:
    """A spec file in the current folder."""
    Path("small.toml").write_text(SPEC)
    return "small.toml"


@pytest.fixture
def done(cli: Cli, spec: str) -> Path:
    """The folder of that spec's run."""
    assert cli("run", spec, "--out", "done").code == 0
    return Path("done")


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def accuracy(model: torch.nn.Module) -> float:
    """The accuracy of a model on the digits test set, computed without our engines."""
    data = images.digits()
    with torch.no_grad():
        return float((model(data.normalise(data.test_x)).argmax(dim=1) == data.test_y).double().mean())


# demo


def test_the_demo_ends_in_a_table_and_a_figure(process: Callable[..., Any], tmp_path: Path) -> None:
    outcome = process("demo", "--seeds", "1")
    assert outcome.code == 0, outcome.err
    for rule in ("constant", "step", "cawr", "one_cycle", "feda2l", "decay_only"):
        assert re.search(rf"│ {rule} +│ +[01] of 1 │", outcome.out), rule
    assert "figure: runs/demo/demo.png" in outcome.out
    assert (tmp_path / "runs" / "demo" / "demo.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((tmp_path / "runs" / "demo" / "feda2l-1" / "summary.json").read_text())
    assert summary["rounds"] == 100
    assert f"{100 * summary['accuracy']['best']:.2f}" in outcome.out


def test_a_demo_never_writes_into_an_older_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from feda2l.cli.demo import demo

    (tmp_path / "demo").mkdir()
    demo(tmp_path / "demo", seeds=2, rounds=3)
    assert not list((tmp_path / "demo").iterdir())
    out = capsys.readouterr().out
    assert "0 of 2" in out  # no rule reaches the target in three rounds, and the table says so
    best = [feda2l.Run(tmp_path / "demo-2" / f"constant-{seed}").summary["accuracy"]["best"] for seed in (1, 2)]
    assert f"{50 * sum(best):.2f} ± " in out
    assert (tmp_path / "demo-2" / "demo.png").stat().st_size > 10_000


# run


def test_a_run_writes_all_files_of_its_folder(done: Path) -> None:
    assert sorted(path.name for path in done.iterdir()) == [
        *("checkpoint.safetensors", "environment.json", "layers.parquet", "rounds.jsonl"),
        *("rounds.parquet", "spec.toml", "summary.json", "timings.jsonl"),
    ]
    assert [record["round"] for record in records(done)] == [1, 2, 3, 4]
    rounds, layers = polars.read_parquet(done / "rounds.parquet"), polars.read_parquet(done / "layers.parquet")
    assert rounds.height == 4 * 5  # rounds x nodes
    assert layers.height == 4 * 5 * 3  # x layers of the mlp
    assert rounds["accuracy"].to_list() == [a for record in records(done) for a in record["nodes"]["accuracy"]]
    summary = json.loads((done / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["accuracy"]["final"] == records(done)[-1]["accuracy"]
    assert len(summary["class_accuracy"]) == 10


def test_the_saved_spec_is_resolved_and_reproduces_the_same_records(cli: Cli, done: Path) -> None:
    saved = feda2l.Run(done).spec
    assert saved.model.name == "mlp"
    assert saved.rates.horizon == 4
    assert saved.rates.rule.decay == 0.3  # the paper's value for a model of up to 10 layers
    assert cli("run", done / "spec.toml", "--out", "again").code == 0
    for name in ("rounds.jsonl", "layers.parquet", "checkpoint.safetensors"):
        assert (done / name).read_bytes() == Path("again", name).read_bytes()


def test_the_reproducible_files_contain_no_time_host_or_path(done: Path) -> None:
    for name in ("rounds.jsonl", "checkpoint.safetensors"):
        content = (done / name).read_bytes()
        assert b"seconds" not in content
        assert str(done.absolute()).encode() not in content
    assert set(json.loads((done / "timings.jsonl").read_text().splitlines()[0])) == {
        *("round", "train", "mix", "adapt", "evaluate", "pack")
    }


def test_a_process_without_a_terminal_prints_plain_lines(process: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SPEC)
    outcome = process("run", "small.toml", "--set", "rounds=3", "--set", 'name="other"')
    assert outcome.code == 0, outcome.err
    assert "\x1b" not in outcome.out + outcome.err
    lines = outcome.err.splitlines()
    for line in lines:
        assert re.fullmatch(r"other: round \d/3  accuracy 0\.\d+  rate \S+  \d+ s left", line)
    assert lines[0].startswith("other: round 1/3")
    assert lines[-1].startswith("other: round 3/3")
    last = records(tmp_path / "runs" / "other")[-1]
    assert f"other: 3 rounds, accuracy {last['accuracy']:.4f}" in outcome.out
    assert "records: runs/other" in outcome.out


def test_a_terminal_shows_a_bar_with_round_accuracy_rate_and_time_left(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "small.toml").write_text(SPEC)
    our_end, their_end = pty.openpty()
    running = start("run", "small.toml", stderr=their_end, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"})
    os.close(their_end)
    shown = b""
    with contextlib.suppress(OSError):  # reading from a closed terminal raises an error
        while part := os.read(our_end, 4096):
            shown += part
    os.close(our_end)
    assert running.wait(timeout=30) == 0
    last = records(tmp_path / "runs" / "small")[-1]
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert "4/4" in text
    assert f"accuracy {last['accuracy']:.3f}" in text
    assert "rate " in text
    assert "0:00:00" in text


def test_quiet_prints_no_progress(cli: Cli, spec: str) -> None:
    outcome = cli("run", spec, "--quiet")
    assert outcome.code == 0
    assert outcome.err == ""


def test_runs_without_out_get_separate_folders(cli: Cli, spec: str) -> None:
    for folder in ("small", "small-2"):
        outcome = cli("run", spec, "--set", "rounds=1")
        assert outcome.code == 0
        assert f"records: runs/{folder}\n" in outcome.out
    resumed = cli("run", spec, "--resume")  # resumes the first run with more rounds
    assert resumed.code == 0
    assert "resuming after round 1" in resumed.err
    assert len(records(Path("runs/small"))) == 4


def test_a_target_that_is_reached_is_reported_with_its_round(cli: Cli, spec: str) -> None:
    flags = ("--set", "evaluation.target=0.05", "--set", "evaluation.smoothing=2")
    outcome = cli("run", spec, *flags, "--out", "out")
    assert outcome.code == 0
    curve = [record["accuracy"] for record in records(Path("out"))]
    reached = next(r for r in range(2, 5) if (curve[r - 2] + curve[r - 1]) / 2 >= 0.05)
    assert f"target 0.05 reached in round {reached}" in outcome.out


def test_show_partition_prints_and_plots_without_training(cli: Cli, spec: str) -> None:
    outcome = cli("run", spec, "--show-partition")
    assert outcome.code == 0
    assert f"figure: small-partition.png (in the folder {Path.cwd()})" in outcome.out
    assert Path("small-partition.png").read_bytes().startswith(b"\x89PNG")
    assert not Path("runs").exists()
    rows = [
        [int(cell) if cell.strip().isdigit() else 0 for cell in line.split("│")[1:-1]]
        for line in outcome.out.splitlines()
        if line.startswith("│")
    ]
    assert [row[0] for row in rows] == [0, 1, 2, 3, 4]
    assert all(sum(row[1:-1]) == row[-1] for row in rows)
    assert sum(row[-1] for row in rows) == 1438  # the training images
    assert cli("run", spec, "--show-partition", "--out", "there").code == 0
    assert Path("there-partition.png").exists()


# list, data


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("algorithms", ["fedavg", "push_sum", "package.module:Class", "docs/add-an-algorithm.md"]),
        ("rates", ["constant", "one_cycle", "feda2l", "random_multiplier", "exp_hyperbolic", "package.module:Class"]),
        ("topologies", ["full", "ring", "k_regular", "one_peer_exponential", "isolated"]),
        ("datasets", ["digits", "cifar10", "cifar100", "scikit-learn"]),
        ("models", ["mlp", "small_cnn", "cnn", "package.module:Class"]),
        ("networks", ["home", "mobile", "phones", "network.links", "network.speed"]),
        ("keys", ["rates.base", "training.batch_size", "evaluation.target", "network.links"]),
    ],
)
def test_list_shows_each_kind(kind: str, words: list[str], cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    outcome = cli("list", kind)
    assert outcome.code == 0
    assert all(word in outcome.out for word in words)
    everything = cli("list", "all").out
    assert all(word in everything for word in words)


def test_list_without_a_kind_prints_a_short_index(cli: Cli) -> None:
    first, *lines = cli("list").out.splitlines()
    assert "feda2l list rates" in first
    assert [line.split()[0] for line in lines] == [*catalogue.TABLES]
    assert [int(line.split()[1]) for line in lines if line.startswith("rates")] == [len(RULES)]


def test_list_algorithms_shows_summary_citation_and_parameters(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in cli("list", "algorithms").out.splitlines()]
    shown = {cells[0]: cells[1:] for cells in lines if cells}
    assert list(shown) == [*ALGORITHMS, *PARTS, "NAME+NAME", '"package.module:Class"']
    for name, kind in (ALGORITHMS | PARTS).items():
        summary, citation, parameters = shown[name]
        assert summary == ("part: " if name in PARTS else "") + kind.summary, name
        assert citation == kind.citation, name
        assert re.search(r"(19|20)\d\d", citation), name
        values = {field.name: field.default for field in dataclasses.fields(kind)}
        for key, value in values.items():
            assert (key if value is None else f"{key}={value}") in parameters, name
        assert bool(values) == bool(parameters), name


def test_help_and_version_are_printed(cli: Cli) -> None:
    assert feda2l.__version__ in cli("--version").out
    outcome = cli("--help")
    assert outcome.code == 0
    assert all(word in outcome.out for word in ("demo", "run", "list", "data", "evaluate", "export"))
    assert "--resume" in cli("run", "--help").out


def test_digits_need_no_download_and_are_official(cli: Cli) -> None:
    fetched = cli("data", "fetch", "digits")
    assert fetched.code == 0
    assert fetched.out.startswith("digits: ")
    verified = cli("data", "verify", "digits")
    assert verified.code == 0
    assert "1438 training and 359 test pictures" in verified.out
    assert "digits: official bytes" in verified.out


# evaluate, export


def test_evaluate_gives_the_scores_of_the_last_round(cli: Cli, done: Path) -> None:
    last = records(done)[-1]
    outcome = cli("evaluate", done)
    assert outcome.code == 0
    shown = dict(re.findall(r"│ ([\w ]+?) +│ +(\d\.\d{4}) │", outcome.out))
    expected = {f"node {node}": value for node, value in enumerate(last["nodes"]["accuracy"])}
    expected |= {"mean of nodes": last["accuracy"], "mean model": last["mean_model_accuracy"]}
    assert shown == {name: f"{value:.4f}" for name, value in expected.items()}
    single = cli("evaluate", done, "--node", 3)
    assert f"{last['nodes']['accuracy'][3]:.4f}" in single.out
    assert "node 2" not in single.out


@pytest.mark.parametrize("node", [None, 0, 3])
def test_an_exported_model_predicts_like_the_model_of_the_run(node: int | None, cli: Cli, done: Path) -> None:
    last = records(done)[-1]
    expected = last["mean_model_accuracy"] if node is None else last["nodes"]["accuracy"][node]
    flags = () if node is None else ("--node", node)
    assert cli("export", done, *flags).code == 0
    model = build("mlp", classes=10, input=(1, 8, 8))
    name = "model.safetensors" if node is None else f"node-{node}.safetensors"
    model.load_state_dict(load_file(done / name))
    assert accuracy(model) == pytest.approx(expected, abs=1e-12)
    outcome = cli("export", done, *flags, "--out", "elsewhere.safetensors")
    assert outcome.code == 0
    assert "8,970 values in 6 tensors" in outcome.out
    assert Path("elsewhere.safetensors").read_bytes() == (done / name).read_bytes()


# the Python API


def test_the_api_returns_rounds_layers_summary_and_models(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    spec = {"name": "api", "rounds": 3, "data": {"nodes": 4}, "topology": {"name": "ring"}, "runtime": {"workers": 0}}
    run = feda2l.run(spec, out=tmp_path / "api", on_round=seen.append, progress=False)
    assert [record["round"] for record in seen] == [1, 2, 3]
    assert {record.pop("name") for record in seen} == {"api"}
    assert seen == records(run.path)
    assert run.path == tmp_path / "api"
    assert run.spec.data.nodes == 4
    assert run.rounds.height == 3 * 4
    assert run.rounds.filter(round=3)["accuracy"].to_list() == seen[-1]["nodes"]["accuracy"]
    assert run.layers.columns == ["round", "node", "layer", "rate", "multiplier", "divergence", "stability"]
    assert run.layers.filter(round=2, node=1)["divergence"].to_list() == seen[1]["layers"]["divergence"][1]
    assert run.summary["accuracy"]["final"] == seen[-1]["accuracy"]
    assert accuracy(run.model(2)) == pytest.approx(seen[-1]["nodes"]["accuracy"][2], abs=1e-12)
    assert accuracy(run.model()) == pytest.approx(seen[-1]["mean_model_accuracy"], abs=1e-12)
    reopened = feda2l.Run(tmp_path / "api")
    assert reopened.summary == run.summary
    assert reopened.layers.equals(run.layers)


def test_a_list_of_specs_gives_a_list_of_runs_in_the_same_order(tmp_path: Path) -> None:
    names = ["b", "a", "b"]  # duplicate names get a number
    specs = [{"name": name, "rounds": 1, "data": {"nodes": 3}, "runtime": {"workers": 0}} for name in names]
    runs = feda2l.run(specs, out=tmp_path / "pack", progress=False)
    assert [run.path.name for run in runs] == ["b", "a", "b-2"]


OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, width=24):
        super().__init__()
        self.frozen = nn.Linear(64, width)
        self.frozen.requires_grad_(False)
        self.norm = nn.BatchNorm1d(width)
        self.body = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        x = torch.relu(self.norm(self.frozen(x.flatten(1))))
        return self.head(torch.relu(self.body(x))) * self.scale

def smooth(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)
"""


def test_a_users_own_model_and_loss_are_trained_evaluated_and_exported(
    process: Callable[..., Any], cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "own_net.py").write_text(OWN)
    (tmp_path / "own.toml").write_text(SPEC + '[model]\nname = "own_net:Net"\nloss = "own_net:smooth"\n')
    outcome = process("run", "own.toml", "--out", "own")
    assert outcome.code == 0, outcome.err
    run = feda2l.Run("own")
    assert run.layers["layer"].unique(maintain_order=True).to_list() == ["scale", "norm", "body", "head"]
    last = records(run.path)[-1]
    assert last["accuracy"] > 0.15  # it learns
    assert accuracy(run.model(1)) == pytest.approx(last["nodes"]["accuracy"][1], abs=1e-12)
    evaluated = cli("evaluate", "own")
    assert f"{last['nodes']['accuracy'][1]:.4f}" in evaluated.out
    assert cli("export", "own", "--node", 1, "--out", "own.safetensors").code == 0
    import own_net

    fresh = own_net.Net(10).eval()
    fresh.load_state_dict(load_file("own.safetensors"))  # every tensor, including the frozen ones
    assert accuracy(fresh) == pytest.approx(last["nodes"]["accuracy"][1], abs=1e-12)


# a full disk


def limited(size: int) -> Callable[[], None]:
    """For a child process: no file can grow beyond `size` bytes, as if the disk were full."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_full_disk_fails_clearly_and_keeps_the_old_checkpoint(
    process: Callable[..., Any], cli: Cli, tmp_path: Path
) -> None:
    sets = ("--set", "data.nodes=5", "--set", "runtime.workers=0")
    assert cli("run", *sets, "--set", "rounds=2", "--set", "rates.horizon=4", "--out", "out").code == 0
    checkpoint = tmp_path / "out" / "checkpoint.safetensors"
    before = checkpoint.read_bytes()
    longer = ("run", *sets, "--set", "rounds=4", "--set", "rates.horizon=4", "--out", "out", "--resume")
    outcome = process(*longer, preexec_fn=limited(len(before) // 2))
    assert outcome.code == 1
    assert "Traceback" not in outcome.err
    assert "out/checkpoint.safetensors" in outcome.err
    assert "cannot be written" in outcome.err
    assert checkpoint.read_bytes() == before
    assert not list((tmp_path / "out").glob("*.partial"))
    # with free space again the run resumes
    assert cli(*longer).code == 0
    assert len(records(tmp_path / "out")) == 4
    assert cli("run", *sets, "--set", "rounds=4", "--set", "rates.horizon=4", "--out", "whole").code == 0
    assert checkpoint.read_bytes() == Path("whole/checkpoint.safetensors").read_bytes()


def test_tables_that_do_not_fit_on_the_disk_fail_clearly(done: Path) -> None:
    folder = feda2l.Run(done).folder
    before = folder.rounds_table.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(RunFailed, match=r"rounds\.parquet: cannot be written"):
            folder.write_tables()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert folder.rounds_table.read_bytes() == before
    assert not list(done.glob("*.partial"))


@pytest.mark.parametrize(("size", "file"), [(100, "spec.toml"), (2000, "rounds.jsonl")])
def test_a_disk_too_full_for_the_records_fails_clearly(
    size: int, file: str, process: Callable[..., Any], cli: Cli, tmp_path: Path
) -> None:
    sets = ("--set", "data.nodes=5", "--set", "runtime.workers=0", "--set", "rounds=3")
    outcome = process("run", *sets, "--out", "out", preexec_fn=limited(size))
    assert outcome.code == 1
    assert "Traceback" not in outcome.err
    assert f"out/{file}" in outcome.err
    assert cli("run", *sets, "--out", "out", "--resume").code == 0
    assert cli("run", *sets, "--out", "whole").code == 0
    for name in ("rounds.jsonl", "rounds.parquet", "layers.parquet", "checkpoint.safetensors"):
        assert Path("out", name).read_bytes() == Path("whole", name).read_bytes()
