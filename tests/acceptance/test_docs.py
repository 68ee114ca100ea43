"""The blocks of docs/own-data.md run in the order in which the page shows them."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feda2l import Run

PAGE = Path(__file__).parents[2] / "docs" / "own-data.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# ([\w-]+\.(?:toml|py))\b")
SECTIONS = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize(
    "section", [section for section in SECTIONS if "```" in section], ids=lambda s: s.split("\n")[0]
)
def test_every_block_of_a_section_runs(section: str, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that starts with a file name is written to that file; other Python is executed; commands are called."""
    monkeypatch.setenv("COLUMNS", "120")
    for language, block in BLOCK.findall(section):
        if named := NAMED.match(block):
            Path(named[1]).write_text(block)
        elif language == "python":
            exec(compile(block, str(PAGE), "exec"), {"__name__": "page"})
        else:
            assert language == "sh"
            for line in block.splitlines():
                program, *arguments = shlex.split(line)
                assert program == "feda2l"
                outcome = cli(*arguments)
                assert outcome.code == 0, f"{line}\n{outcome.err}"
    results = {path.parent.name for path in Path("runs").glob("*/summary.json")}
    assert results
    for name in results:
        summary = Run(Path("runs") / name).summary
        if "naive" in summary:
            assert summary["mse"]["final"] < summary["naive"]["last_value"]["mse"]
        else:
            assert summary["accuracy"]["final"] > 0.85
