"""Look up a name in a table, and suggest the nearest known name if it is unknown."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from feda2l.errors import FedA2LError

T = TypeVar("T")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for an error message: the nearest known name, or all of them.

    >>> nearest("nodse", ["node", "nodes"])  # swapped letters count as nearer than an additional letter
    "did you mean 'nodes'?"
    """
    names = list(known)
    swapped = [candidate for candidate in names if sorted(candidate) == sorted(name.lower())]
    close = swapped or difflib.get_close_matches(name.lower(), names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"


def look_up(name: str, table: Mapping[str, T], what: str) -> T:
    """Return `table[name]`, or raise an error that names the setting and the nearest known name."""
    if name not in table:
        raise FedA2LError(f"{what} = {name!r} is unknown; {nearest(name, table)}", see="spec")
    return table[name]
