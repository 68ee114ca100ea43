"""A user's own table: a CSV file with numbers in its feature columns and a class in another."""

import csv
import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feda2l.data.errors import own_data_error
from feda2l.data.images import Images
from feda2l.data.labels import distinct, groups_of, hold_out, numbered
from feda2l.data.pictures import say
from feda2l.names import nearest

__all__ = ["Table", "load"]


@dataclass(frozen=True)
class Table(Images):
    """Rows of numbers, held as pictures of one channel and one line: float32 [n, 1, 1, features].

    That is the shape that the engines and `mlp` expect. They are standardised when they are read, in float64, since a
    factor and an offset in float32 would ruin a feature with a large mean; `normalise` changes nothing more. A number
    of the file is `x * spread + centre`.
    """

    features: tuple[str, ...] = ()
    centre: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()


@dataclass(frozen=True)
class _CsvRows:
    """What a file says: numbers [n, features], and of each row its class, its node and its line."""

    path: Path
    values: NDArray[np.float64]
    classes: list[str]
    nodes: list[str]
    lines: list[int]


def load(
    path: str | os.PathLike[str],
    target: str,
    *,
    node: str | None = None,
    features: Sequence[str] | None = None,
    test: str | os.PathLike[str] | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    delimiter: str = ",",
) -> Table:
    """The table of a CSV file whose first line names the columns.

    `target` is the column of the class: whole numbers or names, numbered in their order. `node`, if there is one, the
    column of the node that a row belongs to. `features` are all other columns unless told. The rows of the file `test`
    are the test part; without it the `test_share` of each class is drawn with `seed` and held out, which is said.
    Each feature is standardised by mean and deviation of the training rows; one that never changes becomes 0.
    """
    place = Path(path).expanduser()
    header = _header(place, delimiter)
    wanted = list(features) if features is not None else [name for name in header if name not in (target, node)]
    if not wanted:
        raise own_data_error(f"{place} has no feature column beside {target!r}; found {', '.join(header)}")
    rows = _rows(place, wanted, target, node, delimiter)
    names = distinct(rows.classes)
    if len(names) == 1:
        raise own_data_error(f"{place}: {target!r} has only the class {names[0]!r}; there is nothing to tell apart")
    labels = numbered(rows.classes, names)
    if test is None:
        tested = hold_out(labels, share=test_share, seed=seed)
        say(
            f"{place}: {tested.sum():,} of {len(labels):,} rows, {test_share:g} of each class (seed {seed}), are held "
            "out for the test"
        )
        test_values, test_labels = rows.values[tested], labels[tested]
    else:
        tested = np.zeros(len(labels), dtype=bool)
        other = _rows(Path(test).expanduser(), wanted, target, None, delimiter)
        for name, line in zip(other.classes, other.lines, strict=True):
            if name not in names:
                raise own_data_error(f"{other.path}, line {line}: the class {name!r} is only here, not in {place}")
        test_values, test_labels = other.values, numbered(other.classes, names)
    values = rows.values[~tested]
    with np.errstate(over="ignore", invalid="ignore"):  # said in words below
        centre, spread = values.mean(0), values.std(0)
    # by comparison: the mean of equal numbers may differ from them in the last bit, and so the deviation from 0
    spread = np.where((values == values[0]).all(0), 1.0, spread)
    groups = None if node is None else torch.from_numpy(groups_of(rows.nodes, ~tested))

    def standard(values: NDArray[np.float64]) -> Tensor:
        with np.errstate(over="ignore", invalid="ignore"):
            x = ((values - centre) / spread).astype(np.float32)
        fine = np.isfinite(x).all(0) & np.isfinite(spread)
        if not fine.all():
            raise own_data_error(f"{place}: the numbers of {wanted[int(fine.argmin())]!r} are too large; scale them")
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


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
    except (OSError, ValueError, csv.Error) as error:
        words = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise own_data_error(f"{path} cannot be read: {words}") from error


def _header(path: Path, delimiter: str) -> list[str]:
    """The names of the columns, each once."""
    with _opened(path) as file:
        header = [name.strip() for name in next(csv.reader(file, delimiter=delimiter), [])]
    if not any(header):
        raise own_data_error(f"{path} is empty; expected a first line with the names of the columns")
    if twice := [name for name in header if header.count(name) > 1]:
        raise own_data_error(f"{path} has two columns {twice[0]!r}")
    return header


def _places(path: Path, names: list[str], delimiter: str) -> dict[str, int]:
    """The place of every column in a line, if those of these names are among them."""
    header = _header(path, delimiter)
    for name in names:
        if name not in header:
            raise own_data_error(f"{path} has no column {name!r}; {nearest(name, header)}")
    return {name: place for place, name in enumerate(header)}


def _rows(path: Path, features: list[str], target: str, node: str | None, delimiter: str) -> _CsvRows:
    texts: list[tuple[str, list[str]]] = [(name, []) for name in (target, *([node] if node else ()))]
    place = _places(path, [*features, *(name for name, _ in texts)], delimiter)
    values, lines = array("d"), list[int]()
    with _opened(path) as file:
        reader = csv.reader(file, delimiter=delimiter)
        next(reader)
        for row in filter(None, reader):  # empty lines are skipped
            where = f"{path}, line {reader.line_num}"
            if len(row) != len(place):
                raise own_data_error(f"{where}: expected {len(place)} cells, found {len(row)}")
            values.extend(_floats([row[place[name]] for name in features], features, where))
            for name, words in texts:
                words.append(_word(row[place[name]], name, where))
            lines.append(reader.line_num)
    if not lines:
        raise own_data_error(f"{path} has no row under its first line")
    numbers = np.frombuffer(values, dtype=np.float64).reshape(-1, len(features))
    _demand_finite(path, numbers, features, lines)
    return _CsvRows(path, numbers, texts[0][1], texts[-1][1] if node else [], lines)


def _floats(cells: list[str], features: list[str], where: str) -> list[float]:
    numbers = []
    for cell, name in zip(cells, features, strict=True):
        try:
            numbers.append(float(cell))
        except ValueError:
            raise own_data_error(f"{where}, column {name!r}: expected a number, found {cell!r}") from None
    return numbers


def _word(cell: str, name: str, where: str) -> str:
    if not cell.strip():
        raise own_data_error(f"{where}, column {name!r}: the cell is empty")
    return cell.strip()


def _demand_finite(path: Path, numbers: NDArray[np.float64], features: list[str], lines: list[int]) -> None:
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        row, column = bad[0]
        raise own_data_error(
            f"{path}, line {lines[row]}, column {features[column]!r}: {numbers[row, column]} is not a finite number"
        )
