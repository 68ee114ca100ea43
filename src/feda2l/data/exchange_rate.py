"""Daily exchange rates of eight currencies, 1990 to 2016: 7,588 rows, one node per currency.

G. Lai, W.-C. Chang, Y. Yang, H. Liu, "Modeling Long- and Short-Term Temporal Patterns with Deep Neural Networks",
SIGIR 2018, from the file that the authors publish.
"""

import gzip
import zlib
from pathlib import Path

from feda2l.data.csv_table import parse_csv
from feda2l.data.download import Archive, File, locate
from feda2l.data.errors import damaged_data_error
from feda2l.data.series import Lengths, Series, Site, assemble, split_rows

COUNTRIES = ("Australia", "Britain", "Canada", "Switzerland", "China", "Japan", "New Zealand", "Singapore")

# The archive is a single file. The address names a commit of the authors' repository, whose git blob of this file
# (d72d0d7a5d5d06ecd1cf4c79396180b2962be101) is the checksum of exactly these bytes.
ARCHIVE = Archive(
    dataset="exchange_rate",
    url="https://raw.githubusercontent.com/laiguokun/multivariate-time-series-data/"
    "7f402f185cc2435b5e66aed13a3b560ed142e023/exchange_rate/exchange_rate.txt.gz",
    checksum="9dd5a9c8f8f324e234938400f232fa08",
    size=177_142,
    folder=".",
    files={
        "exchange_rate.txt.gz": File(177_142, "6a4fbb561dcdee43f071a83badbeec9223a335552278348656738b556f1c2e9d"),
    },
    proven=True,
)


def load(folder: Path, *, lengths: tuple[int, int] = (96, 96), train_fraction: float = 0.8, stride: int = 1) -> Series:
    """Load the official file in the data folder `folder`: 5,879 training and 1,325 test windows per currency."""
    path = locate(ARCHIVE, folder) / "exchange_rate.txt.gz"
    return read(path, lengths=lengths, train_fraction=train_fraction, stride=stride)


def read(path: Path, *, lengths: tuple[int, int] = (96, 96), train_fraction: float = 0.8, stride: int = 1) -> Series:
    """Read any file of that form: gzipped lines of eight rates without a header, one line per day.

    Each currency is a node with one variate, and is split at a row (`split_rows`).
    """
    try:
        text = gzip.decompress(path.read_bytes()).decode("ascii")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise damaged_data_error(f"{path} cannot be read: {error}; remove it and fetch it again") from error
    rates = parse_csv(str(path), text, COUNTRIES).numbers(COUNTRIES)
    given = Lengths(*lengths)
    split = split_rows(len(rates), given, train_fraction=train_fraction, stride=stride)
    sites = (Site(country, rates[:, [column]], split) for column, country in enumerate(COUNTRIES))
    return assemble("exchange_rate", sites, ("rate",), given)
