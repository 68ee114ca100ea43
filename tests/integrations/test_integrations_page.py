"""Run the examples of docs/integrations.md whose library is installed."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
ALL_BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
BLOCKS = [block for block in ALL_BLOCKS if "and a second peer" not in block]  # test_hivemind.py has one
LIBRARIES = {"lightning": "pytorch_lightning", "transformers": "transformers", "flower": "flwr"}


def extra(block: str) -> str:
    match = re.match(r"# needs feda2l\[(\w+)\]\n", block)
    assert match, "a block of this page must begin with the extra it needs"
    return match[1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", BLOCKS, ids=extra)
def test_a_block_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = LIBRARIES[extra(block)]
    pytest.importorskip(library, reason=f"{library} is not installed: make test-integrations")
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "page"}
    exec(compile(block, str(PAGE), "exec"), space)
    if "rates" in space:
        assert any(layer.multiplier != 1 for layer in space["rates"].rates.last.values())
