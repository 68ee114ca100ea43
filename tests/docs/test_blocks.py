"""The examples on the pages work: Python runs, TOML is valid for its purpose, and commands are known.

The first comment of a block may name a file (`# spec.toml`, `# nets.py`). The block is then written to this file, which
later blocks can use. Hidden comments control the rest: `<!--- invisible-code-block: python ... -->` runs too,
`<!--- skip: next "why" -->` states why a block cannot run, and `<!-- toml: node -->` gives the kind of a TOML block
that is not a spec.
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
RUN_ELSEWHERE = {
    "docs/own-data.md"
}  # tests/acceptance/test_docs.py runs this page with its commands, section by section
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
    "part": read_toml,  # a part of a file
}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.syspath_prepend(tmp_path)


def write_block(example: Example) -> Path | None:
    """Write the block to the file that it names, if any."""
    named = NAMED.match(example.parsed)
    if not named:
        return None
    path = Path(named[1])
    path.write_text(example.parsed)
    return path


def run_python(example: Example) -> None:
    if not write_block(example):
        PythonEvaluator()(example)


def read_toml_block(example: Example) -> None:
    kind = KIND.search(example.document.text, 0, example.region.start)
    path = write_block(example) or Path("block.toml")
    path.write_text(example.parsed)
    READERS[kind[1] if kind else "spec"](path)


def blocks(page: str, language: str) -> list[str]:
    return [text for found_language, text in FENCE.findall((ROOT / page).read_text()) if found_language == language]


def with_blocks(*languages: str) -> list[str]:
    return [page for page in PAGES if any(blocks(page, language) for language in languages)]


@pytest.mark.parametrize("page", sorted(set(with_blocks("python")) - RUN_ELSEWHERE))
def test_every_python_block_runs_or_states_why_not(page: str) -> None:
    parsers = CodeBlockParser("python", run_python), CodeBlockParser("toml", read_toml_block), SkipParser()
    document = Document.parse(str(ROOT / page), *parsers)
    document.namespace["__name__"] = "page"
    count = 0
    for example in document.examples():
        count += document.text.startswith("```python", example.region.start)
        with suppress(SkipTest):
            example.evaluate()
    assert count == len(blocks(page, "python"))


def test_a_skipped_block_states_why() -> None:
    marks = [mark for page in PAGES for mark in SKIP.findall((ROOT / page).read_text())]
    assert marks
    assert [mark for mark in marks if not re.search(r'"[^"]{5,}"', mark)] == []


@pytest.mark.parametrize("page", with_blocks("toml"))
def test_every_toml_block_is_valid_for_its_kind(page: str) -> None:
    for example in Document.parse(str(ROOT / page), CodeBlockParser("toml", read_toml_block)).examples():
        example.evaluate()


def commands(page: str) -> Iterator[list[str]]:
    """The arguments of every `feda2l` command: plain, after a prompt, or as a module under torchrun."""
    text = "\n".join(block for language in ("", "sh", "console") for block in blocks(page, language))
    for line in text.replace("\\\n", " ").splitlines():
        if COMMAND.search(line.strip()):
            words = shlex.split(line.removeprefix("$ "), comments=True)
            for position, word in enumerate(words):
                if Path(word).name == "feda2l" and (position == 0 or words[position - 1] in ("-m", "&&", "|", "do")):
                    rest = words[position + 1 :]
                    ends = [end for end, word in enumerate(rest) if word in ("|", "&&", "&", ">", "<")]
                    yield rest[: min(ends, default=None)]


@pytest.mark.parametrize("page", with_blocks("", "sh", "console"))
def test_every_command_is_known(page: str) -> None:
    for arguments in commands(page):
        app.parse_args(arguments, exit_on_error=False, print_error=False)


def test_the_pages_show_commands() -> None:
    """The pattern finds the commands, including `run`, `study`, `node` and `certs`."""
    assert {arguments[0] for page in PAGES for arguments in commands(page)} >= {"run", "study", "node", "certs"}


def test_blocks_use_only_known_languages() -> None:
    known = {"", "python", "toml", "sh", "console", "text", "json", "csv"}
    used = {name for page in PAGES for name, _ in FENCE.findall((ROOT / page).read_text()) if name[:1] != "{"}
    assert used <= known
