"""What several test packages share."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from feda2l.simulate.simulator import one_thread

collect_ignore_glob = ["conftest.py", "*/conftest.py"]  # no doctests there, and one name cannot be collected twice
SHARED = Path(__file__).parents[2] / "shared" / "data"
PACKED = ("cifar10", "cifar100", "series")


@pytest.fixture(scope="session")
def official() -> Path:
    """A data folder with the CIFAR and series files as their authors publish them, decoded once and kept between runs.

    Tests read it and never write to it. CIFAR-100 has the official labels and pictures, in an order of its own
    within each class.
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
def one_thread_each() -> Iterator[None]:
    """Sums are made by one thread, as in every runtime."""
    with one_thread():
        yield
