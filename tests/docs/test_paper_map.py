"""The page that leads from the paper to a command: every command parses, and what it names exists."""

import re
import shlex
from pathlib import Path

import pytest

from feda2l.cli.main import app
from feda2l.report.paper import ITEMS
from feda2l.spec.spec import Spec
from feda2l.studies.study import Study, shipped

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"(?m)(?:`|^)(feda2l [^`\n]+)", PAGE)
TESTS = re.findall(r"`python -m pytest ([^`]+)`", PAGE)


def test_commands_of_every_kind_are_found() -> None:
    kinds = {command.split()[1] for command in COMMANDS}
    assert kinds == {"study", "report", "run"}
    assert len(TESTS) == 6


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_parses_and_what_it_names_exists(command: str) -> None:
    words = shlex.split(command)[1:]
    app.parse_args(words, exit_on_error=False, print_error=False)
    if words[0] == "run":
        Spec.parse({}, "page", words[2::2])
    elif words[0] == "study" and words[1] != "NAME":
        Study.load(words[1])
    elif words[0] == "report":
        for folder in map(Path, words[1:]):
            assert folder.name in shipped() if folder.parts[0] == "runs" else (ROOT / folder).is_dir(), folder


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_every_table_and_figure_has_a_row_with_its_studies(item) -> None:
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| {item.name},"))
    studies, report = row.split("|")[2:4]
    assert re.findall(r"`([^`]+)`", studies) == list(item.studies)
    assert report.strip(" `").split() == ["feda2l", "report", *(f"runs/{name}" for name in item.studies)]


@pytest.mark.parametrize("paths", TESTS)
def test_every_test_that_the_page_names_exists(paths: str) -> None:
    assert all((ROOT / path).is_dir() for path in paths.split())


def test_every_study_of_the_paper_has_its_five_seeds() -> None:
    named = {name for name in re.findall(r"`([a-z0-9-]+)`", PAGE) if name in shipped()}
    assert len(named) == 17
    assert all(Study.load(name).seeds == (1, 2, 3, 4, 5) for name in named)
