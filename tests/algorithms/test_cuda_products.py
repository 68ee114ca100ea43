"""The Triton kernel of inner products equals float64's; by Triton's interpreter, so no GPU is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")


def test_products_equal_float64s() -> None:
    # a process of its own: whether a kernel is interpreted is settled when it is defined
    script = Path(__file__).with_name("interpreted_products.py")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
