"""Hourly air quality at 12 stations in Beijing, 2013-03-01 to 2017-02-28: 11 variates, one node per station.

S. Zhang, B. Guo, A. Dong, J. He, Z. Xu, S. X. Chen, "Cautionary Tales on Air-Quality Improvement in Beijing",
Proceedings of the Royal Society A 473, 2017; UCI Machine Learning Repository, data set 501 (CC BY 4.0).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feda2l.data.csv_table import CsvTable, parse_csv
from feda2l.data.download import Archive, File, locate
from feda2l.data.errors import damaged_data_error
from feda2l.data.series import Lengths, Series, SeriesValues, Site, assemble, split_windows
from feda2l.errors import FedA2LError

DATASET = "beijing_air_quality"
VARIATES = ("PM2.5", "PM10", "SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "RAIN", "WSPM")
WIND = "wd"  # the direction as a word: it is not forecast, but an hour without it counts as incomplete
MISSING = "NA"
CLOCK = {"year": (1900, 2200), "month": (1, 12), "day": (1, 31), "hour": (0, 23)}

STATIONS = {
    "Aotizhongxin": File(2_835_916, "a94fbcfc71708b6ffdc033360163d91efb7f675e496f6b5860929aa96b96351b"),
    "Changping": File(2_722_295, "a2e21402a6d95fb7043f87959e6e3dcbecb957aac356a6f8028a85b047c772e7"),
    "Dingling": File(2_675_856, "3d8dff81f18a80d9f455876a785642bffe1e9b9924ec1e6b7ce8cca790432eeb"),
    "Dongsi": File(2_636_684, "9c0020214425e5ee2a64d42f97a1f632e1d8f6b53ad50edd85a686cc7999f27e"),
    "Guanyuan": File(2_695_860, "59390fee3b032597b387491f5230e7edb90a8558e30217ebd6d9befbe669fbf9"),
    "Gucheng": File(2_654_625, "10ae48801ea55869fee56a48b885fb1127859c130551888d71673f34216ba951"),
    "Huairou": File(2_641_027, "812dcbe848b3ba2c2d25731064797bff803c46eb0c602156a1fa044df136dc26"),
    "Nongzhanguan": File(2_839_705, "572cf87b65ef543cd55d3a711b28474def224a46b0ec3fc8add8aaf13b67a487"),
    "Shunyi": File(2_620_654, "520b59e4ead3b0cfe7f1ed673e30275de8441e999db6f413d5172d2277b8c15a"),
    "Tiantan": File(2_655_061, "0743e34799cf1ee36195b73321b91baa5625276532e7263c588f68cdef3b4daa"),
    "Wanliu": File(2_659_544, "0b1a6d754a07f0def2f55434ddfa3870dcd0063b7f766a6f66b6c11bb05a377a"),
    "Wanshouxigong": File(2_871_076, "ab1d6a356d6997a45f6d657ad47de1e05a4a08d4a7015b38a329a90665ab74d0"),
}


def file_name(station: str) -> str:
    """The name of a station's file."""
    return f"PRSA_Data_{station}_20130301-20170228.csv"


# UCI publishes an archive inside an archive, and no checksums. Several independent projects list this checksum of the
# archive. The checksums of the files were computed from two copies with equal bytes.
ARCHIVE = Archive(
    dataset=DATASET,
    url="https://archive.ics.uci.edu/static/public/501/beijing+multi+site+air+quality+data.zip",
    checksum="b04da438b2f331ac0ffd45aebdfec0d20d2367feb5f6948c4b1f7ce1191e33c4",
    size=8_192_212,
    folder="PRSA_Data_20130301-20170228",
    files={file_name(station): file for station, file in STATIONS.items()},
    proven=False,
    inner="PRSA2017_Data_20130301-20170228.zip",
)


def load(
    folder: Path,
    *,
    lengths: tuple[int, int] = (96, 96),
    train_fraction: float = 0.8,
    stride: int = 1,
    crossing: Literal["drop", "train"] = "drop",
) -> Series:
    """Load the 12 stations from the official files in the data folder `folder`: 35,822 windows of complete hours."""
    place = locate(ARCHIVE, folder)
    # a generator, so that the strings of only one file are in memory
    tables = ((station, _table(place / file_name(station))) for station in STATIONS)
    return read(tables, lengths=lengths, train_fraction=train_fraction, stride=stride, crossing=crossing)


def read(
    tables: Iterable[tuple[str, CsvTable]],
    *,
    lengths: tuple[int, int] = (96, 96),
    train_fraction: float = 0.8,
    stride: int = 1,
    crossing: Literal["drop", "train"] = "drop",
) -> Series:
    """Build the data set from tables of that form, given with the names of their stations.

    An hour with a missing value in any column, including the wind direction, is incomplete. All stations share one grid
    of hours. Only windows of complete hours are used (`split_windows`).
    """
    stations = [(name, _station(table)) for name, table in tables]
    if not stations:
        raise FedA2LError(f"{DATASET}: no station is given; at least one station is needed")
    begin = min(int(station.hours.min()) for _, station in stations)
    end = max(int(station.hours.max()) for _, station in stations) + 1
    given = Lengths(*lengths)
    sites: list[Site] = []
    for name, station in stations:
        grid = np.full((end - begin, len(VARIATES)), np.nan)
        grid[station.hours - begin] = station.values
        split = split_windows(
            ~np.isnan(grid).any(axis=1), given, train_fraction=train_fraction, stride=stride, crossing=crossing
        )
        sites.append(Site(name, grid, split))
    return assemble(DATASET, sites, VARIATES, given)


class Station(NamedTuple):
    """The complete hours of a station, as hours since 1970, and their values [hours, variates]."""

    hours: NDArray[np.int64]
    values: SeriesValues


def _station(table: CsvTable) -> Station:
    values = table.numbers(VARIATES, missing=(MISSING,))
    hours = _hours(table)
    empty = np.isnan(values).all(axis=0)
    complete = ~np.isnan(values).any(axis=1) & (np.array(table.texts(WIND)) != MISSING)
    if not complete.any():
        which = f"every value of column {VARIATES[int(empty.argmax())]!r}" if empty.any() else "a value in every hour"
        raise damaged_data_error(f"{table.source} cannot be used: {which} is missing; fetch the data again")
    return Station(hours[complete], values[complete])


def _hours(table: CsvTable) -> NDArray[np.int64]:
    """The hour of each row, counted from 1970-01-01; two rows of the same hour are an error."""
    parts = {}
    clock = table.numbers(tuple(CLOCK))
    for numbers, (column, (least, most)) in zip(clock.T, CLOCK.items(), strict=True):
        wrong = (numbers < least) | (numbers > most) | (numbers % 1 != 0)
        if wrong.any():
            row = int(wrong.argmax())
            raise damaged_data_error(
                f"{table.where(row, column)}: expected a whole number in {least}..{most}, found {numbers[row]:g}"
            )
        parts[column] = numbers.astype(np.int64)
    months = ((parts["year"] - 1970) * 12 + parts["month"] - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]").astype(np.int64) + parts["day"] - 1
    hours: NDArray[np.int64] = days * 24 + parts["hour"]
    order = np.argsort(hours, kind="stable")
    if (repeated := np.flatnonzero(np.diff(hours[order]) == 0)).size:
        first, second = order[repeated[0] : repeated[0] + 2].tolist()  # in order: the sort is stable
        raise damaged_data_error(f"{table.where(second)}: the hour is the same as in {table.where(first)}")
    return hours


def _table(path: Path) -> CsvTable:
    try:
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise damaged_data_error(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise damaged_data_error(f"{path} is damaged: byte {error.start} is not text; fetch it again") from error
    return parse_csv(str(path), text)
