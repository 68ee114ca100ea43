"""Invalid parameters and unsupported tasks of an algorithm are rejected before training, with a helpful message."""

import dataclasses
import math
import subprocess
import sys
from typing import Any

import pytest

import feda2l
from feda2l.algorithms import ALGORITHMS, Task
from feda2l.algorithms.fedntd import FedNTD
from feda2l.errors import FedA2LError
from feda2l.spec.spec import Spec

NOT_A_SIZE = (-1, math.nan, math.inf, "much")  # for parameters that may be 0
NOT_POSITIVE = (0, *NOT_A_SIZE)
NOT_A_SHARE = (-0.1, 1, math.nan, "much")  # outside [0, 1)
NOT_A_COUNT = (0, -1, 1.5, "many")
NOT_A_WORD = ("meen", 3)
NOT_YES_OR_NO = ("maybe", 7)

BAD: dict[str, dict[str, tuple[Any, ...]]] = {
    "fedavg": {},
    "fedprox": {"mu": NOT_A_SIZE},
    "fedyogi": {
        "rate": NOT_POSITIVE,
        "beta1": NOT_A_SHARE,
        "beta2": NOT_A_SHARE,
        "tau": NOT_POSITIVE,
        "bias_correction": NOT_YES_OR_NO,
        "first_round": NOT_A_WORD,
    },
    "fedntd": {"beta": NOT_A_SIZE, "tau": NOT_POSITIVE},
    "fedawa": {
        "regulariser": NOT_A_WORD,
        "init": NOT_A_WORD,
        "optimizer": NOT_A_WORD,
        "rate": NOT_POSITIVE,
        "optimizer_state": NOT_A_WORD,
        "steps": NOT_A_COUNT,
        "use": NOT_A_WORD,
        "scale": NOT_POSITIVE,
    },
    "dfedsam": {"radius": NOT_A_SIZE, "gossip_steps": NOT_A_COUNT},
    "dfedhpo": {
        "trials": NOT_A_COUNT,
        "eval_epochs": NOT_A_COUNT,
        "top_k": NOT_A_COUNT,
        "rate_range": ([0.1, 0.01], [0.1, 0.1], [0, 0.1], [0.1], [0.1, 0.2, 0.3], 0.1, [math.nan, 1], [0.1, math.inf]),
        "aggregator": ("ca", "GA", 3),
        "consensus": NOT_YES_OR_NO,
    },
    "fedlws": {"beta": NOT_A_SIZE, "low": (-0.1, 0.5, math.nan, "much"), "high": (0.001, -1, "much")},
    "dpsgd": {"steps": NOT_A_COUNT},
    "dfedavgm": {},
    "qg_dsgdm": {"beta": NOT_A_SHARE, "mu": NOT_A_SHARE},
    "gradient_tracking": {},
    "choco": {
        "compressor": NOT_A_WORD,
        "ratio": (0, -0.1, 1.1, math.nan, "much"),
        "bits": (1, 17, 8.5, "many"),
        "gamma": (0, -0.1, 1.1, math.nan, "much"),
    },
    "push_sum": {},
}
PAIRED_KEYS = {("fedlws", "high"): ("low", "high")}  # the message may name the other key of a pair


def test_every_parameter_of_every_algorithm_is_covered() -> None:
    assert {name: set(keys) for name, keys in BAD.items()} == {
        name: {field.name for field in dataclasses.fields(kind)} for name, kind in ALGORITHMS.items()
    }


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        pytest.param(name, key, value, id=f"{name}.{key}={value}")
        for name, keys in BAD.items()
        for key, values in keys.items()
        for value in values
    ],
)
def test_a_value_out_of_range_is_reported_with_its_key(name, key, value) -> None:
    with pytest.raises(FedA2LError) as caught:
        Spec.parse({"algorithm": {"name": name, key: value}})
    message = str(caught.value)
    keys = PAIRED_KEYS.get((name, key), (key,))
    assert message.startswith(tuple(f"spec: algorithm.{part}" for part in keys))
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [(name, key, values[0]) for name, keys in BAD.items() for key, values in keys.items() if values != NOT_YES_OR_NO],
)
def test_the_dataclass_rejects_the_same_values(name, key, value) -> None:
    """The dataclass checks ranges without a spec too. Types are checked when a spec is read."""
    with pytest.raises(FedA2LError, match="algorithm"):
        ALGORITHMS[name](**{key: value})


def assert_rejected(tmp_path: Any, *words: str, **spec: Any) -> None:
    with pytest.raises(FedA2LError) as caught:
        feda2l.run({"rounds": 1, "runtime": {"workers": 0}} | spec, out=tmp_path / "out", progress=False)
    for word in words:
        assert word in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_negative_mu_is_rejected(tmp_path) -> None:
    assert_rejected(tmp_path, "algorithm.mu = -0.1", "0 (FedAvg) or more", algorithm={"name": "fedprox", "mu": -0.1})


def test_a_radius_of_0_is_valid_and_0_gossip_steps_are_not(tmp_path) -> None:
    algorithm = {"name": "dfedsam", "radius": 0, "gossip_steps": 0}
    assert_rejected(tmp_path, "algorithm.gossip_steps = 0", "at least 1", algorithm=algorithm)


@pytest.mark.parametrize(
    ("name", "key", "right"),
    [
        ("dfedsam", "gosip_steps", "'gossip_steps'"),
        ("dfedhpo", "trails", "'trials'"),
        ("choco", "compresor", "'compressor'"),
        ("fedawa", "regularizer", "'regulariser'"),
        ("fedavg", "buffer", "'buffers'"),
        ("fedprox", "radius", "known: name, buffers, mu"),
    ],
)
def test_the_error_for_an_unknown_parameter_suggests_the_closest_name(tmp_path, name, key, right) -> None:
    assert_rejected(tmp_path, f"algorithm.{key}: unknown key", right, algorithm={"name": name, key: 1})


def test_all_mistakes_of_an_algorithm_are_reported_together() -> None:
    with pytest.raises(FedA2LError) as caught:
        Spec.parse({"algorithm": {"name": "fedyogi", "rate": "fast", "tua": 1, "bias_correction": "maybe"}})
    assert len(str(caught.value).splitlines()) == 3


STRICT = [name for name, kind in ALGORITHMS.items() if kind.mixing in ("doubly_stochastic", "symmetric")]


def test_which_algorithms_need_balanced_weights() -> None:
    assert STRICT == ["dpsgd", "dfedavgm", "qg_dsgdm", "gradient_tracking", "choco"]


@pytest.mark.parametrize("name", STRICT)
def test_a_directed_ring_with_equal_shards_is_balanced_but_not_symmetric(tmp_path, name) -> None:
    spec = {"topology": {"name": "directed_ring", "weights": "uniform"}, "algorithm": {"name": name}}
    if name == "choco":
        assert_rejected(tmp_path, "symmetric weights", "push_sum", **spec)
        return
    settings = spec | {"rounds": 1, "data": {"nodes": 4, "partition": "iid"}, "runtime": {"workers": 0}}
    assert feda2l.run(settings, out=tmp_path / "out", progress=False).summary["mixing"]["doubly_stochastic"]


@pytest.mark.parametrize("name", STRICT)
def test_sample_weights_are_rejected_with_a_suggestion(tmp_path, name) -> None:
    graph = {"name": "ring", "weights": "samples"}
    assert_rejected(tmp_path, f'algorithm.name = "{name}"', '"metropolis"', topology=graph, algorithm={"name": name})


def test_fedntd_needs_classes() -> None:
    """tests/acceptance/test_series_runs.py checks this end to end on a real series."""
    with pytest.raises(FedA2LError, match=r'algorithm.name = "fedntd" .*no classes'):
        FedNTD().check(Task(classes=False, optimizer="sgd", momentum=0.9, precision="fp32"))


@pytest.mark.parametrize(
    ("name", "task", "word"),
    [
        ("fedntd", Task(False, "sgd", 0.9, "fp32"), "classes"),
        ("qg_dsgdm", Task(True, "adam", 0.0, "fp32"), 'training.optimizer = "sgd"'),
        ("qg_dsgdm", Task(True, "sgd", 0.9, "fp32"), "training.momentum = 0"),
        ("gradient_tracking", Task(True, "adamw", 0.0, "fp32"), 'training.optimizer = "adamw"'),
        ("dfedsam", Task(True, "sgd", 0.9, "bf16"), 'runtime.precision = "bf16"'),
    ],
)
def test_a_task_that_an_algorithm_does_not_support_is_rejected(name, task, word) -> None:
    with pytest.raises(FedA2LError, match=f'algorithm.name = "{name}"') as caught:
        ALGORITHMS[name]().check(task)
    assert word in str(caught.value)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_supports_a_plain_task(name) -> None:
    ALGORITHMS[name]().check(Task(True, "sgd", 0.0, "fp32"))


@pytest.mark.parametrize(
    ("name", "training", "word"),
    [("qg_dsgdm", {"momentum": 0.9}, "momentum"), ("gradient_tracking", {"optimizer": "adam"}, "adam")],
)
def test_a_run_with_an_unsupported_task_is_rejected(tmp_path, name, training, word) -> None:
    assert_rejected(tmp_path, f'algorithm.name = "{name}"', word, training=training, algorithm={"name": name})


def test_the_command_line_exits_with_code_2_and_no_traceback(tmp_path) -> None:
    flags = ("--set", "algorithm.name=dfedhpo", "--set", "algorithm.rate_range=[0.1, 0.01]")
    command = [sys.executable, "-m", "feda2l", "run", *flags]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("feda2l: --set algorithm.rate_range=[0.1, 0.01]: algorithm.rate_range = ")
    assert "this range is empty" in done.stderr
    assert "Traceback" not in done.stderr
    assert not any(tmp_path.iterdir())
