"""What docs/integrations.md shows is run, where its library is installed."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
FOUND = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
BLOCKS = [block for block in FOUND if "and a second peer" not in block]  # test_hivemind.py has one
LIBRARIES = {"lightning": "pytorch_lightning", "transformers": "transformers", "flower": "flwr"}


def extra(block: str) -> str:
    found = re.match(r"# needs feda2l\[(\w+)\]\n", block)
    assert found, "a block of this page begins with what it needs"
    return found[1]


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
