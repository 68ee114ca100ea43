"""A user's own series: a CSV file with a line a moment, its variates in columns and, if it has several sites, whose."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from feda2l.data.series import Lengths, Series, Site, assemble, split_windows
from feda2l.data.series_text import read_columns
from feda2l.errors import FedA2LError


def load(
    path: str | Path,
    *,
    node: str | None = None,
    variates: Sequence[str] | None = None,
    lengths: tuple[int, int] = (96, 96),
    train_fraction: float = 0.8,
    stride: int = 1,
) -> Series:
    """The series of a CSV file whose first line names the columns; an empty cell is a missing value.

    Lines are in order of time. `node` is the column that says which site a line belongs to; without it there is one.
    `variates` are all other columns unless told. Only windows without a missing value are used (`split_windows`).
    """
    place = Path(path).expanduser()
    try:
        text = place.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FedA2LError(f"{place} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    columns = read_columns(str(place), text)
    wanted = tuple(variates) if variates is not None else tuple(name for name in columns.names if name != node)
    if not wanted:
        raise FedA2LError(f"{place} has no column beside {node!r} to forecast")
    values = columns.numbers(wanted, missing="")
    words = columns.words(node) if node else np.full(len(values), place.stem)
    names, site = np.unique(words, return_inverse=True)
    given = Lengths(*lengths)
    sites = []
    for number, name in enumerate(names):
        rows = values[site == number]
        complete = ~np.isnan(rows).any(axis=1)
        if not complete.any():
            raise FedA2LError(f"{place}: {name} has no line without a missing value")
        sites.append(
            Site(str(name), rows, split_windows(complete, given, train_fraction=train_fraction, stride=stride))
        )
    return assemble(place.stem, sites, wanted, given)
