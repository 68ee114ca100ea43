"""A user's own table: a CSV file with numbers in its feature columns and a class in another column."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feda2l.data.csv_table import CsvTable, read_csv
from feda2l.data.errors import own_data_error
from feda2l.data.images import Images
from feda2l.data.labels import distinct, groups_of, hold_out, numbered
from feda2l.data.pictures import notify

__all__ = ["Table", "load"]


@dataclass(frozen=True)
class Table(Images):
    """Rows of numbers, stored as pictures with one channel and one line: float32 [n, 1, 1, features].

    The engines and `mlp` expect this shape. `load` standardises each feature in float64: x = (value - centre) / spread.
    A factor and an offset in float32 would lose the digits of a feature with a large mean. `normalise` changes nothing
    more. The value in the file is x * spread + centre.
    """

    features: tuple[str, ...] = ()
    centre: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()


def load(
    path: str | os.PathLike[str],
    target: str,
    *,
    node: str | None = None,
    features: Sequence[str] | None = None,
    test: str | os.PathLike[str] | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    delimiter: str = ",",
) -> Table:
    """Load a table from a CSV file whose first line names the columns. Empty lines are ignored.

    Each feature is standardised with the mean and the standard deviation of the training rows. A constant feature
    becomes 0.

    Args:
        target: the column of the class. Classes are whole numbers or names, and are numbered in that order.
        node: the column that names the node of a row, if the data come from nodes.
        features: the feature columns; by default all columns except `target` and `node`.
        test: a file with the rows of the test set.
        test_fraction: without `test`, the share of each class that is held out for the test set.
        seed: draws the rows that are held out.
    """
    place = Path(path).expanduser()
    rows = read_csv(place, delimiter=delimiter, skip_empty=True)
    wanted = list(features) if features is not None else [name for name in rows.names if name not in (target, node)]
    if not wanted:
        raise own_data_error(f"{place} has no feature column besides {target!r}; its columns: {', '.join(rows.names)}")
    texts = rows.filled_texts(target)
    nodes = None if node is None else rows.filled_texts(node)
    all_values = rows.numbers(wanted)
    names = distinct(texts)
    if len(names) == 1:
        raise own_data_error(f"{place}, column {target!r}: {names[0]!r} is the only class; at least two are needed")
    labels = numbered(texts, names)
    if test is None:
        tested = hold_out(labels, share=test_fraction, seed=seed)
        notify(
            f"{place}: {tested.sum():,} of {len(labels):,} rows, {test_fraction:g} of each class (seed {seed}), are "
            "held out for the test set"
        )
        test_values, test_labels = all_values[tested], labels[tested]
    else:
        tested = np.zeros(len(labels), dtype=bool)
        other = read_csv(Path(test).expanduser(), delimiter=delimiter, skip_empty=True)
        test_values, test_labels = other.numbers(wanted), _labels(other, target, names, place)
    values = all_values[~tested]
    with np.errstate(over="ignore", invalid="ignore"):  # `standard` below raises an error instead
        centre, spread = values.mean(0), values.std(0)
    # compare the values: rounding may give equal numbers a standard deviation slightly above 0
    spread = np.where((values == values[0]).all(0), 1.0, spread)
    groups = None if nodes is None else torch.from_numpy(groups_of(nodes, ~tested))

    def standard(values: NDArray[np.float64]) -> Tensor:
        with np.errstate(over="ignore", invalid="ignore"):
            x = ((values - centre) / spread).astype(np.float32)
        fine = np.isfinite(x).all(0) & np.isfinite(spread)
        if not fine.all():
            column = wanted[int(fine.argmin())]
            raise own_data_error(f"{place}, column {column!r}: the numbers are too large for float32; scale them down")
        return torch.from_numpy(x).reshape(-1, 1, 1, len(wanted))

    return Table(
        name=place.stem,
        train_x=standard(values),
        train_y=torch.from_numpy(labels[~tested]),
        test_x=standard(test_values),
        test_y=torch.from_numpy(test_labels),
        classes=len(names),
        scale=1.0,
        mean=(0.0,),
        std=(1.0,),
        class_names=tuple(names),
        groups=groups,
        features=tuple(wanted),
        centre=tuple(centre.tolist()),
        spread=tuple(spread.tolist()),
    )


def _labels(table: CsvTable, target: str, names: list[str], training: Path) -> NDArray[np.int64]:
    """The class numbers of the test rows; a class that no training row has is an error."""
    texts = table.filled_texts(target)
    for row, text in enumerate(texts):
        if text not in names:
            raise own_data_error(f"{table.where(row, target)}: {training} has no training row of the class {text!r}")
    return numbered(texts, names)
