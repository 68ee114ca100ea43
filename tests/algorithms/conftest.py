"""Packs of runs on the digits or on data of a test's own, ready to train in this process."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from feda2l import data
from feda2l.experiment.assemble import assemble, populate
from feda2l.experiment.datasets import Loaded
from feda2l.experiment.spec import Spec
from feda2l.simulate.simulator import Simulator

numbers = itertools.count()


@pytest.fixture(autouse=True)
def _one_thread(one_thread_each: None) -> None:
    """For every test of this folder."""


@pytest.fixture(scope="session")
def digits() -> Loaded:
    return Loaded.of(data.load("digits"))


@pytest.fixture
def start(digits: Loaded) -> Iterator[Callable[..., Simulator]]:
    """`start(spec, ...)`: the runs of these specs as one pack at round 0, on the digits unless told."""
    engines = []

    def make(*specs: dict[str, Any], loaded: Loaded = digits) -> Simulator:
        runs = [assemble(Spec.parse(spec), loaded) for spec in specs]
        engine = populate(runs)
        engine.start(0)
        engines.append(engine)
        return Simulator(engine, [run.simulation for run in runs])

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """`module(source)`: the name of an importable module with this source, as a user would have one."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source: str) -> str:
        name = f"own_module_{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(f"import torch\nfrom torch import nn\n\n{source}")
        return name

    return write
