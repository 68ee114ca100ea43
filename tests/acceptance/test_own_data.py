"""A user's own data end to end: images, a table, a series and a function; and the message of every mistake."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from PIL import Image

import feda2l
from feda2l.errors import FedA2LError
from run_files import SAME

Cli = Callable[..., Any]
SMALL = {"rates": {"name": "constant", "base": 0.05}, "runtime": {"workers": 0}}
SITES = ("north", "south", "west")


def pictures(folder: Path) -> dict[str, Any]:
    """Bright and dark images of 6 x 6 pixels from three nodes."""
    random, nodes = Random(1), ["path,node"]
    for number in range(270):
        kind, level = ("dark", 60) if number % 2 else ("bright", 190)
        name = f"train/{kind}/{number:03d}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.frombytes("L", (6, 6), bytes(level + random.randrange(-50, 51) for _ in range(36))).save(folder / name)
        nodes.append(f"{name},{SITES[number % 3]}")
    (folder / "nodes.csv").write_text("\n".join(nodes))
    return {"name": "folder", "path": str(folder), "partition": "natural"}


def table(folder: Path) -> dict[str, Any]:
    """Three classes at three corners of a square, from three sites."""
    random, lines = Random(1), ["width,height,kind,site"]
    for number in range(300):
        kind = number % 3
        width, height = random.gauss(10 * (kind == 1), 2), random.gauss(10 * (kind == 2), 2)
        lines.append(f"{width:.4f},{height:.4f},{('iris', 'rose', 'tulip')[kind]},{SITES[number // 100]}")
    folder.mkdir(exist_ok=True)
    (folder / "flowers.csv").write_text("\n".join(lines))
    return {"name": "csv", "path": str(folder / "flowers.csv"), "target_column": "kind", "node_column": "site"}


def waves(folder: Path) -> dict[str, Any]:
    """Two oscillating variates at three sites with different scales; some cells are empty."""
    lines = ["site,level,flow"]
    for number, site in enumerate(SITES):
        for t in range(200):
            level, flow = math.sin(t / 3), math.cos(t / 3)
            lines.append(f"{site},{(level + 3) * 10**number:.4f},{'' if t == 50 else f'{flow:.4f}'}")
    folder.mkdir(exist_ok=True)
    (folder / "river.csv").write_text("\n".join(lines))
    series = {"name": "csv", "path": str(folder / "river.csv"), "node_column": "site", "input_length": 16, "horizon": 4}
    return {**series, "stride": 2}


MODULE = """
from dataclasses import dataclass, replace
import torch
from torch import nn
from feda2l.data.samples import Labelled

@dataclass
class Corners:
    train: object
    test: object
    groups: object = None
    test_groups: object = None
    name: str = "corners"
    input: tuple = (2,)
    classes: int | None = 4
    class_names: tuple = ("a", "b", "c", "d")

def samples(count, seed):
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    return Labelled(x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long(), lambda x: x.float())

def corners():
    return Corners(samples(400, 1), samples(100, 2), groups=torch.arange(400) % 4)

def without_nodes():
    return replace(corners(), groups=None)

class Net(nn.Module):
    def __init__(self, classes, input):
        super().__init__()
        self.body, self.head = nn.Linear(input[0], 32), nn.Linear(32, classes)
    def forward(self, x):
        return self.head(torch.relu(self.body(x)))

class Numbers(Labelled):
    def targets(self, index):
        return self.x[index].sum(1)

def sums():
    x, z = (torch.randn(n, 2, generator=torch.Generator().manual_seed(n)) for n in (200, 50))
    train, test = (Numbers(v, v, lambda v: v) for v in (x, z))
    return Corners(train, test, classes=None, class_names=())

class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 1)
    def forward(self, x):
        return self.head(x).squeeze(-1)

class Short(nn.Module):
    def __init__(self, input, horizon):
        super().__init__()
        self.horizon, self.channels = horizon, input[1]
        self.head = nn.Linear(input[0], horizon)
    def forward(self, x):
        return self.head(x.transpose(1, 2)).transpose(1, 2)

class Flat(Short):
    def forward(self, x):
        return super().forward(x)[:, :1]

# mistakes of a function
class Nothing:
    pass
def raises():
    raise KeyError("price")
def nothing():
    return Nothing()
def no_targets():
    return replace(corners(), train=Nothing())
def empty():
    return replace(corners(), test=samples(0, 1))
def doubles():
    return replace(corners(), train=Labelled(torch.zeros(9, 2).double(), torch.zeros(9).long(), lambda x: x))
def other_shape():
    return replace(corners(), input=(3,))
def too_few_classes():
    return replace(corners(), classes=3, class_names=("a", "b", "c"))
def names():
    return replace(corners(), class_names=("a",))
def float_labels():
    return replace(corners(), train=Labelled(torch.zeros(9, 2), torch.zeros(9), lambda x: x))
def integer_numbers():
    return replace(corners(), classes=None, class_names=())
def breaks():
    return replace(corners(), test=Labelled(None, torch.zeros(9).long(), lambda x: x))
def short_groups():
    return replace(corners(), groups=torch.zeros(3).long())
def numbers_of_groups():
    return replace(sums(), groups=torch.arange(200) % 2)
def node_without_tests():
    return replace(corners(), test_groups=torch.zeros(100).long())
five = 5
"""


@pytest.fixture
def own(cli: Cli) -> Path:
    """A user's module in the current folder; its content is constant, so it can stay imported."""
    Path("own_corners.py").write_text(MODULE)
    return Path.cwd()


def function(folder: Path) -> dict[str, Any]:
    return {"name": "own_corners:corners", "partition": "natural"}


KINDS = {
    "folder": (pictures, {}, 3),
    "table": (table, {}, 3),
    "series": (waves, {"model": {"name": "own_corners:Short"}}, 3),
    "function": (function, {"model": {"name": "own_corners:Net"}}, 4),
}


@pytest.mark.parametrize("kind", KINDS)
def test_own_data_train_at_their_nodes_and_resume_to_the_same_bytes(kind: str, own: Path, tmp_path: Path) -> None:
    make, more, nodes = KINDS[kind]
    spec = {**SMALL, **more, "rounds": 6, "data": make(tmp_path / "own")}
    run = feda2l.run(spec, out=tmp_path / "whole", progress=False)
    assert run.spec.data.nodes == nodes
    assert run.spec.data.partition == "natural"
    summary = run.summary
    if kind == "series":
        assert summary["mse"]["final"] < 0.5 * summary["naive"]["last_value"]["mse"]
    else:
        assert summary["accuracy"]["final"] > 0.85
    feda2l.run({**spec, "rounds": 2}, out=tmp_path / "parts", progress=False)
    feda2l.run(spec, out=tmp_path / "parts", resume=True, progress=False)
    for name in SAME:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_line_runs_shows_and_evaluates_own_data(kind: str, own: Path, cli: Cli) -> None:
    make, more, nodes = KINDS[kind]
    data = make(own / "own")
    values = {"rounds": 1, "runtime.workers": 0, **{f"data.{key}": value for key, value in data.items()}}
    values |= {f"model.{key}": value for key, value in more.get("model", {}).items()}
    sets = [word for key, value in values.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    shown = cli("run", *sets, "--show-partition")
    assert shown.code == 0, shown.err
    assert ("windows of each site" if kind == "series" else "samples of each class") in shown.out
    outcome = cli("run", *sets, "--out", "done", "--quiet")
    assert outcome.code == 0, outcome.err
    assert ("naive forecasts" in outcome.out) == (kind == "series")
    evaluated = cli("evaluate", "done")
    assert evaluated.code == 0, evaluated.err
    assert f"node {nodes - 1}" in evaluated.out
    again = cli("run", *sets, "--out", "done", "--resume")
    assert "already finished" in again.err


def test_numbers_that_are_not_a_series_work_too(own: Path) -> None:
    spec = {**SMALL, "rounds": 8, "data": {"name": "own_corners:sums", "partition": "iid", "nodes": 2}}
    run = feda2l.run({**spec, "model": {"name": "own_corners:Sum"}}, out="sums", progress=False)
    assert run.summary["mse"]["final"] < 0.01
    assert "naive" not in run.summary


def test_data_with_named_nodes_can_be_partitioned_differently(own: Path) -> None:
    data = {**table(own / "own"), "partition": "iid", "nodes": 2}
    run = feda2l.run({**SMALL, "rounds": 1, "data": data}, out="iid", progress=False)
    assert run.spec.data.nodes == 2


# mistakes


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ({"data.name": "folder"}, 'data.path is missing: data.name = "folder" needs it'),
        ({"data.name": "csv"}, 'data.path is missing: data.name = "csv" needs it'),
        ({"data.name": "folder", "data.path": "nowhere"}, "nowhere/train is not a folder; expected FOLDER/train/CLASS"),
        ({"data.name": "csv", "data.path": "no.csv"}, "no.csv cannot be read: No such file or directory"),
        ({"data.name": "csv", "data.path": "no.csv", "data.target_column": "x"}, "no.csv cannot be read: No such file"),
        ({"data.name": "cvs"}, "data.name = 'cvs' is unknown; did you mean 'csv'"),
        ({"table.target_column": "knd"}, "own/flowers.csv has no column 'knd'; did you mean 'kind'"),
        ({"table.node_column": "sites"}, "own/flowers.csv has no column 'sites'; did you mean 'site'"),
        ({"table.feature_columns": ["depth"]}, "own/flowers.csv has no column 'depth'"),
        (
            {"table.feature_columns": ["site"]},
            "own/flowers.csv, line 2, column 'site': expected a number, found 'north'",
        ),
        ({"table.nodes": 7}, "these data come from 3 nodes, got data.nodes = 7"),
        ({"table.model": "timer"}, "model.name = 'timer'"),
        ({"table.model": "cnn"}, "model.name = 'cnn'"),
        ({"table.model": "own_corners:Net"}, "model.name = 'own_corners:Net'"),
        ({"table.partition": "time"}, 'data.partition = "time" needs a time series; csv is not one'),
        ({"series.node_column": "sites"}, "own/river.csv has no column 'sites'; did you mean 'site'"),
        ({"series.feature_columns": ["speed"]}, "own/river.csv has no column 'speed'; known: site, level, flow"),
        (
            {"series.node_column": None},
            "river.csv, line 2, column 'site': expected a number or an empty cell, found 'north';",
        ),
        ({"series.horizon": 500}, "river: north has no train window of 16 + 500 rows"),
        ({"series.model": "mlp"}, "model.name = 'mlp'"),
        (
            {"series.model": "own_corners:Flat"},
            "model.name = 'own_corners:Flat': its output for 2 samples has shape [2, 1, 2]",
        ),
        (
            {"series.partition": "dirichlet"},
            'data.partition = "dirichlet" needs classes; csv has none; choose natural',
        ),
        ({"data.name": "own_corners:absent"}, 'data.name = "own_corners:absent" cannot be imported'),
        (
            {"data.name": "own_corners:five"},
            'data.name = "own_corners:five" is a int, which is not callable',
        ),
        ({"data.name": "own_corners:raises"}, "data.name = 'own_corners:raises' failed: KeyError: 'price'"),
        (
            {"data.name": "own_corners:nothing"},
            "returned a Nothing without class_names, classes, groups, input, name, test, test_groups, train; "
            "feda2l.data.samples.Dataset lists what it needs",
        ),
        (
            {"data.name": "own_corners:no_targets"},
            "train is a Nothing without __len__, inputs, targets, to; feda2l.data.samples.Samples lists what it needs",
        ),
        ({"data.name": "own_corners:empty"}, "test has no samples"),
        (
            {"data.name": "own_corners:doubles"},
            "train returns inputs of shape [2, 2] and torch.float64 for 2 samples, expected",
        ),
        ({"data.name": "own_corners:other_shape"}, "for 2 samples, expected shape [2, 3] and torch.float32"),
        ({"data.name": "own_corners:too_few_classes"}, "train has classes 0..3, expected 0..2"),
        ({"data.name": "own_corners:names"}, "4 classes have 1 class_names"),
        ({"data.name": "own_corners:numbers_of_groups"}, "2 groups have 0 class_names"),
        (
            {
                "data.name": "own_corners:node_without_tests",
                "data.partition": "natural",
                "data.model": "own_corners:Net",
            },
            "own_corners:node_without_tests: node 1 has no test samples (it is missing from test_groups)",
        ),
        (
            {"data.name": "own_corners:float_labels"},
            "train returns targets of shape [2] and torch.float32 for 2 samples, expected",
        ),
        (
            {"data.name": "own_corners:integer_numbers"},
            "train returns targets of shape [2] and torch.int64, expected float32",
        ),
        ({"data.name": "own_corners:breaks"}, "reading samples of test failed: TypeError: "),
        (
            {"data.name": "own_corners:short_groups"},
            "groups must be None or a tensor with one node per sample (400 samples)",
        ),
        (
            {"data.name": "own_corners:without_nodes", "data.partition": "natural"},
            'data.partition = "natural": own_corners:without_nodes does not define which node a sample belongs to',
        ),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(sets: dict[str, Any], words: str, own: Path, cli: Cli) -> None:
    values: dict[str, Any] = {}
    for key, value in sets.items():
        kind, _, name = key.partition(".")
        if kind in ("table", "series"):
            made = (table if kind == "table" else waves)(Path("own"))
            values |= {f"data.{inner}": item for inner, item in made.items()}
            values["model.name"] = "mlp" if kind == "table" else "own_corners:Short"
        values["model.name" if name == "model" else f"data.{name}"] = value
    given = [
        word for key, value in values.items() if value is not None for word in ("--set", f"{key}={json.dumps(value)}")
    ]
    outcome = cli("run", *given, "--out", "out")
    assert outcome.code == 2, outcome.out + outcome.err
    assert words in outcome.err
    assert "Traceback" not in outcome.err
    assert not Path("out").exists()


def test_the_python_api_raises_the_same_message(own: Path) -> None:
    with pytest.raises(FedA2LError, match=r"data\.path is missing"):
        feda2l.run({"data": {"name": "folder"}}, out="out")


def test_a_data_set_of_one_sample_is_an_error_without_a_traceback(own: Path) -> None:
    single = "def single():\n    return replace(without_nodes(), train=samples(1, 1))\n"
    Path("own_single.py").write_text(MODULE + single)
    with pytest.raises(FedA2LError, match="10 nodes of at least 40 samples need 400 samples, there are 1"):
        feda2l.run({"data": {"name": "own_single:single"}, "model": {"name": "own_single:Net"}}, out="out")
