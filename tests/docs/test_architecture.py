"""`docs/architecture.md` names every package, and every file that it names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "feda2l"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_package_is_on_the_map() -> None:
    packages = [path.parent.name for path in SOURCES.glob("*/__init__.py")]
    assert packages
    assert not [name for name in packages if f"`{name}`" not in PAGE]


def test_every_file_on_the_map_exists() -> None:
    files = re.findall(r"(?<![\w/])((?:\w+/)+\w+\.(?:py|html|js|txt)|\w+\.py)\b", PAGE.replace("NAME.py", ""))
    assert len(files) > 30
    assert not [name for name in files if not any((root / name).exists() for root in (SOURCES, ROOT))]
