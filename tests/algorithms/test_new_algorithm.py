"""A user's algorithm or rate rule by import path, and the worked example of docs/add-an-algorithm.md."""

import inspect
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import feda2l
from feda2l.algorithms import ALGORITHMS, PARTS, Algorithm, FedAvg
from feda2l.errors import FedA2LError
from feda2l.rates import Schedule, Setting
from feda2l.spec.spec import Spec

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "new_algorithm.py"
MEDIAN = ROOT / "examples" / "coordinate_median.py"
PAGE = (ROOT / "docs" / "add-an-algorithm.md").read_text()
SLOWMO = {"name": "new_algorithm:SlowMo", "beta": 0.5}
FILES = ("rounds.jsonl", "checkpoint.safetensors")


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE.parent)


def spec(**more: Any) -> dict[str, Any]:
    return {
        "rounds": 3,
        "data": {"nodes": 5},
        "topology": {"name": "ring"},
        "rates": {"warmup_rounds": 1, "window": 2},
        "runtime": {"workers": 0, "checkpoint_seconds": 0},
    } | more


def content(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in FILES]


def run(settings: dict[str, Any], out: Path, **options: Any) -> list[bytes]:
    return content(feda2l.run(settings, out=out, progress=False, **options).path)


# --- the worked example ------------------------------------------------------------------------------------


def test_slowmo_without_momentum_is_fedavg(tmp_path):
    shared = {"rounds": 5, "data": {"nodes": 5}, "topology": {"name": "ring"}}
    limit = {"name": "new_algorithm:SlowMo", "beta": 0.0, "alpha": 1.0}
    fedavg = feda2l.run(shared, out=tmp_path / "fedavg", progress=False)
    slowmo = feda2l.run(shared | {"algorithm": limit}, out=tmp_path / "slowmo", progress=False)
    assert (slowmo.path / "rounds.jsonl").read_bytes() == (fedavg.path / "rounds.jsonl").read_bytes()


def test_slowmo_by_hand() -> None:
    from new_algorithm import SlowMo

    slow = torch.zeros(1, 2)
    states = SimpleNamespace(
        base=torch.tensor([[1.0, 2.0]]),
        state={"slow": slow},
        rates=torch.tensor([[0.5, 0.0]]),
        expand=lambda values: values,
    )
    algorithm = SlowMo(beta=0.5, alpha=2.0)

    def accept(average: list[float]) -> list[list[float]]:
        values: list[list[float]] = algorithm.accept(states, {}, {"model": torch.tensor([average])}).tolist()
        return values

    # u = (1 - 0.75) / 0.5 = 0.5 and A = 1 - 2 x 0.5 x 0.5; at rate 0 the step is twice the step to the average
    assert accept([0.75, 2.25]) == [[0.5, 2.5]]
    assert slow.tolist() == [[0.5, 0.0]]
    # u = 0.5 x 0.5 + (1 - 1.25) / 0.5 = -0.25 and A = 1 + 2 x 0.5 x 0.25
    assert accept([1.25, 2.0]) == [[1.25, 2.0]]
    assert slow.tolist() == [[-0.25, 0.0]]


def test_the_example_runs_unchanged(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, EXAMPLE], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"fedavg: best accuracy 0\.\d{3}\nslowmo: best accuracy 0\.\d{3}\n", done.stdout)


def test_the_median_by_hand() -> None:
    from coordinate_median import CoordinateMedian

    def median(*models: list[float]) -> list[float]:
        neighbourhood = SimpleNamespace(receive={"model": torch.tensor(models)}.__getitem__)
        values: list[float] = CoordinateMedian().combine(neighbourhood).tolist()
        return values

    assert median([1.0, 5.0], [2.0, -9.0], [1000.0, 4.0]) == [2.0, 4.0]
    assert median([1.0, 5.0], [2.0, 7.0], [4.0, 9.0], [1000.0, 9.0]) == [3.0, 8.0]


def test_a_run_takes_the_median_of_each_neighbourhood(start: Any) -> None:
    """On a ring, every model is the median of the trained models of the node and its two neighbours."""
    loop = start(spec(algorithm={"name": "coordinate_median:CoordinateMedian"}, model={"init": "per_node"}))
    next(loop.rounds())
    state = loop.runs[0].state
    expected = [state.trained[[(node - 1) % 5, node, (node + 1) % 5]].median(dim=0).values for node in range(5)]
    assert torch.equal(state.base, torch.stack(expected))


def test_the_page_shows_the_examples_and_the_limit_test_verbatim() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    limit = inspect.getsource(test_slowmo_without_momentum_is_fedavg)
    assert blocks == [EXAMPLE.read_text(), MEDIAN.read_text(), limit]


def test_the_specs_of_the_page_are_valid() -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert [Spec.parse(tomllib.loads(block)).algorithm.name for block in blocks] == ["new_algorithm:SlowMo"]


def test_the_page_names_every_hook_and_the_algorithms_that_use_it() -> None:
    hooks = [
        name
        for name, value in vars(Algorithm).items()
        if (inspect.isfunction(value) or isinstance(value, property)) and not name.startswith("_")
    ]
    helpers = {"demand", "overrides", "trains_plainly", "kind", "averages_plainly"}
    rows = dict(re.findall(r"^\| `(\w+)[^|]*\|.*\| ([^|]*) \|$", PAGE, re.MULTILINE))
    assert list(rows) == [hook for hook in hooks if hook not in helpers]
    for hook, users in rows.items():
        overriding = [name for name, kind in (ALGORITHMS | PARTS).items() if kind().overrides(hook)]
        assert re.findall(r"`(\w+)`", users) == overriding, hook


# --- by import path ----------------------------------------------------------------------------------------


class Stopped(Exception):
    """Stand in for a process that ends in the middle of a run."""


def stop(record: dict[str, Any]) -> None:
    if record["round"] == 2:
        raise Stopped


def test_a_user_algorithm_packs_resumes_and_trains_in_workers(tmp_path: Path) -> None:
    settings = spec(name="custom", algorithm=SLOWMO)
    whole = run(settings, tmp_path / "whole")
    assert whole != run(spec(name="plain"), tmp_path / "plain")
    feda2l.run([settings, spec(name="plain"), spec(name="other", seed=2)], out=tmp_path / "pack", progress=False)
    assert content(tmp_path / "pack" / "custom") == whole
    assert run(settings | {"runtime": {"workers": 2}}, tmp_path / "workers") == whole
    with pytest.raises(Stopped):
        run(settings, tmp_path / "broken", on_round=stop)
    assert run(settings, tmp_path / "broken", resume=True) == whole
    again = feda2l.Run(tmp_path / "whole").spec.algorithm
    assert (again.name, again.algorithm.beta, again.algorithm.alpha) == ("new_algorithm:SlowMo", 0.5, 1.0)
    # the spec that a run writes can be run again
    assert run(tomllib.loads((tmp_path / "whole" / "spec.toml").read_text()), tmp_path / "again") == whole


@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm):
    """An algorithm with the class name of a shipped one but a different definition."""

    mu: float = 0.01

    def gradient(self, gradient: Tensor, parameters: Tensor, base: Tensor, state: Any) -> Tensor:
        return gradient.mul_(1 + self.mu)


def test_two_algorithms_of_one_class_name_stay_separate_in_a_pack(tmp_path: Path) -> None:
    specs = {
        name: spec(name=name, algorithm={"name": path, "mu": 0.5})
        for name, path in (("custom", f"{__name__}:FedProx"), ("shipped", "fedprox"))
    }
    alone = {name: run(settings, tmp_path / name) for name, settings in specs.items()}
    feda2l.run(list(specs.values()), out=tmp_path / "pack", progress=False)
    assert {name: content(tmp_path / "pack" / name) for name in specs} == alone


@dataclass(frozen=True, kw_only=True)
class Halving(Schedule):
    """A user's rate rule: halve the rate every `every` rounds."""

    every: int = 1

    def factor(self, index: int, setting: Setting) -> float:
        return 0.5 ** (index // self.every)


def test_a_user_rate_rule(tmp_path: Path) -> None:
    settings = spec(rates={"name": f"{__name__}:Halving", "base": 0.04})
    rates = feda2l.run(settings, out=tmp_path / "run", progress=False).layers
    assert [rates.filter(round=r)["rate"].unique().to_list() for r in (1, 2, 3)] == [[0.04], [0.02], [0.01]]
    with pytest.raises(FedA2LError, match=r"rates\.evry: unknown key; did you mean 'every'"):
        Spec.parse(spec(rates={"name": f"{__name__}:Halving", "evry": 2}))


class Undecorated(FedAvg):
    """A subclass without @dataclass, whose parameter would be ignored."""

    strength: float = 1.0


def make() -> Algorithm:
    return FedAvg()


MISTAKES: dict[str, tuple[str, str]] = {
    "no such module": ("not_there:Mine", 'algorithm.name = "not_there:Mine" cannot be imported'),
    "no such class": ("new_algorithm:FastMo", "has no attribute 'FastMo'"),
    "another class": (f"{__name__}:Halving", "is a class, but not a subclass of feda2l.algorithms.Algorithm"),
    "a function": (f"{__name__}:make", "is a function, but not a subclass of feda2l.algorithms.Algorithm"),
    "no dataclass": (f"{__name__}:Undecorated", "put @dataclass(frozen=True, kw_only=True) above it"),
    "a misspelt name": ("fedprx", "did you mean 'fedprox'?"),
}


@pytest.mark.parametrize(("name", "words"), MISTAKES.values(), ids=list(MISTAKES))
def test_a_path_that_is_not_an_algorithm_is_rejected(name: str, words: str) -> None:
    with pytest.raises(FedA2LError) as caught:
        Spec.parse({"algorithm": {"name": name}}, "mine.toml")
    assert str(caught.value).startswith("mine.toml: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"beat": 0.5}, "mine.toml: algorithm.beat: unknown key; did you mean 'beta'?"),
        ({"beta": "much"}, "mine.toml: algorithm.beta = 'much': input should be a valid number"),
        ({"beta": 1.0}, "mine.toml: algorithm.beta = 1.0: must be at least 0 and below 1"),
    ],
)
def test_an_invalid_parameter_of_a_user_algorithm_is_rejected(parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(FedA2LError) as caught:
        Spec.parse({"algorithm": SLOWMO | parameters}, "mine.toml")
    assert words in str(caught.value)


def test_a_changed_class_does_not_resume_an_old_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class now declares state that the checkpoint does not hold."""
    import new_algorithm

    settings = spec(algorithm=SLOWMO)
    with pytest.raises(Stopped):
        run(settings, tmp_path / "run", on_round=stop)
    monkeypatch.setattr(new_algorithm.SlowMo, "state", ("slow", "slower"))
    with pytest.raises(FedA2LError, match=r"algorithm\.slower\.\S+ should be .* found nothing"):
        run(settings, tmp_path / "run", resume=True)
