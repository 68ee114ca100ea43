"""Docstrings are plain text: names in `backticks`, equations and code indented. Here they become what Sphinx reads."""

import inspect
import re
import sys
from itertools import pairwise
from typing import Any

from sphinx.application import Sphinx

MARKUP = re.compile(r"`[^`]*`|(?<=\w)_(?!\w)|[*|\\]")
ARRAY_LIKE = re.compile(r"[\w.~]+\._Buffer \|.*?\[complex \| bytes \| str\]")
NUMPY_ARRAY = re.compile(r"[\w.~]*ndarray\[tuple\[[^\]]*\], [\w.~]*dtype\[([\w.~]+)\]\]")
ARGUMENT = re.compile(r"    (\w[\w, ]*):\s+(.*)")


def reads(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """In prose `*`, `|` and a last `_` are themselves; an indented paragraph stands as it is written."""
    if what in ("attribute", "property") and (comment := _comment(name)):
        lines[:] = [comment, ""]
    read: list[str] = []
    kind = "prose"
    for before, line in pairwise(["", *lines]):
        first = bool(line.strip()) and not before.strip()  # of a paragraph
        if kind in ("arguments", "literal") and line.strip() and not line.startswith(" "):
            kind = "prose"
            read.append("")
        if first and kind in ("prose", "prompt"):
            kind = "prompt" if line.startswith(">>>") else "prose"
        if kind == "prose" and line.startswith("    "):
            # right below a line of prose it may be a list, `    name: what it is`
            kind = "arguments" if ARGUMENT.match(line) and not first else "literal"
            read += [""] if kind == "arguments" else ["", "::", ""]
        read.append(_written(kind, line))
    lines[:] = read


def _written(kind: str, line: str) -> str:
    if kind == "prose":
        return _prose(line)
    if kind == "arguments" and line.strip():
        return _prose(ARGUMENT.sub(r"- `\1`: \2", line)) if ARGUMENT.match(line) else f"  {_prose(line.strip())}"
    return line


def shorten(app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str, returns: str) -> Any:
    """numpy's aliases by their names, as the code writes them, not by all that they stand for."""
    if not signature:
        return None
    if "<factory>" in signature or signature == "(*args, **kwargs)":
        return "", returns  # not made by its user
    return tuple(
        text and NUMPY_ARRAY.sub(r"NDArray[\1]", ARRAY_LIKE.sub("ArrayLike", text)) for text in (signature, returns)
    )


def _prose(line: str) -> str:
    return MARKUP.sub(lambda match: match[0] if match[0].startswith("`") else "\\" + match[0], line)


def _comment(name: str) -> str | None:
    """What a field's own line says of it: `field: type  # this`."""
    owner, _, field = name.rpartition(".")
    module, _, kind = owner.rpartition(".")
    source = inspect.getsource(getattr(sys.modules[module], kind)) if module in sys.modules else ""
    found = re.search(rf"^    {field}\b[^#\n]*  # (.+)$", source, re.MULTILINE)
    return found[1] if found else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", reads)
    app.connect("autodoc-process-signature", shorten)
    return {"parallel_read_safe": True}
