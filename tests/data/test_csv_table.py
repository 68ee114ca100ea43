"""The CSV reader: quoted cells, empty rows, and the line numbers in errors."""

import numpy as np
import pytest

from feda2l.data.csv_table import parse_csv
from feda2l.errors import FedA2LError

QUOTED = 'name,x\n"a,\nb",1\n\n" c ",2\n"",\n d,three\n'


def test_quoted_cells_may_hold_delimiters_and_line_ends() -> None:
    table = parse_csv("own.csv", QUOTED, skip_empty=True)
    assert table.names == ("name", "x")
    assert table.texts("name") == ["a,\nb", "c", "d"]
    with pytest.raises(FedA2LError, match=r"own.csv, line 7, column 'x': expected a number, found 'three'"):
        table.numbers(["x"])


def test_rows_without_a_value_are_kept_unless_they_are_skipped() -> None:
    text = "x,y\n1,2\n,\n3,4"
    kept = parse_csv("own.csv", text)
    np.testing.assert_array_equal(kept.numbers(["y", "x"], missing=("",)), [[2, 1], [np.nan, np.nan], [4, 3]])
    assert kept.where(2, "x") == "own.csv, line 4, column 'x'"
    skipped = parse_csv("own.csv", text, skip_empty=True)
    assert skipped.numbers(["x"]).tolist() == [[1], [3]]
    assert skipped.where(1) == "own.csv, line 4"


def test_an_empty_line_is_one_empty_cell() -> None:
    one = parse_csv("own.csv", "x\n1\n\n3\n")
    np.testing.assert_array_equal(one.numbers(["x"], missing=("",)), [[1], [np.nan], [3]])
    with pytest.raises(FedA2LError, match="line 3: expected 2 values, found 1"):
        parse_csv("own.csv", "x,y\n1,2\n\n3,4\n")


def test_a_text_without_a_header_counts_lines_from_the_first() -> None:
    table = parse_csv("own.csv", "1;2\n3;x\n", ("a", "b"), delimiter=";")
    assert table.numbers(["a"]).tolist() == [[1], [3]]
    with pytest.raises(FedA2LError, match=r"own.csv, line 2, column 'b': expected a number, found 'x'"):
        table.numbers(["a", "b"])
    with pytest.raises(FedA2LError, match="line 1: expected 3 values, found 2"):
        parse_csv("own.csv", "1,2\n", ("a", "b", "c"))


@pytest.mark.parametrize("cell", ["0.1", "-1e-300", "5e-324", "1.7976931348623157e308", "+5", "123456789012345678"])
def test_numbers_are_rounded_as_python_rounds_them(cell: str) -> None:
    assert parse_csv("own.csv", f"x\n{cell}\n").numbers(["x"])[0, 0] == float(cell)
