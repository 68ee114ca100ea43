"""The public names of `feda2l`, the imports it triggers, and the drop-in example."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import feda2l

EXAMPLE = Path(__file__).parents[1] / "examples" / "feda2l_in_your_loop.py"
HEAVY = [
    "cryptography",
    "cyclopts",
    "matplotlib",
    "networkx",
    "optuna",
    "polars",
    "pooch",
    "pydantic",
    "rich",
    "safetensors",
    "scipy",
    "sklearn",
    "zenoh",
]


def python(*arguments: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_needs_torch_and_nothing_else_heavy():
    assert python("-c", f"import sys, feda2l; print([m for m in {HEAVY} if m in sys.modules])") == "[]\n"


def test_public_names():
    assert set(feda2l.__all__) == {"FedA2L", "Run", "__version__", "equations", "layer_groups", "run", "study"}
    assert feda2l.__version__[0].isdigit()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = feda2l.nothing


def test_example_learns_and_adapts():
    lines = python(str(EXAMPLE)).splitlines()
    assert [line.split(":")[0] for line in lines] == ["round 10", "round 20", "round 30", "round 40"]
    accuracy = [float(line.split("accuracy ")[1].split(",")[0]) for line in lines]
    assert accuracy[-1] > 0.85  # chance is .1; an isolated node has samples of only 4 of the 10 digits
    assert lines[0].endswith("rates 0.0500 0.0500")  # warm-up
    assert "0.0500" not in lines[-1]


def test_example_marks_its_lines_and_stays_short():
    lines = EXAMPLE.read_text().splitlines()
    assert len(lines) <= 50
    assert sum("# <-" in line for line in lines) == 6
