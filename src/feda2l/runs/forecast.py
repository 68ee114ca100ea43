"""What a run's models say about test windows, beside what followed: in the units of the data."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from feda2l.data.series import Series, last_value
from feda2l.errors import FedA2LError
from feda2l.runs.datasets import load_data
from feda2l.runs.run import Run


@dataclass(frozen=True)
class Forecast:
    """One window of a site: rows seen [input, channels], and what followed, was forecast and is naive [horizon, ...].

    `row` is where the window starts in the site's rows.
    """

    site: str
    row: int
    seen: Tensor
    truth: Tensor
    forecast: Tensor
    naive: Tensor


@dataclass(frozen=True)
class Forecasts:
    """Some test windows of a run, forecast by one node's model or (node None) by the mean model."""

    name: str
    node: int | None
    variates: tuple[str, ...]
    windows: list[Forecast]


def forecasts(
    path: str | Path, *, node: int | None = None, windows: int = 3, data: str | Path | None = None
) -> Forecasts:
    """The forecasts of a few test windows: those in the middle of `windows` equal parts of the test windows.

    They are the node's own test windows where nodes are sites (the natural partition), else those of all sites, in
    order of site and time. All values are in the units of the file.
    """
    run = Run(path)
    if windows < 1:
        raise FedA2LError(f"--windows {windows}: at least one window is needed")
    model = run.model(node)
    series = load_data(run.spec.data, data)
    if not isinstance(series, Series):
        raise FedA2LError(
            f"{path}: is a run on {run.spec.data.name}, which is not a series: there is nothing to forecast"
        )
    tested = torch.arange(len(series.test))
    if node is not None and run.spec.data.partition == "natural":
        tested = tested[series.test_node == node]
    parts = min(windows, len(tested))
    chosen = tested[(2 * torch.arange(parts) + 1) * len(tested) // (2 * parts)]
    x, y = series.test.inputs(chosen), series.test.targets(chosen)
    with torch.no_grad():
        said = model(x)
    naive = last_value(x, series.lengths.horizon)
    found = []
    for number, index in enumerate(chosen.tolist()):
        site, start = int(series.test_node[index]), int(series.test_starts[index])
        values = (series.original(values[number].double(), site) for values in (x, y, said, naive))
        found.append(Forecast(series.names[site], start - series.bounds[site], *values))
    return Forecasts(run.spec.name, node, series.variates, found)
