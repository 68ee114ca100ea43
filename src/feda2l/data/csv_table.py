"""Tables from CSV text, read by polars, with errors that name the file, the line, the column and the value."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feda2l.data.errors import own_data_error
from feda2l.names import nearest

__all__ = ["CsvTable", "parse_csv", "read_csv"]


@dataclass(frozen=True)
class _Text:
    """The text of a CSV file. It is scanned line by line only where an error needs a line number."""

    source: str
    text: str
    delimiter: str
    skip_empty: bool

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """The line number and the cells of each row, the header included."""
        reader = csv.reader(io.StringIO(self.text, newline=""), delimiter=self.delimiter)
        try:
            for cells in reader:
                if not self.skip_empty or reader.line_num == 1 or any(cell.strip() for cell in cells):
                    yield reader.line_num, cells
        except csv.Error as error:
            raise own_data_error(f"{self.source} cannot be read: {error} (line {reader.line_num})") from error

    def check_widths(self, width: int) -> None:
        """Raise an error that names the first line with too few or too many cells."""
        for line, cells in self.rows():
            count = max(len(cells), 1)  # an empty line is one empty cell
            if count != width:
                raise own_data_error(f"{self.source}, line {line}: expected {width} values, found {count}")


@dataclass(frozen=True)
class CsvTable:
    """The cells of a CSV file as strings, without the quotes and the blanks around them."""

    names: tuple[str, ...]
    cells: pl.DataFrame
    _text: _Text
    _has_header: bool

    @property
    def source(self) -> str:
        """The name of the file in errors."""
        return self._text.source

    def __len__(self) -> int:
        return self.cells.height

    def where(self, row: int, column: str = "") -> str:
        """The file, the line and the column of a cell, as errors name them."""
        for number, (line, _) in enumerate(self._text.rows(), start=-1 if self._has_header else 0):
            if number == row:
                return f"{self.source}, line {line}" + f", column {column!r}" * bool(column)
        raise IndexError(row)

    def texts(self, column: str) -> list[str]:
        """A column as strings."""
        return self._column(column).to_list()

    def filled_texts(self, column: str) -> list[str]:
        """A column as strings, none of which may be empty."""
        texts = self.texts(column)
        if "" in texts:
            raise own_data_error(f"{self.where(texts.index(''), column)}: the cell is empty")
        return texts

    def numbers(self, columns: Sequence[str], *, missing: Sequence[str] = ()) -> NDArray[np.float64]:
        """Columns as finite numbers [rows, columns]; a cell that equals a word of `missing` is NaN."""
        texts = [self._column(column) for column in columns]
        values = np.stack([series.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy() for series in texts], 1)
        absent = np.stack([series.is_in(list(missing)).to_numpy() for series in texts], 1)
        if (wrong := ~np.isfinite(values) & ~absent).any():
            row, column = divmod(int(wrong.argmax()), len(columns))
            other = f" or {missing[0] or 'an empty cell'}" if missing else ""
            raise own_data_error(
                f"{self.where(row, columns[column])}: expected a number{other}, found {texts[column][row]!r}"
            )
        return np.where(absent, np.nan, values)

    def _column(self, name: str) -> pl.Series:
        if name not in self.names:
            raise own_data_error(f"{self.source} has no column {name!r}; {nearest(name, self.names)}")
        return self.cells.to_series(self.names.index(name))


def read_csv(path: Path, *, delimiter: str = ",", skip_empty: bool = False) -> CsvTable:
    """Read a CSV file in UTF-8, whose first line names the columns. Each column needs a different name."""
    try:
        text = path.read_text(encoding="utf-8-sig").rstrip(" \r\n".replace(delimiter, ""))
    except (OSError, UnicodeDecodeError) as error:
        raise own_data_error(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    table = parse_csv(str(path), text, delimiter=delimiter, skip_empty=skip_empty)
    if repeated := [name for name in table.names if table.names.count(name) > 1]:
        raise own_data_error(f"{path} has two columns {repeated[0]!r}")
    return table


def parse_csv(
    source: str, text: str, names: Sequence[str] | None = None, *, delimiter: str = ",", skip_empty: bool = False
) -> CsvTable:
    """Parse CSV text.

    Args:
        source: what errors call the text.
        names: the names of the columns. Without them the first line names the columns.
        skip_empty: leave out rows without any value, where otherwise they are rows of empty cells.
    """
    place = _Text(source, text, delimiter, skip_empty)
    first = next(place.rows(), (1, []))[1]
    header = names is None
    names = tuple(_bare(name) for name in first) if names is None else tuple(names)
    if not any(_bare(cell) for cell in first):
        raise own_data_error(f"{source} is empty; expected a first line with the names of the columns")
    cells = _cells(place, len(names))[int(header) :]
    if skip_empty:
        cells = cells.filter(pl.any_horizontal(pl.all() != ""))
    if cells.is_empty():
        raise own_data_error(f"{source} has no row below its first line")
    return CsvTable(names, cells, place, header)


def _cells(place: _Text, width: int) -> pl.DataFrame:
    """All cells of the text as strings, the header included; every row has `width` cells."""
    data = place.text.encode()
    try:
        cells = pl.read_csv(data, has_header=False, separator=place.delimiter, infer_schema=False)
    except pl.exceptions.PolarsError as error:
        place.check_widths(width)
        why = str(error).splitlines()[0]
        raise own_data_error(f"{place.source} cannot be read: {why}; is a quotation mark missing?") from error
    # polars fills a short row with nulls, and an empty cell is null too
    if cells.width != width or cells.to_series(-1).null_count():
        place.check_widths(width)
    return cells.select(pl.all().fill_null("").str.strip_chars().str.strip_chars('"').str.strip_chars())


def _bare(cell: str) -> str:
    """A cell without the quotes and the blanks around it."""
    return cell.strip().strip('"').strip()
