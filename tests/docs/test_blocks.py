"""What the pages show works: Python is run, TOML is read by what it is for, commands are known to the command line.

A block's first comment may name its file (`# spec.toml`, `# nets.py`): it is written, and later blocks find it. What
the page does not show stands in comments: `<!--- invisible-code-block: python ... -->` is run with the rest,
`<!--- skip: next "why" -->` says why a block cannot run, `<!-- toml: node -->` what a block of TOML is, if no spec.
"""

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from unittest import SkipTest

import pytest
from sybil import Document, Example
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser

from feda2l.cli.main import app
from feda2l.faults.plan import FaultPlan
from feda2l.peer.config import NodeConfig
from feda2l.spec.spec import Spec
from feda2l.studies.study import Study
from feda2l.toml_files import read_toml

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "docs" / "_build"
FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "results" / "README.md", *ROOT.glob("docs/**/*.md")]
PAGES = sorted(str(path.relative_to(ROOT)) for path in FILES if not path.is_relative_to(BUILT))
RUN_ELSEWHERE = {"docs/own-data.md"}  # section by section, its commands too: tests/acceptance/test_docs.py
NAMED = re.compile(r"# ([\w-]+\.(?:toml|py))\b")
FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KIND = re.compile(r"<!-- toml: (\w+) -->\s*\Z")
SKIP = re.compile(r"<!--- skip:.*?-->")
COMMAND = re.compile(r"^(?:\$ |feda2l |\S*torchrun )|-m feda2l ")
READERS: dict[str, Callable[[Path], object]] = {
    "spec": Spec.load,
    "study": Study.load,
    "node": NodeConfig.load,
    "faults": lambda path: FaultPlan.load(path, nodes=100),
    "part": read_toml,  # of a file
}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.syspath_prepend(tmp_path)


def written(example: Example) -> Path | None:
    """The file that the block says it is."""
    named = NAMED.match(example.parsed)
    if not named:
        return None
    path = Path(named[1])
    path.write_text(example.parsed)
    return path


def run_python(example: Example) -> None:
    if not written(example):
        PythonEvaluator()(example)


def read_as_said(example: Example) -> None:
    said = KIND.search(example.document.text, 0, example.region.start)
    path = written(example) or Path("block.toml")
    path.write_text(example.parsed)
    READERS[said[1] if said else "spec"](path)


def blocks(page: str, language: str) -> list[str]:
    return [text for found, text in FENCE.findall((ROOT / page).read_text()) if found == language]


def with_blocks(*languages: str) -> list[str]:
    return [page for page in PAGES if any(blocks(page, language) for language in languages)]


@pytest.mark.parametrize("page", sorted(set(with_blocks("python")) - RUN_ELSEWHERE))
def test_every_python_block_runs_or_says_why_not(page: str) -> None:
    parsers = CodeBlockParser("python", run_python), CodeBlockParser("toml", read_as_said), SkipParser()
    document = Document.parse(str(ROOT / page), *parsers)
    document.namespace["__name__"] = "page"
    seen = 0
    for example in document.examples():
        seen += document.text.startswith("```python", example.region.start)
        with suppress(SkipTest):
            example.evaluate()
    assert seen == len(blocks(page, "python"))


def test_a_block_that_is_not_run_says_why() -> None:
    marks = [mark for page in PAGES for mark in SKIP.findall((ROOT / page).read_text())]
    assert marks
    assert [mark for mark in marks if not re.search(r'"[^"]{5,}"', mark)] == []


@pytest.mark.parametrize("page", with_blocks("toml"))
def test_every_toml_block_is_what_it_says(page: str) -> None:
    for example in Document.parse(str(ROOT / page), CodeBlockParser("toml", read_as_said)).examples():
        example.evaluate()


def commands(page: str) -> Iterator[list[str]]:
    """The arguments of every `feda2l`, alone, behind a prompt, or as a module under torchrun."""
    text = "\n".join(block for language in ("", "sh", "console") for block in blocks(page, language))
    for line in text.replace("\\\n", " ").splitlines():
        if COMMAND.search(line.strip()):
            words = shlex.split(line.removeprefix("$ "), comments=True)
            for place, word in enumerate(words):
                if Path(word).name == "feda2l" and (place == 0 or words[place - 1] in ("-m", "&&", "|", "do")):
                    rest = words[place + 1 :]
                    ends = [end for end, word in enumerate(rest) if word in ("|", "&&", "&", ">", "<")]
                    yield rest[: min(ends, default=None)]


@pytest.mark.parametrize("page", with_blocks("", "sh", "console"))
def test_every_command_is_known(page: str) -> None:
    for arguments in commands(page):
        app.parse_args(arguments, exit_on_error=False, print_error=False)


def test_the_pages_show_commands() -> None:
    """The pattern finds what is there: `run`, `study` and `node` among them."""
    assert {arguments[0] for page in PAGES for arguments in commands(page)} >= {"run", "study", "node", "certs"}


def test_only_languages_that_are_checked_or_shown_as_they_are() -> None:
    shown = {"", "python", "toml", "sh", "console", "text", "json", "csv"}
    found = {name for page in PAGES for name, _ in FENCE.findall((ROOT / page).read_text()) if name[:1] != "{"}
    assert found <= shown
