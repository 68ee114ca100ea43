"""A user's own series: a CSV file with a line a moment, its variates in columns and, if it has several sites, whose."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from feda2l.data.errors import own_data_error
from feda2l.data.labels import distinct, numbered
from feda2l.data.series import Lengths, Rows, Series, Site, assemble, split_windows
from feda2l.data.series_text import Columns, read_columns
from feda2l.errors import FedA2LError

__all__ = ["load"]

_MISSING = ("", "NA", "NaN", "nan")


def load(
    path: str | Path,
    *,
    node: str | None = None,
    variates: Sequence[str] | None = None,
    lengths: tuple[int, int] = (96, 96),
    train_fraction: float = 0.8,
    stride: int = 1,
) -> Series:
    """The series of a CSV file whose first line names the columns; an empty cell, NA or NaN is a missing value.

    Lines are in order of time, in equal steps. `node` is the column that says which site a line belongs to; without it
    there is one. `variates` are all other columns unless told; each holds numbers. Only windows without a missing value
    are used (`split_windows`).
    """
    place = Path(path).expanduser()
    columns = _columns(place)
    wanted = tuple(name for name in columns.names if name != node) if variates is None else tuple(variates)
    if not wanted:
        raise own_data_error(f"{place} has no column{f' beside {node!r}' if node else ''} to forecast")
    whose = [place.stem] * len(columns.lines) if node is None else _sites(columns, node)
    values = _numbers(columns, wanted, chosen=variates is not None)
    names, given = distinct(whose), Lengths(*lengths)
    site = numbered(whose, names)
    sites = []
    for number, name in enumerate(names):
        rows = values[site == number]
        complete = ~np.isnan(rows).any(axis=1)
        if not complete.any():
            raise own_data_error(f"{place}: {name} has no line without a missing value")
        sites.append(Site(name, rows, split_windows(complete, given, train_fraction=train_fraction, stride=stride)))
    return assemble(place.stem, sites, wanted, given)


def _columns(path: Path) -> Columns:
    """The columns of a file, each with another name."""
    try:
        text = path.read_text(encoding="utf-8-sig").rstrip()
    except (OSError, UnicodeDecodeError) as error:
        raise own_data_error(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    columns = read_columns(str(path), text)
    if twice := [name for name in columns.names if columns.names.count(name) > 1]:
        raise own_data_error(f"{path} has two columns {twice[0]!r}")
    return columns


def _sites(columns: Columns, node: str) -> list[str]:
    """The site of each line."""
    words: list[str] = columns.words(node).tolist()
    if "" in words:
        line = columns.first + words.index("")
        raise own_data_error(f"{columns.source}, line {line}, column {node!r}: the cell is empty")
    return words


def _numbers(columns: Columns, wanted: tuple[str, ...], *, chosen: bool) -> Rows:
    """The variates; where they are all columns because none were chosen, a word among them may be no mistake."""
    try:
        return columns.numbers(wanted, missing=_MISSING)
    except FedA2LError as error:
        if chosen:
            raise
        raise own_data_error(
            f"{error}; if this column is not to be forecast, name those that are in data.columns, or take it out of "
            "the file (one that names a line's site goes into data.node)"
        ) from error
