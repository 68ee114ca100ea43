"""Time series: windows and numbers of the specification on the original files, and errors for every mistake."""

import dataclasses
import gzip
import io
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from feda2l.data import beijing, catalog, download, exchange_rate
from feda2l.data.csv_table import parse_csv
from feda2l.data.download import File, digest
from feda2l.data.series import (
    Lengths,
    Series,
    Site,
    assemble,
    complete_windows,
    forecast_errors,
    last_value,
    naive_errors,
    split_rows,
    split_windows,
    window_mean,
    windows,
)
from feda2l.errors import FedA2LError

SHORT = Lengths(3, 2)


@pytest.fixture(scope="module")
def rates(official: Path) -> Series:
    return exchange_rate.load(official)


@pytest.fixture(scope="module")
def air(official: Path) -> Series:
    return beijing.load(official)


def counts(node: torch.Tensor) -> list[int]:
    return torch.bincount(node).tolist()


# the official files


def test_exchange_rates_have_the_windows_of_the_specification(rates: Series) -> None:
    assert (rates.nodes, rates.channels, rates.input) == (8, 1, (96, 1))
    assert counts(rates.train_node) == [5879] * 8
    assert counts(rates.test_node) == [1325] * 8
    assert rates.rows.shape == (8 * 7588, 1)
    assert rates.rows.dtype == torch.float32
    assert rates.train_starts[:2].tolist() == [0, 1]
    assert int(rates.train_starts[5878]) + 191 == 6069  # train rows 0..6069, test rows 6071..7586
    assert int(rates.test_starts[0]) == 6071
    assert int(rates.test_starts[1324]) + 191 == 7586


def test_beijing_has_the_windows_of_the_specification(air: Series) -> None:
    assert (air.nodes, air.channels, air.input) == (12, 11, (96, 11))
    assert air.variates == ("PM2.5", "PM10", "SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "RAIN", "WSPM")
    train, test = counts(air.train_node), counts(air.test_node)
    total = [sum(parts) for parts in zip(train, test, air.left_out.tolist(), strict=True)]
    assert sum(total) == 35_822
    sizes = dict(zip(air.names, total, strict=True))
    assert (sizes["Shunyi"], sizes["Wanshouxigong"]) == (213, 5_240)
    complete = [~air.rows[a:b].isnan().any(dim=1) for a, b in zip(air.bounds, air.bounds[1:], strict=False)]
    rows = torch.tensor([float(mask.sum()) for mask in complete])
    assert (round(rows.mean().item()), round(rows.std(correction=0).item())) == (31_847, 981)
    for windows_of_site, tested in zip(total, test, strict=True):
        assert windows_of_site - tested == int(0.8 * windows_of_site)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("rates", {"last_value": 0.0533, "window_mean": 0.0894}), ("air", {"last_value": 1.079, "window_mean": 0.770})],
)
def test_naive_forecasts_have_the_errors_of_the_specification(
    name: str, expected: dict[str, float], request: pytest.FixtureRequest
) -> None:
    series = request.getfixturevalue(name)
    for kind, errors in naive_errors(series).items():
        digits = 4 if name == "rates" else 3
        assert round(errors.mse.mean().item(), digits) == expected[kind]
        assert errors.mse.shape == errors.mae.shape == (series.nodes,)
        assert (errors.mae.square() <= errors.mse + 1e-12).all()  # Jensen


@pytest.mark.parametrize(("fraction", "last", "mean"), [(0.7, 0.0922, 0.1462), (0.75, 0.0650, 0.1045)])
def test_other_splits_have_the_errors_of_the_specification(
    official: Path, fraction: float, last: float, mean: float
) -> None:
    errors = naive_errors(exchange_rate.load(official, train_fraction=fraction))
    assert errors["last_value"].mse.mean().item() == pytest.approx(last, abs=1e-4)
    assert errors["window_mean"].mse.mean().item() == pytest.approx(mean, abs=1e-4)


@pytest.mark.parametrize("name", ["rates", "air"])
def test_rows_are_standardised_by_the_training_part(name: str, request: pytest.FixtureRequest) -> None:
    series = request.getfixturevalue(name)
    for node in range(series.nodes):
        cut = int(series.test_starts[series.test_node == node].min()) - (name == "rates")
        part = series.rows[series.bounds[node] : cut].double()
        part = part[~part.isnan().any(dim=1)]
        torch.testing.assert_close(part.mean(dim=0), torch.zeros(series.channels).double(), rtol=0, atol=1e-6)
        torch.testing.assert_close(part.std(dim=0), torch.ones(series.channels).double(), rtol=1e-6, atol=0)
        last_train = int(series.train_starts[series.train_node == node].max())
        assert last_train + series.lengths.window <= cut  # no row of a training window is at or after the cut


def test_original_restores_the_units_of_the_file(official: Path, rates: Series, air: Series) -> None:
    lines = gzip.decompress((official / "exchange_rate.txt.gz").read_bytes()).decode().splitlines()
    for node in range(8):
        values = rates.original(rates.rows[node * 7588 : node * 7588 + 2].double(), node)
        assert values.flatten().tolist() == pytest.approx(
            [float(line.split(",")[node]) for line in lines[:2]], rel=1e-5
        )
    first = air.original(air.rows[air.bounds[8]].double(), 8)  # Shunyi's first hour, copied from the file
    assert first.tolist() == pytest.approx([3, 6, 3, 8, 300, 44, -0.9, 1025.8, -20.5, 0, 9.3], abs=1e-3)


def test_windows_have_no_missing_value_and_stay_within_their_node(air: Series) -> None:
    for starts, node in ((air.train_starts, air.train_node), (air.test_starts, air.test_node)):
        bounds = torch.tensor(air.bounds)
        assert (starts >= bounds[node]).all()
        assert (starts + 192 <= bounds[node + 1]).all()
        for some in starts.split(1024):
            assert not windows(air.rows, some, 192).isnan().any()


def test_the_data_need_less_than_20_mebibytes(air: Series, rates: Series) -> None:
    for series in (air, rates):
        starts = (series.train_starts, series.train_node, series.test_starts, series.test_node)
        assert sum(tensor.nbytes for tensor in (series.rows, *starts)) < 20 * 2**20


def test_crossing_windows_can_be_kept(official: Path, air: Series) -> None:
    kept = beijing.load(official, crossing="train")
    assert len(kept.train_starts) + len(kept.test_starts) == 35_822
    assert torch.equal(kept.test_starts, air.test_starts)
    assert torch.equal(kept.rows.nan_to_num(), air.rows.nan_to_num())


def test_the_checksums_match_the_files(official: Path) -> None:
    for name, file in (exchange_rate.ARCHIVE.files | beijing.ARCHIVE.files).items():
        path = official / name
        assert (path.stat().st_size, digest(path, "sha256")) == (file.size, file.sha256)
    assert digest(official / "exchange_rate.txt.gz", "md5") == exchange_rate.ARCHIVE.checksum


# windows and splits


def test_windows_are_the_rows_from_their_starts() -> None:
    rows = torch.arange(20.0).reshape(10, 2)
    starts = torch.tensor([7, 0, 7])
    expected = torch.stack([rows[start : start + 3] for start in starts])
    assert torch.equal(windows(rows, starts, 3), expected)
    assert windows(rows, starts[:0], 3).shape == (0, 3, 2)


@pytest.mark.parametrize("stride", [1, 2, 5])
@pytest.mark.parametrize("rows", [30, 31, 57])
def test_split_rows_counts_as_by_hand(rows: int, stride: int) -> None:
    split = split_rows(rows, SHORT, train_fraction=0.6, stride=stride)
    cut = int(0.6 * rows)
    assert split.train.tolist() == [s for s in range(0, rows, stride) if s + 5 <= cut]
    assert split.test.tolist() == [s for s in range(cut + 1, rows, stride) if s + 5 <= rows - 1]
    assert split.cut == cut


@pytest.mark.parametrize("stride", [1, 3])
def test_split_windows_counts_as_by_hand(stride: int) -> None:
    complete = np.random.default_rng(0).random(300) > 0.08
    starts = [s for s in range(0, 296, stride) if complete[s : s + 5].all()]
    first = int(0.8 * len(starts))
    split = split_windows(complete, SHORT, stride=stride)
    assert split.cut == starts[first]
    assert split.test.tolist() == starts[first:]
    assert split.train.tolist() == [s for s in starts[:first] if s + 5 <= split.cut]
    assert split.left_out == first - len(split.train)
    kept = split_windows(complete, SHORT, stride=stride, crossing="train")
    assert (kept.train.tolist(), kept.left_out) == (starts[:first], 0)


def test_complete_windows_may_be_empty() -> None:
    assert complete_windows(np.zeros(10, dtype=bool), 3).tolist() == []
    assert complete_windows(np.ones(2, dtype=bool), 3).tolist() == []


@pytest.mark.parametrize("fraction", [0, 1, -0.1, float("nan")])
def test_a_fraction_that_leaves_a_part_empty_is_an_error(fraction: float) -> None:
    with pytest.raises(FedA2LError, match=r"train_fraction must be above 0 and below 1"):
        split_rows(100, SHORT, train_fraction=fraction)


@pytest.mark.parametrize(("lengths", "stride"), [((0, 2), 1), ((3, 0), 1), ((3, 2), 0)])
def test_lengths_and_stride_are_at_least_one(lengths: tuple[int, int], stride: int) -> None:
    with pytest.raises(FedA2LError, match="input, horizon and stride must be at least 1"):
        split_windows(np.ones(100, dtype=bool), Lengths(*lengths), stride=stride)


def test_a_constant_variate_stays_finite() -> None:
    rows = np.stack([np.arange(20.0), np.full(20, 7.0)], axis=1)
    series = assemble("toy", [Site("a", rows, split_rows(20, SHORT, train_fraction=0.5))], ("x", "y"), SHORT)
    assert (series.rows[:, 1] == 0).all()
    torch.testing.assert_close(series.original(series.rows.double(), 0), torch.from_numpy(rows), atol=1e-5, rtol=0)


def test_errors_of_a_forecast_are_means_over_windows_per_node() -> None:
    """Two nodes with rows of zeros. The forecast error is 1 at one node and 2 at the other."""
    zeros = torch.zeros(40, 1)
    series = Series(
        name="toy",
        rows=zeros,
        bounds=(0, 20, 40),
        train_starts=torch.tensor([0]),
        train_node=torch.tensor([0]),
        test_starts=torch.tensor([0, 1, 20]),
        test_node=torch.tensor([0, 0, 1]),
        left_out=torch.tensor([0, 0]),
        lengths=SHORT,
        names=("a", "b"),
        variates=("x",),
        means=torch.zeros(2, 1),
        stds=torch.ones(2, 1),
    )
    offsets = iter([torch.tensor([1.0, -1.0]), torch.tensor([2.0])])
    errors = forecast_errors(series, lambda x: next(offsets).view(-1, 1, 1).expand(-1, 2, 1), batch=2)
    assert errors.mse.tolist() == [1.0, 4.0]
    assert errors.mae.tolist() == [1.0, 2.0]
    assert series.groups is series.train_node


def test_the_naive_forecasts_by_hand() -> None:
    x = torch.tensor([[[1.0, 10.0], [2.0, 20.0], [6.0, 60.0]]])
    assert last_value(x, 2).tolist() == [[[6.0, 60.0]] * 2]
    assert window_mean(x, 2).tolist() == [[[3.0, 30.0]] * 2]


# files with mistakes


def zipped(members: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return content.getvalue()


def packed_twice(files: dict[str, bytes]) -> bytes:
    """The Beijing archive: an archive inside an archive."""
    assert beijing.ARCHIVE.inner is not None
    inside = zipped({f"{beijing.ARCHIVE.folder}/{name}": text for name, text in files.items()})
    return zipped({beijing.ARCHIVE.inner: inside, "data.csv": b""})


def write_rates(folder: Path, lines: list[str]) -> Path:
    path = folder / "exchange_rate.txt.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


RATE = ",".join(["1.5"] * 8)


def test_a_missing_file_of_rates_is_reported(tmp_path: Path) -> None:
    words = rf"{tmp_path}/exchange_rate.txt.gz is missing; `feda2l data fetch exchange_rate.*raw.githubusercontent.com"
    with pytest.raises(FedA2LError, match=words):
        exchange_rate.load(tmp_path)


def test_a_truncated_file_of_rates_is_reported(official: Path, tmp_path: Path) -> None:
    content = (official / "exchange_rate.txt.gz").read_bytes()
    path = tmp_path / "exchange_rate.txt.gz"
    path.write_bytes(content[:1000])
    with pytest.raises(FedA2LError, match=f"{path} is damaged: expected 177142 bytes, found 1000"):
        exchange_rate.load(tmp_path)
    with pytest.raises(FedA2LError, match=f"{path} cannot be read"):
        exchange_rate.read(path)


@pytest.mark.parametrize("word", ["abc", "", "nan", "inf", "NA"])
def test_a_rate_that_is_not_a_number_is_reported(tmp_path: Path, word: str) -> None:
    path = write_rates(tmp_path, [RATE, f"1,2,3,{word},5,6,7,8", RATE])
    words = f"{path}, line 2, column 'Switzerland': expected a number, found {word!r}"
    with pytest.raises(FedA2LError, match=re.escape(words)):
        exchange_rate.read(path)


def test_a_line_of_rates_with_too_few_values_is_reported(tmp_path: Path) -> None:
    path = write_rates(tmp_path, [RATE, RATE, "1,2,3"])
    with pytest.raises(FedA2LError, match=f"{path}, line 3: expected 8 values, found 3"):
        exchange_rate.read(path)


def test_an_empty_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FedA2LError, match="is empty"):
        exchange_rate.read(write_rates(tmp_path, []))
    with pytest.raises(FedA2LError, match="here has no row below its first line"):
        parse_csv("here", "a,b\n")


def test_a_series_shorter_than_a_window_is_reported(tmp_path: Path) -> None:
    path = write_rates(tmp_path, [RATE] * 150)
    words = r"Australia has no train window of 96 \+ 96 rows: of its 150 rows at most 150 in succession"
    with pytest.raises(FedA2LError, match=words):
        exchange_rate.read(path)
    with pytest.raises(FedA2LError, match="Australia has no test window"):
        exchange_rate.read(path, lengths=(24, 24))
    assert exchange_rate.read(path, lengths=(12, 12)).input == (12, 1)


HEADER = (
    '"No","year","month","day","hour",' + ",".join(f'"{v}"' for v in beijing.VARIATES[:-1]) + ',"wd","WSPM","station"'
)


def hour(number: int, *, wind: str = '"NW"', **cells: str) -> str:
    """The line of a station's file for `number` hours after 2013-03-01."""
    day, clock = divmod(number, 24)
    named = {name: str(number % 7 + place) for place, name in enumerate(beijing.VARIATES)} | cells
    values = [named[name] for name in beijing.VARIATES]
    date = [cells.get("month", "3"), cells.get("day", str(day + 1)), cells.get("hour", str(clock))]
    return ",".join([str(number + 1), "2013", *date, *values[:-1], wind, values[-1], '"Here"'])


def station(lines: list[str], **options: object) -> Series:
    table = parse_csv("here.csv", "\r\n".join([HEADER, *lines, ""]))
    return beijing.read([("Here", table)], **{"lengths": (3, 2), **options})  # type: ignore[arg-type]


LINES = [hour(number) for number in range(100)]


def test_an_incomplete_hour_breaks_windows_in_every_column() -> None:
    whole = station(LINES)
    assert len(whole.train_starts) + len(whole.test_starts) + int(whole.left_out) == 96
    for gap in (hour(50, RAIN="NA"), hour(50, wind="NA"), None):
        lines = LINES[:50] + [gap] * (gap is not None) + LINES[51:]
        series = station(lines)
        assert len(series.train_starts) + len(series.test_starts) + int(series.left_out) == 96 - 5
        assert series.rows[50].isnan().all()
        assert int(series.rows.isnan().any(dim=1).sum()) == 1


def test_the_order_of_the_lines_does_not_matter() -> None:
    shuffled = [LINES[i] for i in np.random.default_rng(0).permutation(100)]
    assert torch.equal(station(shuffled).rows, station(LINES).rows)


def test_stations_share_one_clock() -> None:
    tables = [
        (name, parse_csv(name, "\n".join([HEADER, *lines])))
        for name, lines in {"late": LINES[10:], "early": LINES[:90]}.items()
    ]
    series = beijing.read(tables, lengths=(3, 2))
    assert series.bounds == (0, 100, 200)
    assert series.rows[:10].isnan().all()
    assert series.rows[190:].isnan().all()
    assert series.names == ("late", "early")


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"SO2": "x7"}, "line 7, column 'SO2': expected a number or NA, found 'x7'"),
        ({"SO2": "nan"}, "line 7, column 'SO2': expected a number or NA, found 'nan'"),
        ({"SO2": "inf"}, "line 7, column 'SO2': expected a number or NA, found 'inf'"),
        ({"SO2": ""}, "line 7, column 'SO2': expected a number or NA, found ''"),
        ({"month": "NA"}, "line 7, column 'month': expected a number, found 'NA'"),
        ({"month": "13"}, "line 7, column 'month': expected a whole number in 1..12, found 13"),
        ({"hour": "4.5"}, "line 7, column 'hour': expected a whole number in 0..23, found 4.5"),
    ],
)
def test_an_invalid_cell_is_reported(cells: dict[str, str], words: str) -> None:
    with pytest.raises(FedA2LError, match="here.csv, " + re.escape(words)):
        station([*LINES[:5], hour(5, **cells), *LINES[6:]])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([*LINES[:5], "6,2013,3", *LINES[6:]], "line 7: expected 18 values, found 3"),
        ([*LINES, LINES[20]], "line 102: the hour is the same as in here.csv, line 22"),
        ([hour(number, O3="NA") for number in range(100)], "every value of column 'O3' is missing"),
        ([hour(number, wind="NA") for number in range(100)], "a value in every hour is missing"),
    ],
)
def test_an_invalid_station_is_reported(lines: list[str], words: str) -> None:
    with pytest.raises(FedA2LError, match="here.csv.*" + re.escape(words)):
        station(lines)


def test_a_station_without_a_complete_window_is_reported() -> None:
    lines = [hour(number, **({"CO": "NA"} if number % 4 == 3 else {})) for number in range(100)]
    words = r"Here has no train window of 3 \+ 2 rows: of its 99 rows at most 3 in succession have no missing value"
    with pytest.raises(FedA2LError, match=words):
        station(lines)
    assert station(lines, lengths=(2, 1)).input == (2, 11)


def test_a_missing_column_is_reported() -> None:
    table = parse_csv("here.csv", "\n".join([HEADER.replace("PRES", "PRESS"), *LINES]))
    with pytest.raises(FedA2LError, match=r"here.csv has no column 'PRES'; known: No, year, .*PRESS"):
        beijing.read([("Here", table)])


def test_no_station_is_an_error() -> None:
    with pytest.raises(FedA2LError, match="at least one station"):
        beijing.read([])


def test_missing_stations_are_reported_with_their_paths(official: Path, tmp_path: Path) -> None:
    with pytest.raises(
        FedA2LError, match=rf"{tmp_path}/PRSA_Data_20130301-20170228/PRSA_Data_Aoti.*archive.ics.uci.edu"
    ):
        beijing.load(tmp_path)
    for name in list(beijing.ARCHIVE.files)[1:]:
        (tmp_path / name).symlink_to(official / name)
    with pytest.raises(FedA2LError, match=f"{tmp_path}/PRSA_Data_Aotizhongxin_20130301-20170228.csv is missing"):
        beijing.load(tmp_path)
    path = tmp_path / next(iter(beijing.ARCHIVE.files))
    path.write_text("cut off")
    with pytest.raises(FedA2LError, match=f"{path} is damaged: expected 2835916 bytes, found 7"):
        beijing.load(tmp_path)


def test_the_nested_archive_is_sufficient(
    official: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, air: Series
) -> None:
    path = tmp_path / beijing.ARCHIVE.name
    path.write_bytes(packed_twice({name: (official / name).read_bytes() for name in beijing.ARCHIVE.files}))
    with pytest.raises(FedA2LError, match=f"{re.escape(str(path))} is not the official archive: expected sha256 b04d"):
        download.fetch(beijing.ARCHIVE, tmp_path)
    archive = dataclasses.replace(beijing.ARCHIVE, checksum=digest(path, "sha256"))
    entry = dataclasses.replace(catalog.CATALOG["beijing_air_quality"], archive=archive)
    monkeypatch.setitem(catalog.CATALOG, "beijing_air_quality", entry)
    before = catalog.verify("beijing_air_quality", tmp_path)
    assert before.official
    assert [line.count("in the archive, not extracted yet") for line in before.lines] == [0, *[1] * 12]
    assert torch.equal(beijing.load(tmp_path).train_starts, air.train_starts)
    after = catalog.verify("beijing_air_quality", tmp_path)
    assert after.official
    assert f"ok  {tmp_path / archive.folder / beijing.file_name('Shunyi')}: official bytes" in after.lines[9]
    assert f"{len(air.train)} training and {len(air.test)} test windows of 96 x 11" in after.lines[-1]


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (b"PK nothing", "is not a whole archive"),
        ({"other.zip": b""}, "does not contain PRSA2017_Data_20130301-20170228.zip"),
        ({beijing.ARCHIVE.inner: b"PK nothing"}, "is not a whole archive"),
    ],
)
def test_an_archive_without_an_inner_archive_is_reported(
    packed: bytes | dict[str, bytes], words: str, tmp_path: Path
) -> None:
    path = tmp_path / beijing.ARCHIVE.name
    path.write_bytes(packed if isinstance(packed, bytes) else zipped(packed))
    with pytest.raises(FedA2LError, match=f"{re.escape(str(path))} {words}"):
        beijing.load(tmp_path)
    assert [left.name for left in tmp_path.iterdir()] == [path.name]


def test_a_binary_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / beijing.file_name("Shunyi")
    path.write_bytes(b"a\xffb")
    monkeypatch.setattr(beijing, "STATIONS", {"Shunyi": File(3, "")})
    monkeypatch.setattr(beijing, "ARCHIVE", dataclasses.replace(beijing.ARCHIVE, files={path.name: File(3, "")}))
    with pytest.raises(FedA2LError, match=f"{path} is damaged: byte 1 is not text"):
        beijing.load(tmp_path)
