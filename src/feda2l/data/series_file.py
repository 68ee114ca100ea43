"""A user's own time series: a CSV file with one line per time step and one column per variate.

A further column may name the site that a line belongs to.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from feda2l.data.csv_table import CsvTable, read_csv
from feda2l.data.errors import own_data_error
from feda2l.data.labels import distinct, numbered
from feda2l.data.series import Lengths, Series, SeriesValues, Site, assemble, split_windows
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
    """Load a time series from a CSV file whose first line names the columns.

    Lines are in order of time, in equal steps. An empty cell, NA or NaN is a missing value. Only windows without a
    missing value are used (`split_windows`).

    Args:
        node: the column that names the site of a line; without it the file is one site.
        variates: the columns to forecast, which hold numbers; by default all columns except `node`.
        lengths: rows that a window shows to the model, and rows that the model forecasts.
        train_fraction: the share of each site's rows, in order of time, that is used for training.
        stride: rows from the start of one window to the start of the next.
    """
    place = Path(path).expanduser()
    columns = read_csv(place)
    wanted = tuple(name for name in columns.names if name != node) if variates is None else tuple(variates)
    if not wanted:
        raise own_data_error(f"{place} has no column{f' beside {node!r}' if node else ''} to forecast")
    whose = [place.stem] * len(columns) if node is None else columns.filled_texts(node)
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


def _numbers(columns: CsvTable, wanted: tuple[str, ...], *, chosen: bool) -> SeriesValues:
    """The variates as numbers. Unless the user chose the columns, the error says how to choose them."""
    try:
        return columns.numbers(wanted, missing=_MISSING)
    except FedA2LError as error:
        if chosen:
            raise
        raise own_data_error(
            f"{error}; if this column is not to be forecast, list the columns to forecast in data.feature_columns, or "
            "remove it from the file (a column that names the site of a line goes into data.node_column)"
        ) from error
