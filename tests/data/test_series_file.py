"""Time series from a user's CSV file: sites, gaps, columns, and errors for every mistake."""

from pathlib import Path

import numpy as np
import pytest
import torch

from feda2l.data import series_file
from feda2l.data.series import Lengths, split_windows
from feda2l.errors import FedA2LError

LENGTHS = (3, 2)


def write(folder: Path, *lines: str, name: str = "own.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def rows(count: int, *, site: str | None = None, gap: int | None = None, word: str = "") -> list[str]:
    """Lines `[site,] x, y` of a straight line and a wave. The y cell of line `gap` holds `word`."""
    lines = []
    for t in range(count):
        y = word if t == gap else f"{np.sin(t):.6f}"
        lines.append(",".join([*([site] if site else []), str(t), y]))
    return lines


def test_a_file_without_a_node_column_is_one_site(tmp_path: Path) -> None:
    series = series_file.load(write(tmp_path, "x,y", *rows(40)), lengths=LENGTHS)
    assert (series.name, series.names, series.variates) == ("own", ("own",), ("x", "y"))
    split = split_windows(np.ones(40, dtype=bool), Lengths(*LENGTHS))
    assert series.train_starts.tolist() == split.train.tolist()
    assert series.test_starts.tolist() == split.test.tolist()
    before = np.array([[t, np.sin(t)] for t in range(split.cut)])
    torch.testing.assert_close(series.means[0], torch.from_numpy(before.mean(axis=0)), rtol=0, atol=1e-6)
    torch.testing.assert_close(series.stds[0], torch.from_numpy(before.std(axis=0, ddof=1)), rtol=0, atol=1e-6)
    back = series.original(series.rows.double(), 0)
    torch.testing.assert_close(back[:, 0], torch.arange(40.0).double(), rtol=0, atol=1e-5)


def test_lines_of_sites_may_be_interleaved_and_sites_are_sorted(tmp_path: Path) -> None:
    apart = [*rows(40, site="9"), *rows(30, site="10")]
    mixed = [line for pair in zip(apart[:30], apart[40:], strict=True) for line in pair] + apart[30:40]
    one = series_file.load(write(tmp_path, "site,x,y", *apart), node="site", lengths=LENGTHS)
    other = series_file.load(write(tmp_path, "site,x,y", *mixed), node="site", lengths=LENGTHS)
    assert one.names == other.names == ("9", "10")  # whole numbers are sorted by value
    assert one.bounds == other.bounds == (0, 40, 70)
    assert torch.equal(one.rows, other.rows)
    assert torch.equal(one.train_node, other.train_node)


@pytest.mark.parametrize("word", ["", '""', "NA", "NaN", "nan", " "])
def test_no_window_holds_a_missing_cell(tmp_path: Path, word: str) -> None:
    series = series_file.load(write(tmp_path, "x,y", *rows(60, gap=10, word=word)), lengths=LENGTHS)
    assert series.rows[10].isnan().tolist() == [False, True]
    starts = torch.cat([series.train_starts, series.test_starts]).tolist()
    assert not {6, 7, 8, 9, 10} & set(starts)
    assert {5, 11} <= set(starts)


def test_columns_can_be_selected_without_the_time_column(tmp_path: Path) -> None:
    lines = [f"2024-01-01 00:{t:02d},{row}" for t, row in enumerate(rows(40))]
    path = write(tmp_path, '"time", "x" ,y', *lines)
    series = series_file.load(path, variates=["y"], lengths=LENGTHS)
    assert series.variates == ("y",)
    assert series.channels == 1
    words = (
        rf"{path}, line 2, column 'time': expected a number or an empty cell, found '2024-01-01 00:00'; if this "
        r"column is not to be forecast, list the columns to forecast in data.feature_columns, or remove it from "
        r"the file"
    )
    with pytest.raises(FedA2LError, match=words):
        series_file.load(path, lengths=LENGTHS)


def test_a_stride_and_empty_lines_at_the_end(tmp_path: Path) -> None:
    series = series_file.load(write(tmp_path, "x,y", *rows(60), "", ""), lengths=LENGTHS, stride=4)
    assert (torch.cat([series.train_starts, series.test_starts]) % 4 == 0).all()


@pytest.mark.parametrize(
    ("lines", "options", "words"),
    [
        (["x,y", *rows(40)], {"node": "site"}, r"has no column 'site'; known: x, y"),
        (["x,y", *rows(40)], {"variates": ["z"]}, r"has no column 'z'; known: x, y"),
        (["x,y", *rows(40)], {"variates": []}, r"own.csv has no column to forecast"),
        (["site", "a", "b"], {"node": "site"}, r"own.csv has no column beside 'site' to forecast"),
        (["x,x", *rows(40)], {}, r"own.csv has two columns 'x'"),
        (
            ["x,y", *rows(40, gap=3, word="high")],
            {"variates": ["x", "y"]},
            r"own.csv, line 5, column 'y': expected a number or an empty cell, found 'high'",
        ),
        (["x,y", *rows(40, gap=3, word="inf")], {}, r"own.csv, line 5, column 'y': expected a number.* found 'inf'"),
        (["x,y", *rows(40), "1,2,3"], {}, r"own.csv, line 42: expected 2 values, found 3"),
        (["site,x,y", *rows(40, site="a"), ",1,2"], {"node": "site"}, r"line 42, column 'site': the cell is empty"),
        (["x,y", *rows(4)], {}, r"own: own has no train window of 3 \+ 2 rows: of its 4 rows at most 4 in succession"),
        (["site,x,y", *rows(40, site="a"), *rows(3, site="b")], {"node": "site"}, r"own: b has no train window"),
        (
            ["site,x,y", *rows(40, site="a"), *["b,,1", "b,NA,2"] * 20],
            {"node": "site"},
            r"own.csv: b has no line without a missing value",
        ),
        (["x,y"], {}, r"own.csv has no row below its first line"),
        ([], {}, r"own.csv is empty"),
    ],
)
def test_a_mistake_is_reported(tmp_path: Path, lines: list[str], options: dict[str, object], words: str) -> None:
    path = write(tmp_path, *lines)
    with pytest.raises(FedA2LError, match=words):
        series_file.load(path, lengths=LENGTHS, **options)  # type: ignore[arg-type]


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FedA2LError, match=rf"{tmp_path}/no.csv cannot be read: No such file"):
        series_file.load(tmp_path / "no.csv")
    with pytest.raises(FedA2LError, match=rf"{tmp_path} cannot be read: Is a directory"):
        series_file.load(tmp_path)
    (tmp_path / "bytes.csv").write_bytes(b"a,b\n1,\xff\n")
    with pytest.raises(FedA2LError, match=r"bytes.csv cannot be read: .*0xff"):
        series_file.load(tmp_path / "bytes.csv")
