"""The sections of the troubleshooting page, which `feda2l explain` prints."""

import re
from importlib.resources import files
from pathlib import Path

from feda2l.errors import FedA2LError
from feda2l.names import nearest

PAGE = "troubleshooting.md"


def sections() -> dict[str, str]:
    """Every section of the page by its anchor: the heading in lower case, with dashes for spaces."""
    parts = re.split(r"^## ", _page(), flags=re.MULTILINE)[1:]
    return {part.split("\n", 1)[0].lower().replace(" ", "-"): f"## {part.strip()}\n" for part in parts}


def explain(topic: str) -> str:
    """One section, as Markdown."""
    known = sections()
    if topic not in known:
        raise FedA2LError(f"explain {topic}: unknown topic; {nearest(topic, known)}")
    return known[topic]


def _page() -> str:
    installed = files("feda2l") / PAGE
    if installed.is_file():
        return installed.read_text(encoding="utf-8")
    # a checkout keeps the page in the folder of the documentation
    return (Path(__file__).parents[3] / "docs" / PAGE).read_text(encoding="utf-8")
