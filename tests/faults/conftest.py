"""Fixtures for tests of faults. Sums use one thread, as in the engines."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread_each: None) -> None:
    """Use one thread in every test of this folder."""


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., str]:
    """`plan("crash node=1 round=3", ...)` returns the path of a plan with these faults. Values are TOML."""

    def write(*faults: str, head: str = "") -> str:
        path = tmp_path / "faults.toml"
        lines = [head]
        for fault in faults:
            kind, *pairs = fault.split(" ")
            lines += ["[[fault]]", f'kind = "{kind}"', *(pair.replace("=", " = ", 1) for pair in pairs)]
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    return write
