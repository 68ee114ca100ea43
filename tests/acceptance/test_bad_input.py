"""A user's mistake gives exit code 2 and a failed run gives 1; the message names the mistake and its place."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import feda2l
from feda2l.cli import network
from feda2l.spec.spec import STUDY_KEYS, Spec
from feda2l.studies.study import Study
from run_files import needs_bf16

Cli = Callable[..., Any]
QUICK = ("--set", "rounds=2", "--set", "data.nodes=4", "--set", "runtime.workers=0", "--quiet")


def refused(outcome: Any, *words: str, code: int = 2) -> None:
    """Check the exit code, that there is no traceback, and that the message contains every word."""
    assert outcome.code == code, outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.err.startswith("feda2l: ")
    for word in words:
        assert word in outcome.err


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A run of four rounds with a checkpoint, as `run --out done` leaves it."""
    spec = {"rounds": 4, "data": {"nodes": 4}, "runtime": {"workers": 0}}
    return feda2l.run(spec, out=tmp_path / "done", progress=False).path


MISTAKES = {
    "a misspelt key": ("[data]\nnodse = 3", "data.nodse", "nodes"),
    "a misspelt section": ("[dta]\nnodes = 3", "dta", "data"),
    "a misspelt key beside a name": ("[rates]\nwindwo = 3", "rates.windwo", "window"),
    "a parameter of another rule": ("[rates]\nname = 'constant'\nwindow = 3", "rates.window"),
    "an unknown rate rule": ("[rates]\nname = 'fedal2'", "rates.name", "fedal2", "feda2l"),
    "an unknown topology": ("[topology]\nname = 'rnig'", "topology.name", "rnig", "ring"),
    "an unknown data set": ("[data]\nname = 'digitz'", "data.name", "digitz", "digits"),
    "an unknown model": ("[model]\nname = 'mpl'", "model.name", "mpl", "mlp"),
    "an unknown algorithm": ("[algorithm]\nname = 'fedvag'", "algorithm.name", "fedvag", "fedavg"),
    "an unknown partition": ("[data]\npartition = 'dirichlte'", "data.partition", "dirichlte", "dirichlet"),
    "no nodes": ("[data]\nnodes = 0", "data.nodes", "0"),
    "a negative alpha": ("[data]\nalpha = -1", "data.alpha", "-1"),
    "a negative rate": ("[rates]\nbase = -0.1", "rates.base", "-0.1"),
    "an infinite rate": ("[rates]\nbase = inf", "rates.base", "inf"),
    "a window of one": ("[rates]\nwindow = 1", "rates.window", "1"),
    "a word for a number": ("rounds = 'many'", "rounds", "many"),
    "a number for a section": ("data = 5", "data", "5"),
    "a target above one": ("[evaluation]\ntarget = 1.5", "evaluation.target", "1.5"),
    "a name that is a path": ("name = '../up'", "name", "../up"),
    "broken TOML": ("rounds = = 3", "TOML", "line 1"),
    "a batch larger than any shard": ("[training]\nbatch_size = 64", "batch_size = 64"),
    "a huge batch of equal shards": (
        "[data]\npartition = 'iid'\nmin_size = 1\n[training]\nbatch_size = 5000",
        "training.batch_size = 5000",
    ),
    "a batch larger than the smallest shard": (
        "[data]\nmin_size = 1\n[training]\nbatch_size = 64",
        "training.batch_size = 64",
        "node ",
    ),
    "too many nodes for the samples": ("[data]\nnodes = 500", "500 nodes", "feasible"),
    "more classes per node than exist": (
        "[data]\npartition = 'pathological'\nclasses_per_node = 20",
        "classes_per_node",
        "20",
    ),
    "a partition that the data do not have": ("[data]\npartition = 'natural'", "data.partition", "natural"),
    "an odd number of half edges": (
        "[data]\nnodes = 5\n[topology]\nname = 'k_regular'\nk = 3",
        "topology.k = 3",
        "nodes = 5",
    ),
    "more neighbours than nodes": ("[topology]\nname = 'k_regular'\nk = 12", "topology.k = 12"),
    "a hypercube of ten nodes": ("[topology]\nname = 'hypercube'", "hypercube", "nodes = 10"),
    "metropolis on a directed graph": (
        "[topology]\nname = 'directed_ring'\nweights = 'metropolis'",
        "topology.weights",
        "metropolis",
    ),
    "a missing graph file": ("[topology]\nname = 'file'\nfile = 'edges.csv'", "topology.file", "edges.csv"),
    "momentum cycled without momentum": (
        "[rates]\nname = 'one_cycle'\ncycle_momentum = true\n[training]\nmomentum = 0.0",
        "rates.cycle_momentum",
        "training.momentum",
    ),
    "momentum cycled for adam": (
        "[rates]\nname = 'one_cycle'\ncycle_momentum = true\n[training]\noptimizer = 'adam'",
        "rates.cycle_momentum",
    ),
    "no samples left for evaluation": (
        "[data]\ntrain_fraction = 1.0\n[evaluation]\non = 'local'",
        "evaluation.on",
        "train_fraction",
    ),
    "a loss that is not an import path": ("[model]\nloss = 'mse'", "model.loss", "mse"),
    "a model path that does not import": ("[model]\nname = 'not_there:Net'", "model.name", "not_there:Net"),
    "a loss path that does not import": ("[model]\nloss = 'not_there:loss'", "model.loss", "not_there:loss"),
}


@pytest.mark.parametrize(("spec", "words"), [(m[0], m[1:]) for m in MISTAKES.values()], ids=list(MISTAKES))
def test_a_mistake_in_a_spec_names_the_file_and_the_word(
    spec: str, words: tuple[str, ...], cli: Cli, tmp_path: Path
) -> None:
    Path("mistaken.toml").write_text(spec)
    refused(cli("run", "mistaken.toml", "--out", "out"), "mistaken.toml", *words)
    assert not (tmp_path / "out").exists()


def test_all_mistakes_of_a_file_are_named_at_once(cli: Cli) -> None:
    Path("mistaken.toml").write_text("rounds = 0\n[data]\nnodes = 0\nalpha = -1")
    refused(cli("run", "mistaken.toml"), "rounds = 0", "data.nodes = 0", "data.alpha = -1")


OVERRIDES = {
    "an unknown key": ("data.nodse=3", "nodes"),
    "an unknown section": ("dat.nodes=3", "data"),
    "an unknown parameter of a rule": ("rates.windwo=3", "window"),
    "an unknown model": ("model.name=mpl", "mlp"),
    "a word for a number": ("data.nodes=many", "data.nodes"),
    "no value": ("rounds", "key=value"),
    "a key below a number": ("rounds.x=1", "rounds"),
    "a hypercube of ten nodes": ("topology.name=hypercube", "data.nodes"),
    "a batch larger than any shard": ("training.batch_size=64", "256 samples"),
    "a precision that only GPUs have": ("runtime.precision=tf32", "a CPU computes in fp32 or bf16"),
}


@pytest.mark.parametrize(("override", "word"), OVERRIDES.values(), ids=list(OVERRIDES))
def test_a_mistake_in_an_override_names_the_flag_and_not_the_file(override: str, word: str, cli: Cli) -> None:
    Path("sound.toml").write_text("rounds = 2\n")
    outcome = cli("run", "sound.toml", "--set", override)
    refused(outcome, f"--set {override}", word)
    assert "sound.toml" not in outcome.err


def test_half_precision_on_a_cpu_without_the_instructions_is_rejected(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "x86_64", "avx512_bf16": False})
    refused(
        cli("run", "--set", "runtime.precision=bf16", "--set", "runtime.device=cpu"), "slower than fp32", "use fp32"
    )


@needs_bf16
def test_half_precision_with_the_batched_engine_on_a_cpu_is_rejected(cli: Cli) -> None:
    settings = ("runtime.precision=bf16", "runtime.device=cpu", "runtime.engine=batched")
    options = [part for setting in settings for part in ("--set", setting)]
    refused(cli("run", *options), 'runtime.engine = "batched"', '"auto"')


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_rejected_with_the_reason(cli: Cli) -> None:
    refused(cli("run", "--set", "runtime.device=cuda"), "--set runtime.device=cuda", "not available")


def test_a_mistake_in_the_file_is_not_attributed_to_an_override(cli: Cli) -> None:
    Path("mistaken.toml").write_text("[data]\nnodes = 0\n")
    outcome = cli("run", "mistaken.toml", "--set", "data.alpha=1")
    refused(outcome, "mistaken.toml: data.nodes = 0")
    assert "--set" not in outcome.err


def test_the_python_api_raises_the_same_message(cli: Cli, tmp_path: Path) -> None:
    Path("mistaken.toml").write_text("[training]\nbatch_size = 64\n")
    outcome = cli("run", "mistaken.toml")
    with pytest.raises(Exception, match="batch_size") as caught:
        feda2l.run("mistaken.toml")
    assert outcome.err == "\n".join([f"feda2l: {caught.value}", *caught.value.__notes__, ""])


COMMANDS = {
    "an unknown command": (("rnu",), "rnu", "run"),
    "an unknown flag": (("run", "--rezume"), "--rezume", "--resume"),
    "a flag without its value": (("run", "--set"), "--set"),
    "two values of one option": (("study", "digits-rules", "--only", "a", "b"), "b: unexpected argument", "repeat"),
    "an unknown kind of list": (("list", "rate"), "rate", "rates"),
    "a number of seeds that is not a number": (("demo", "--seeds", "x"), "--seeds", "x"),
    "no seeds": (("demo", "--seeds", "0"), "--seeds 0"),
    "a spec file that is missing": (("run", "not-there.toml"), "not-there.toml"),
    "a spec file that is a folder": (("run", "folder"), "folder"),
    "a spec file that is not text": (("run", "binary"), "binary"),
    "an unknown data set to verify": (("data", "verify", "digitz"), "digitz", "digits"),
    "an unknown data set to fetch": (("data", "fetch", "digitz"), "digitz", "digits"),
    "a missing data folder": (
        ("run", "--set", "data.name=cifar10", "--data", "not-there", "--out", "out"),
        "not-there",
        "cifar-10",
        "--data",
    ),
    "no run to evaluate": (("evaluate", "folder"), "folder", "not a run folder"),
    "no run to export": (("export", "not-there"), "not-there", "not a run folder"),
    "a run folder below a file": (("run", "--out", "binary/out"), "--out binary/out", "Not a directory"),
    "a run folder that is a file": (("run", "--out", "binary"), "--out binary"),
    "a run folder that is a file, to resume": (("run", "--resume", "--out", "binary"), "--out binary"),
    "a run folder that cannot be created": (("run", "--out", "/proc/out"), "--out /proc/out"),
    "a run folder whose name is too long": (("run", "--out", "o" * 300), "--out oooo", "too long"),
    "a folder that holds other files": (("run", "--out", "folder"), "--out folder", "not empty", "--resume"),
    "a folder that holds other files, to resume": (
        ("run", "--resume", "--out", "folder"),
        "folder",
        "not a run folder",
    ),
    "a figure below a file": (("run", "--show-partition", "--out", "binary/out"), "binary/out"),
}


@pytest.mark.parametrize(("arguments", "words"), [(c[0], c[1:]) for c in COMMANDS.values()], ids=list(COMMANDS))
def test_a_mistake_on_the_command_line_names_the_word(
    arguments: tuple[str, ...], words: tuple[str, ...], cli: Cli
) -> None:
    Path("binary").write_bytes(b"\xff\xfe\x00")
    Path("folder").mkdir()
    Path("folder/notes.txt").write_text("mine")
    refused(cli(*arguments), *words)
    assert os.listdir("folder") == ["notes.txt"]


def test_a_missing_file_names_the_option_that_set_its_path(cli: Cli) -> None:
    Path("flowers.toml").write_text('[data]\nname = "csv"\ntarget_column = "kind"\npath = "flowers.csv"')
    outcome = cli("run", "flowers.toml", "--set", "data.path=flowrs.csv", "--out", "out")
    refused(outcome, "--set data.path=flowrs.csv: ")
    refused(cli("run", "flowers.toml", "--out", "out"), "flowers.toml: ")


def test_a_spec_and_a_study_name_each_others_command(cli: Cli) -> None:
    Path("one.toml").write_text("rounds = 2\n[data]\nnodes = 3")
    Path("many.toml").write_text('name = "many"\n[axes]\n"rates.name" = ["constant", "feda2l"]')
    refused(cli("study", "one.toml"), "one.toml: this is a spec of one run; use: feda2l run one.toml")
    refused(cli("run", "many.toml"), "many.toml: this is a study of many runs; use: feda2l study many.toml")
    assert set(STUDY_KEYS) <= set(Study.model_fields) - set(Spec.model_fields)


def test_two_numbers_of_nodes_for_a_swarm_are_an_error(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "demand_peers", lambda: None)
    refused(cli("swarm", "--nodes", "3", "--set", "data.nodes=5"), "--nodes 3 and --set data.nodes=5 differ")


def test_verifying_missing_data_fails(cli: Cli) -> None:
    refused(cli("data", "verify", "cifar10", "--data", "not-there"), "cifar10", code=1)


def test_a_target_that_is_not_reached_is_a_failed_run_with_complete_records(cli: Cli) -> None:
    outcome = cli("run", *QUICK, "--set", "evaluation.target=0.99", "--set", "evaluation.smoothing=1", "--out", "out")
    refused(outcome, "evaluation.target = 0.99", "2 rounds", "out", code=1)
    assert json.loads(Path("out/summary.json").read_text())["status"] == "finished"
    # the same target on the finished run is still not reached
    again = cli("run", *QUICK, "--set", "evaluation.target=0.99", "--set", "evaluation.smoothing=1", "--out", "out")
    refused(again, "--out out", "not empty")


MODELS = """
import torch
from torch import nn

class Seven(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 7))

class Narrow(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(63, 10))

class Double(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10).double()
    def forward(self, x):
        return self.layer(x.flatten(1).double())

class Frozen(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
        self.requires_grad_(False)

class Raises(nn.Module):
    def __init__(self):
        raise RuntimeError("no such luck")

def no_model():
    return 5

def each(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")

def plain_number(outputs, targets):
    return 5

def unrelated(outputs, targets):
    return torch.tensor(1.0)

three = 3
"""


@pytest.mark.parametrize(
    ("key", "name", "word"),
    [
        ("model.name", "Seven", "[2, 7]"),
        ("model.name", "Narrow", "digits"),
        ("model.name", "Double", "float32"),
        ("model.name", "Frozen", "no trainable parameter"),
        ("model.name", "Raises", "no such luck"),
        ("model.name", "no_model", "int"),
        ("model.name", "NotThere", "NotThere"),
        ("model.loss", "each", "one number"),
        ("model.loss", "plain_number", "one number"),
        ("model.loss", "unrelated", "depends on"),
        ("model.loss", "three", "callable"),
    ],
)
def test_a_model_or_loss_that_does_not_fit_is_rejected_before_training(
    key: str, name: str, word: str, cli: Cli
) -> None:
    Path("unfit_models.py").write_text(MODELS)
    refused(cli("run", "--set", f"{key}=unfit_models:{name}"), f"--set {key}=unfit_models:{name}", word)


@pytest.mark.parametrize(
    ("module", "source", "word"),
    [("broken_module", "def (:\n", "SyntaxError"), ("raising_module", "raise RuntimeError('oh')\n", "oh")],
)
def test_a_module_that_cannot_be_imported_is_named(module: str, source: str, word: str, cli: Cli) -> None:
    Path(f"{module}.py").write_text(source)
    refused(cli("run", "--set", f"model.name={module}:Net"), f"{module}:Net", word)


def test_an_occupied_folder_is_not_changed(cli: Cli, finished: Path) -> None:
    before = {path.name: path.read_bytes() for path in finished.iterdir()}
    refused(cli("run", *QUICK, "--out", finished), f"--out {finished}", "--resume")
    assert {path.name: path.read_bytes() for path in finished.iterdir()} == before


def test_resuming_a_different_spec_names_the_keys_that_differ(cli: Cli, finished: Path) -> None:
    before = {path.name: path.read_bytes() for path in finished.iterdir()}
    outcome = cli(
        *("run", "--resume", "--out", finished, "--set", "rounds=4", "--set", "data.nodes=4"),
        *("--set", "seed=2", "--set", "rates.base=0.02", "--set", "rates.name=constant"),
    )
    refused(outcome, "--resume", "spec.toml", "seed: 1", "rates.base: 0.01", "rates.name: 'feda2l'", "0.02")
    assert "data.nodes:" not in outcome.err
    assert " rounds:" not in outcome.err
    assert {path.name: path.read_bytes() for path in finished.iterdir()} == before


def test_resuming_with_fewer_rounds_is_rejected(cli: Cli, finished: Path) -> None:
    refused(cli("run", "--resume", "--out", finished, *QUICK), "--resume", "rounds = 2", "4")


def resume(cli: Cli, folder: Path) -> Any:
    """Resume `finished` as if the run had not written its summary."""
    (folder / "summary.json").unlink()
    arguments = ("--set", "rounds=4", "--set", "data.nodes=4", "--set", "runtime.workers=0", "--quiet")
    return cli("run", "--resume", "--out", folder, *arguments)


def flip_header(data: bytes) -> bytes:
    return data[:8] + bytes(byte ^ 1 for byte in data[8:40]) + data[40:]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "garbage": lambda data: b"garbage" * 100,
    "nothing": lambda data: b"",
    "its first half": lambda data: data[: len(data) // 2],
    "all but its last byte": lambda data: data[:-1],
    "a flipped header": flip_header,
    "a header that is too long": lambda data: b"\xff" * 8 + data[8:],
    "no round": lambda data: data.replace(b'"round"', b'"rounc"', 1),
    "no rates": lambda data: data.replace(b'"rates.rates"', b'"rates.ratez"', 1),
    "no history": lambda data: data.replace(b'"rates.stability_history"', b'"rates.stability_hiztory"', 1),
    "a flipped bit in its data": lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
    "another model": lambda data: data.replace(b'"model.fc1.bias"', b'"model.fc9.bias"', 1),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_checkpoint_is_rejected_and_no_file_changes(
    damage: Callable[[bytes], bytes], cli: Cli, finished: Path
) -> None:
    checkpoint, rounds = finished / "checkpoint.safetensors", finished / "rounds.jsonl"
    damaged, lines = damage(checkpoint.read_bytes()), rounds.read_bytes()
    assert damaged != checkpoint.read_bytes()
    checkpoint.write_bytes(damaged)
    refused(resume(cli, finished), str(checkpoint))
    assert (checkpoint.read_bytes(), rounds.read_bytes()) == (damaged, lines)


@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_a_damaged_checkpoint_is_neither_evaluated_nor_exported(command: str, cli: Cli, finished: Path) -> None:
    (finished / "checkpoint.safetensors").write_bytes(b"garbage")
    refused(cli(command, finished), "checkpoint.safetensors")


@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_a_run_without_a_checkpoint_is_neither_evaluated_nor_exported(command: str, cli: Cli, finished: Path) -> None:
    (finished / "checkpoint.safetensors").unlink()
    refused(cli(command, finished), str(finished), "--resume")


@pytest.mark.parametrize("command", ["evaluate", "export"])
@pytest.mark.parametrize("node", [4, -1])
def test_a_node_that_does_not_exist_is_named(command: str, node: int, cli: Cli, finished: Path) -> None:
    refused(cli(command, finished, f"--node={node}"), f"--node {node}", "0 to 3")


def test_an_export_that_cannot_be_written_is_a_failure(cli: Cli, finished: Path) -> None:
    refused(cli("export", finished, "--out", finished / "spec.toml" / "m"), "--out", "spec.toml", code=1)


def test_records_that_end_before_the_checkpoint_are_rejected(cli: Cli, finished: Path) -> None:
    rounds = finished / "rounds.jsonl"
    cut = rounds.read_bytes()[:-20]
    rounds.write_bytes(cut)
    refused(resume(cli, finished), "rounds.jsonl", "3 complete rounds", "round 4")
    assert rounds.read_bytes() == cut


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        (lambda lines: [lines[0], lines[2], lines[1], lines[3]], "line 2"),
        (lambda lines: [lines[0], b"{}\n", *lines[2:]], "line 2"),
        (lambda lines: [*lines[:3], b"garbage\n"], "line 4"),
        (lambda lines: [*lines[:3], b"[4]\n"], "line 4"),
        (lambda lines: [*lines[:3], b"\xff\xfe\n"], "line 4"),
    ],
    ids=["out of order", "an empty record", "garbage", "not a record", "not text"],
)
def test_malformed_records_are_rejected(
    lines: Callable[[list[bytes]], list[bytes]], word: str, cli: Cli, finished: Path
) -> None:
    rounds = finished / "rounds.jsonl"
    rounds.write_bytes(b"".join(lines(rounds.read_bytes().splitlines(keepends=True))))
    refused(resume(cli, finished), "rounds.jsonl", word)


def test_a_damaged_spec_in_the_folder_is_named(cli: Cli, finished: Path) -> None:
    (finished / "spec.toml").write_text("rounds = = 4")
    refused(resume(cli, finished), str(finished / "spec.toml"))
    for command in ("evaluate", "export"):
        refused(cli(command, finished), str(finished / "spec.toml"))


def test_a_torn_summary_is_written_again(cli: Cli, finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    (finished / "summary.json").write_text('{"status": "fini')
    arguments = ("--set", "rounds=4", "--set", "data.nodes=4", "--set", "runtime.workers=0")
    assert cli("run", "--resume", "--out", finished, *arguments).code == 0
    again = json.loads((finished / "summary.json").read_text())
    assert again["final"] == summary["final"]


def test_a_second_process_cannot_use_the_same_folder(start: Callable[..., Any], cli: Cli, tmp_path: Path) -> None:
    arguments = ("run", "--set", "rounds=100000", "--set", "data.nodes=4", "--quiet")
    first = start(*arguments, "--out", "out")
    while not (tmp_path / "out" / "rounds.jsonl").exists():
        assert first.poll() is None
    refused(cli(*arguments, "--out", "out", "--resume"), "out", "another process")
    assert first.poll() is None


REAL = {
    "a misspelt key": (("run", "mistaken.toml"), 2, ("mistaken.toml", "data.nodse", "nodes")),
    "an unknown flag": (("run", "--rezume"), 2, ("--rezume",)),
    "a batch larger than the smallest shard": (("run", "--set", "training.batch_size=64"), 2, ("batch_size",)),
    "a run folder that cannot be written": (("run", "--out", "mistaken.toml/out"), 2, ("--out", "mistaken.toml/out")),
    "a target never reached": (
        ("run", *QUICK, "--set", "evaluation.target=0.99"),
        1,
        ("evaluation.target", "not reached"),
    ),
}


@pytest.mark.parametrize(("arguments", "code", "words"), REAL.values(), ids=list(REAL))
def test_a_real_process_exits_with_the_code_and_the_message(
    arguments: tuple[str, ...], code: int, words: tuple[str, ...], process: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "mistaken.toml").write_text("[data]\nnodse = 3\n")
    refused(process(*arguments), *words, code=code)
