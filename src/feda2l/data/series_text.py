"""Tables of numbers from comma-separated text, with errors that name the file, the line and the column."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feda2l.data.errors import own_data_error
from feda2l.errors import FedA2LError


@dataclass(frozen=True)
class Columns:
    """A text as lines of cells, which may stand in quotes but contain no comma.

    `source` is what errors call it, `first` the number of the first of the lines in its file.
    """

    source: str
    names: tuple[str, ...]
    lines: list[str]
    first: int

    def words(self, column: str) -> NDArray[np.str_]:
        """A column as it is written, without the quotes."""
        at = self._place(column)
        return np.array([_bare(line.split(",", at + 1)[at]) for line in self.lines])

    def numbers(self, columns: Sequence[str], *, missing: Sequence[str] = ()) -> NDArray[np.float64]:
        """Columns as numbers [lines, columns], NaN where a cell is a word of `missing`; any other is an error."""
        places = [self._place(column) + 1 for column in columns]
        lines = [f",{line}" for line in self.lines]  # so that a comma stands before every cell
        doubt = any(",nan" in line.lower() for line in lines)
        if missing:
            word = re.compile(rf',\s*"?(?:{"|".join(map(re.escape, missing))})"?\s*(?=,|$)')
            lines = [word.sub(",nan", line) for line in lines]
        try:
            # a fast reader that does not say where it stopped: the cell is looked for only when there is one
            values = np.loadtxt(lines, delimiter=",", quotechar='"', comments=None, usecols=places, ndmin=2)
            doubt |= bool(np.isinf(values).any())
        except ValueError as error:
            raise self._complaint(columns, missing) or own_data_error(f"cannot read {self.source}: {error}") from error
        if doubt and (complaint := self._complaint(columns, missing)):
            raise complaint
        return values

    def _place(self, column: str) -> int:
        if column not in self.names:
            raise own_data_error(f"{self.source} has no column {column!r}; its columns: {', '.join(self.names)}")
        return self.names.index(column)

    def _complaint(self, columns: Sequence[str], missing: Sequence[str]) -> FedA2LError | None:
        """The error that names the first cell which is no number."""
        for number, line in enumerate(self.lines, start=self.first):
            cells = dict(zip(self.names, line.split(","), strict=True))
            for column in columns:
                word = _bare(cells[column])
                if word not in missing and not _is_number(word):
                    other = f" or {missing[0] or 'an empty cell'}" if missing else ""
                    return own_data_error(
                        f"{self.source}, line {number}, column {column!r}: expected a number{other}, found {word!r}"
                    )
        return None


def read_columns(source: str, text: str, names: Sequence[str] | None = None) -> Columns:
    """The table in a text, whose first line names the columns unless `names` are given."""
    lines = text.splitlines()
    first = 1
    if names is None and lines:
        names = [_bare(name) for name in lines.pop(0).split(",")]
        first = 2
    if names is None or not lines:
        raise own_data_error(f"{source} is empty")
    for number, line in enumerate(lines, start=first):
        if (found := line.count(",") + 1) != len(names):
            raise own_data_error(
                f"{source}, line {number}: expected {len(names)} values, found {found}; the file is damaged"
            )
    return Columns(source, tuple(names), lines, first)


def _bare(cell: str) -> str:
    """A cell without the quotes and the blanks around it."""
    return cell.strip().strip('"').strip()


def _is_number(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False
