"""Looking a name up in a table, with the nearest right name when it is not there."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from feda2l.errors import FedA2LError

T = TypeVar("T")


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that ends an error message: the nearest name, or all of them.

    >>> nearest("nodse", ["node", "nodes"])  # swapped letters are nearer than one too many
    "did you mean 'nodes'?"
    """
    names = list(known)
    swapped = [own for own in names if sorted(own) == sorted(name.lower())]
    close = swapped or difflib.get_close_matches(name.lower(), names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"


def look_up(name: str, table: Mapping[str, T], what: str) -> T:
    """`table[name]`, or an error that names what was looked for and the nearest entry."""
    if name not in table:
        raise FedA2LError(f"{what} = {name!r} is unknown; {nearest(name, table)}", see="spec")
    return table[name]
