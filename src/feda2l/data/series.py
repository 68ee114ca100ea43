"""Data sets of time series: each row is stored once, and windows are gathered from the rows on demand."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feda2l.errors import FedA2LError

SeriesValues = NDArray[np.float64]
Starts = NDArray[np.int64]
Part = Literal["train", "test"]
Forecast = Callable[[Tensor], Tensor]


class Lengths(NamedTuple):
    """The rows of a window that the model sees, and the following rows that it forecasts."""

    input: int = 96
    horizon: int = 96

    @property
    def window(self) -> int:
        return self.input + self.horizon


@dataclass(frozen=True)
class Series:
    """A data set as tensors: float32 rows [rows, channels] of all nodes in sequence, and the start rows of windows.

    Node k has the rows bounds[k] to bounds[k + 1] - 1, in equal steps of time. The first row of every node is at the
    same time. Values are standardised per node and variate, (value - mean) / std, with the mean and the sample standard
    deviation [nodes, channels] of the rows before the node's cut. A row with a missing value is NaN; no window contains
    such a row.

    A window is a start row in `train_starts` or `test_starts` (int64), with the number of its node in `train_node` or
    `test_node`, ordered by node and time. `left_out` [nodes] counts the windows that cross the cut and belong to
    neither part.
    """

    name: str
    rows: Tensor
    bounds: tuple[int, ...]
    train_starts: Tensor
    train_node: Tensor
    test_starts: Tensor
    test_node: Tensor
    left_out: Tensor
    lengths: Lengths
    names: tuple[str, ...]
    variates: tuple[str, ...]
    means: Tensor
    stds: Tensor

    @property
    def train(self) -> "Windows":
        return Windows(self.rows, self.train_starts, self.lengths)

    @property
    def test(self) -> "Windows":
        return Windows(self.rows, self.test_starts, self.lengths)

    @property
    def classes(self) -> None:
        """None: the targets are numbers."""
        return None

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.names

    @property
    def channels(self) -> int:
        """The number of variates."""
        return len(self.variates)

    @property
    def nodes(self) -> int:
        return len(self.names)

    @property
    def input(self) -> tuple[int, int]:
        """Length and channels of an input of the model."""
        return self.lengths.input, self.channels

    @property
    def groups(self) -> Tensor:
        """The node of each training window for a natural partition, as in `Images.groups`."""
        return self.train_node

    @property
    def test_groups(self) -> Tensor:
        """The node of each test window: nodes differ in scale, so each is tested on its own windows."""
        return self.test_node

    def batch(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs [n, input, channels] and the targets [n, horizon, channels] of a batch of windows."""
        both = windows(self.rows, starts, self.lengths.window)
        return both[:, : self.lengths.input], both[:, self.lengths.input :]

    def original(self, values: Tensor, node: int) -> Tensor:
        """Convert values of one node [..., channels] to the units of the file: value * std + mean."""
        mean, std = (table[node].to(values) for table in (self.means, self.stds))
        return values * std + mean


@dataclass(frozen=True)
class Windows:
    """Windows as samples: inputs and the targets that follow them, gathered from the rows on demand."""

    rows: Tensor
    starts: Tensor
    lengths: Lengths

    def __len__(self) -> int:
        return len(self.starts)

    def inputs(self, index: Tensor) -> Tensor:
        return windows(self.rows, self.starts[index], self.lengths.input)

    def targets(self, index: Tensor) -> Tensor:
        return windows(self.rows, self.starts[index] + self.lengths.input, self.lengths.horizon)

    def to(self, device: torch.device) -> "Windows":
        return replace(self, rows=self.rows.to(device), starts=self.starts.to(device))


def windows(rows: Tensor, starts: Tensor, length: int) -> Tensor:
    """The `length` rows from each start, [n, length, channels], by one gather.

    >>> windows(torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.tensor([2, 0]), 2).squeeze(-1).tolist()
    [[2.0, 3.0], [0.0, 1.0]]
    """
    return rows[starts.unsqueeze(-1) + torch.arange(length, device=starts.device)]


class Split(NamedTuple):
    """The start rows of the windows of one node; the rows before `cut` determine the scaling."""

    train: Starts
    test: Starts
    cut: int
    left_out: int


def split_rows(rows: int, lengths: Lengths, *, train_fraction: float = 0.8, stride: int = 1) -> Split:
    """Split a series without gaps at row c = floor(train_fraction * rows).

    Training windows use the rows 0 .. c - 1, test windows the rows c + 1 .. rows - 2. The row at the cut and the last
    row are unused, as in FedProC, whose published numbers these windows reproduce. No row is in both parts.

    >>> split = split_rows(7588, Lengths())
    >>> len(split.train), len(split.test), split.cut
    (5879, 1325, 6070)
    """
    _check(lengths, train_fraction, stride)
    cut = int(train_fraction * rows + 1e-9)  # corrects rounding: 0.29 * 100 is 28.999999999999996
    train = np.arange(0, cut - lengths.window + 1, stride)
    test = np.arange(cut + 1, rows - lengths.window, stride)
    possible = len(range(0, rows - lengths.window + 1, stride))
    return Split(train, test, cut, possible - len(train) - len(test))


def split_windows(
    complete: NDArray[np.bool_],
    lengths: Lengths,
    *,
    train_fraction: float = 0.8,
    stride: int = 1,
    crossing: Literal["drop", "train"] = "drop",
) -> Split:
    """Split a series with gaps. Only windows whose rows are all complete are used; n is their number.

    The cut is the start of window floor(train_fraction * n), counted from 0. That window and all later ones are test
    windows. Earlier windows that end before the cut are training windows. The other windows cross the cut, so they
    share rows with test windows. They are dropped, or used for training with `crossing="train"`.
    With a `stride`, only starts that are multiples of it are used.
    """
    _check(lengths, train_fraction, stride)
    starts = complete_windows(complete, lengths.window)
    starts = starts[starts % stride == 0]
    first = int(train_fraction * len(starts) + 1e-9)
    if not len(starts):
        return Split(starts, starts, len(complete), 0)
    cut, train = int(starts[first]), starts[:first]
    if crossing == "drop":
        train = train[train + lengths.window <= cut]
    return Split(train, starts[first:], cut, first - len(train))


def complete_windows(complete: NDArray[np.bool_], length: int) -> Starts:
    """The starts of `length` consecutive complete rows.

    >>> complete_windows(np.array([True, True, True, False, True, True]), 2).tolist()
    [0, 1, 4]
    """
    counts = np.concatenate([[0], np.cumsum(complete)])
    return np.flatnonzero(counts[length:] - counts[:-length] == length)


class Site(NamedTuple):
    """One node before scaling: its rows [rows, channels] in the units of the file (NaN if missing) and its windows."""

    name: str
    rows: SeriesValues
    split: Split


def assemble(name: str, sites: Iterable[Site], variates: tuple[str, ...], lengths: Lengths) -> Series:
    """Build the standardised data set. A node without a training window or a test window is an error."""
    names: list[str] = []
    rows, means, stds, left_out = [], [], [], []
    starts: dict[Part, list[Starts]] = {"train": [], "test": []}
    bounds = [0]
    for site in sites:
        for part in ("train", "test"):
            site_starts: Starts = getattr(site.split, part)
            if not len(site_starts):
                raise FedA2LError(_too_short(name, site, part, lengths))
            starts[part].append(site_starts + bounds[-1])
        complete = site.rows[: site.split.cut]
        complete = complete[~np.isnan(complete).any(axis=1)]
        mean, std = complete.mean(axis=0), complete.std(axis=0, ddof=1)
        std[std == 0] = 1.0  # a variate that is constant before the cut becomes 0, not NaN
        names.append(site.name)
        rows.append(((site.rows - mean) / std).astype(np.float32))
        means.append(mean)
        stds.append(std)
        left_out.append(site.split.left_out)
        bounds.append(bounds[-1] + len(site.rows))
    node = {
        part: np.repeat(np.arange(len(names)), [len(site_starts) for site_starts in starts[part]]) for part in starts
    }
    return Series(
        name=name,
        rows=torch.from_numpy(np.concatenate(rows)),
        bounds=tuple(bounds),
        train_starts=torch.from_numpy(np.concatenate(starts["train"])),
        train_node=torch.from_numpy(node["train"]),
        test_starts=torch.from_numpy(np.concatenate(starts["test"])),
        test_node=torch.from_numpy(node["test"]),
        left_out=torch.tensor(left_out, dtype=torch.int64),
        lengths=lengths,
        names=tuple(names),
        variates=variates,
        means=torch.from_numpy(np.stack(means)),
        stds=torch.from_numpy(np.stack(stds)),
    )


def last_value(x: Tensor, horizon: int) -> Tensor:
    """The naive forecast that repeats the last row of the input `horizon` times."""
    return x[:, -1:].expand(-1, horizon, -1)


def window_mean(x: Tensor, horizon: int) -> Tensor:
    """The naive forecast that repeats the mean of the input `horizon` times."""
    return x.mean(dim=1, keepdim=True).expand(-1, horizon, -1)


class Errors(NamedTuple):
    """Errors on the standardised scale [nodes], each the mean over the windows of a node."""

    mse: Tensor
    mae: Tensor


def forecast_errors(series: Series, forecast: Forecast, part: Part = "test", batch: int = 1024) -> Errors:
    """The errors of a forecast ([n, input, channels] -> [n, horizon, channels]) per node."""
    starts: Tensor = getattr(series, f"{part}_starts")
    node: Tensor = getattr(series, f"{part}_node")
    squared, absolute = (torch.zeros(series.nodes, dtype=torch.float64, device=starts.device) for _ in range(2))
    for some, at in zip(starts.split(batch), node.split(batch), strict=True):
        x, y = series.batch(some)
        error = (forecast(x) - y).double().flatten(1)
        squared.index_add_(0, at, error.square().mean(dim=1))
        absolute.index_add_(0, at, error.abs().mean(dim=1))
    counts = torch.bincount(node, minlength=series.nodes)
    return Errors(squared / counts, absolute / counts)


def naive_errors(series: Series, part: Part = "test") -> dict[str, Errors]:
    """The errors of the two naive forecasts, the baselines of a trained model."""
    horizon = series.lengths.horizon
    return {
        "last_value": forecast_errors(series, lambda x: last_value(x, horizon), part),
        "window_mean": forecast_errors(series, lambda x: window_mean(x, horizon), part),
    }


def _check(lengths: Lengths, train_fraction: float, stride: int) -> None:
    if not 0 < train_fraction < 1:
        raise FedA2LError(f"train_fraction must be above 0 and below 1, got {train_fraction!r}")
    if min(lengths.input, lengths.horizon, stride) < 1:
        raise FedA2LError(
            f"input, horizon and stride must be at least 1, got {lengths.input}, {lengths.horizon} and {stride}"
        )


def _too_short(name: str, site: Site, part: Part, lengths: Lengths) -> str:
    """The error message for a node without a window, with the longest possible window."""
    gaps = np.flatnonzero(np.isnan(site.rows).any(axis=1))
    longest = int(np.diff(np.concatenate([[-1], gaps, [len(site.rows)]])).max()) - 1
    return (
        f"{name}: {site.name} has no {part} window of {lengths.input} + {lengths.horizon} rows: of its "
        f"{len(site.rows)} rows at most {longest} in succession have no missing value; choose a shorter input or "
        "horizon, a smaller stride, or another train_fraction"
    )
