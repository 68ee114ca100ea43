"""Fixtures shared by several test packages."""

import fcntl
import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from feda2l import data
from feda2l.runs.assemble import assemble, populate
from feda2l.runs.datasets import Loaded
from feda2l.simulate.loop import RoundLoop, one_thread
from feda2l.spec.spec import Spec

collect_ignore_glob = ["conftest.py", "*/conftest.py"]  # no doctests here; pytest cannot collect one name twice
SHARED = Path(__file__).parents[2] / "shared" / "data"
PACKED = ("cifar10", "cifar100", "series")
numbers = itertools.count()


@pytest.fixture(autouse=True)
def _no_warning_issued_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """`warn_once` warns again in each test."""
    monkeypatch.setattr("feda2l.errors._warned", set())


@pytest.fixture(scope="session")
def official() -> Path:
    """A data folder with the CIFAR and series files as their authors publish them.

    The folder is decoded once and kept between test runs. Tests read it and never write to it. CIFAR-100 has the
    official labels and pictures, but the order within each class is not the official one.
    """
    decoder = SHARED / "decode.py"
    if not decoder.exists():
        pytest.skip(f"needs the packed data sets in {SHARED}")
    version = hashlib.sha256(decoder.read_bytes() + " ".join(PACKED).encode()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"feda2l-official-{os.getuid()}-{version}"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the first worker decodes, the others wait for it
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            command = [sys.executable, str(decoder), *PACKED, "--official", str(partial)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            partial.rename(folder)
    return folder


@pytest.fixture
def interpreted() -> Callable[[Path], None]:
    """Run a script in Triton's interpreter, which needs no GPU, and check that it exits with code 0."""
    pytest.importorskip("triton", reason="triton is not installed")

    def run(script: Path) -> None:
        # in a separate process, because Triton chooses the interpreter when a kernel is defined
        environment = os.environ | {"TRITON_INTERPRET": "1"}
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
        if "only 0-dimensional arrays can be converted" in done.stderr:
            pytest.skip("this Triton's interpreter (3.6, say) cannot read a loop bound with this numpy (2.4 or later)")
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture
def one_thread_each() -> Iterator[None]:
    """Use one thread for sums, as every runtime does."""
    with one_thread():
        yield


@pytest.fixture(scope="session")
def digits() -> Loaded:
    return Loaded.of(data.load("digits"))


@pytest.fixture
def start(digits: Loaded) -> Iterator[Callable[..., RoundLoop]]:
    """`start(spec, ..., workers=0)` builds one pack of these runs at round 0. The default data set is digits."""
    engines = []

    def make(*specs: dict[str, Any], loaded: Loaded = digits, workers: int = 0) -> RoundLoop:
        runs = [assemble(Spec.parse(spec), loaded) for spec in specs]
        engine = populate(runs)
        engine.start(workers)
        engines.append(engine)
        return RoundLoop(engine, [run.live for run in runs])

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """`module(source)` writes an importable module, as a user would, and returns its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source: str) -> str:
        name = f"user_module_{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(f"import torch\nfrom torch import nn\n\n{source}")
        return name

    return write
