"""The blocks of docs/fine-tuning.md run in their order."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feda2l import Run

PAGE = Path(__file__).parents[2] / "docs" / "fine-tuning.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_every_block_runs(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    for language, block in BLOCKS:
        if named := re.match(r"# ([\w-]+\.(?:toml|py))\b", block):
            Path(named[1]).write_text(block)
        elif language == "python":
            exec(compile(block, str(PAGE), "exec"), {"__name__": "page"})
        else:
            for line in block.splitlines():
                program, *arguments = shlex.split(line)
                if program == "python":
                    exec(compile(Path(arguments[0]).read_text(), arguments[0], "exec"), {"__name__": "__main__"})
                    continue
                outcome = cli(*arguments)
                assert outcome.code == 0, f"{line}\n{outcome.err}"
    tuned, further = (Run(Path("runs") / name) for name in ("tuned", "further"))
    assert tuned.summary["accuracy"]["final"] > 0.7
    assert further.summary["accuracy"]["final"] > 0.7
    kept, first = (run.model().fc1.weight for run in (further, tuned))
    assert (kept == first).all()
