"""Run the examples of docs/networks.md. Its study takes a minute, so it is only loaded."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from feda2l import Run
from feda2l.cli.main import main
from feda2l.studies.study import Study

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "networks.md"
BLOCK = re.compile(r"^```(toml|csv|sh)\n((?:# ([\w-]+\.\w+)\n)?.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for language, block, name in BLOCK.findall(PAGE.read_text()):
        if language != "sh":
            Path(name).write_text(block)
            continue
        for line in block.splitlines():
            monkeypatch.setattr(sys, "argv", [*shlex.split(line), "--set", "runtime.workers=0"])
            main()  # exits if the command fails
    phones, listed = Run("runs/phones").summary, Run("runs/listed").summary
    assert phones["simulated_seconds"] > phones["target"]["simulated_seconds"] > 0
    assert phones["participation"]["missed"] == 40 * 2
    assert listed["simulated_seconds"] > 0


def test_the_study_of_the_page_exists() -> None:
    study = Study.load(ROOT / "examples" / "networks.toml")
    assert len(study.cells) * len(study.seeds) == 36
