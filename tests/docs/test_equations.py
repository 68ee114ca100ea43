"""Every function and test that docs/equations.md names exists."""

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
TABLE = re.search(r"^\| paper \| what \| function .*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
ROWS = [re.split(r"(?<!\\)\|", row)[1:-1] for row in TABLE[0].splitlines()[2:] if row] if TABLE else []
NAME = re.compile(r"`([^`]+)`")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip())
def test_every_row_names_functions_and_tests_that_exist(row: list[str]) -> None:
    _, _, function, test, _ = row
    functions, tests = NAME.findall(function), NAME.findall(test)
    assert functions
    assert tests
    for name in functions:
        resolve_name(f"feda2l.{name}")
    for path in tests:
        assert (ROOT / path).exists(), path


def test_every_test_that_the_text_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert named <= set(re.findall(r"^def (test_\w+)", source, re.MULTILINE))
