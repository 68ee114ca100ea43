"""Forecast test windows with a run's models, beside the true values, in the units of the data."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from feda2l.data.series import Series, last_value
from feda2l.errors import FedA2LError
from feda2l.runs.datasets import load_data
from feda2l.runs.run import Run


@dataclass(frozen=True)
class WindowForecast:
    """One test window of a site: the input [length, channels], then truth and forecasts [horizon, channels].

    `row` is the index in the site's rows at which the window starts.
    """

    site: str
    row: int
    seen: Tensor
    truth: Tensor
    forecast: Tensor
    naive: Tensor


@dataclass(frozen=True)
class Forecasts:
    """Forecasts of some test windows by one node's model, or by the mean model if `node` is None."""

    name: str
    node: int | None
    variates: tuple[str, ...]
    windows: list[WindowForecast]


def forecasts(
    path: str | Path, *, node: int | None = None, windows: int = 3, data: str | Path | None = None
) -> Forecasts:
    """Forecast a few test windows. The test windows are cut into `windows` equal parts; the middle of each is taken.

    Under the natural partition a node is a site, and its own test windows are used. Otherwise the test windows of all
    sites are used, in order of site and time. All values are in the units of the file.
    """
    run = Run(path)
    if windows < 1:
        raise FedA2LError(f"--windows {windows}: at least one window is needed")
    model = run.model(node)
    series = load_data(run.spec.data, data)
    if not isinstance(series, Series):
        raise FedA2LError(
            f"{path}: this run used {run.spec.data.name}, which is not a time series; only runs on series can forecast"
        )
    tested = torch.arange(len(series.test))
    if node is not None and run.spec.data.partition == "natural":
        tested = tested[series.test_node == node]
    parts = min(windows, len(tested))
    chosen = tested[(2 * torch.arange(parts) + 1) * len(tested) // (2 * parts)]
    x, y = series.test.inputs(chosen), series.test.targets(chosen)
    with torch.no_grad():
        forecast = model(x)
    naive = last_value(x, series.lengths.horizon)
    results = []
    for number, index in enumerate(chosen.tolist()):
        site, start = int(series.test_node[index]), int(series.test_starts[index])
        values = (series.original(values[number].double(), site) for values in (x, y, forecast, naive))
        results.append(WindowForecast(series.names[site], start - series.bounds[site], *values))
    return Forecasts(run.spec.name, node, series.variates, results)
