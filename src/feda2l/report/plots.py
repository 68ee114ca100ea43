"""Figures; matplotlib is loaded on use."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from feda2l.errors import FedA2LError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from feda2l.runs.forecast import Forecasts


SHOWN = 4  # variates that fit a figure of forecasts


def new_figure(columns: int, width: float, height: float, rows: int = 1) -> "tuple[Figure, Sequence[Axes]]":
    """A figure that needs no display, and its panels row by row.

    Raises:
        FedA2LError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FedA2LError("figures need matplotlib: pip install 'feda2l[plots]'", see="missing-extra") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(rows, columns, number + 1) for number in range(rows * columns)]


def plot_rules(
    curves: Mapping[str, NDArray[np.float64]],
    rates: NDArray[np.float64],
    layers: Sequence[str],
    target: float,
    path: Path,
    decay: NDArray[np.float64] | None = None,
) -> None:
    """Accuracy of each rule (mean over seeds, band from minimum to maximum), and the layer-wise rates of one node.

    `curves` are [seeds, rounds], `rates` is [rounds, layers], `decay` is the rate of the same node under decay_only.
    """
    figure, (left, right) = new_figure(2, 12, 4.5)
    for name, values in curves.items():
        rounds = np.arange(1, values.shape[1] + 1)
        (line,) = left.plot(rounds, 100 * values.mean(axis=0), label=name, linewidth=1.4)
        left.fill_between(
            rounds, 100 * values.min(axis=0), 100 * values.max(axis=0), alpha=0.12, color=line.get_color(), linewidth=0
        )
    left.axhline(100 * target, color="grey", linestyle=":", linewidth=1)
    left.set(xlabel="round", ylabel="mean test accuracy of the nodes, %", title="rate rules")
    left.legend(fontsize=8)
    rounds = np.arange(1, len(rates) + 1)
    for number, layer in enumerate(layers):
        right.plot(rounds, rates[:, number], label=f"layer {layer}", linewidth=1.2)
    if decay is not None:
        right.plot(rounds, decay, color="black", linestyle="--", linewidth=1, label="decay only")
    right.set(xlabel="round", ylabel="learning rate", title="FedA2L: rates of node 0, seed 1")
    right.legend(fontsize=8)
    for axes in (left, right):
        axes.grid(alpha=0.25)
    save_figure(figure, path)


def plot_partition(
    counts: NDArray[np.int64], class_names: Sequence[str], title: str, path: Path, kind: str = "class"
) -> None:
    """Nodes x classes (or another `kind` of group): the area of a dot is the number of samples."""
    nodes, classes = counts.shape
    figure, (axes,) = new_figure(1, min(4 + 0.25 * classes, 16), min(2.5 + 0.25 * nodes, 16))
    node, label = np.nonzero(counts)
    size = counts[node, label]
    axes.scatter(label, node, s=220 * size / max(size.max(), 1), alpha=0.7)
    axes.set(xlabel=kind, ylabel="node", title=title, xlim=(-0.7, classes - 0.3), ylim=(nodes - 0.3, -0.7))
    if classes <= 20:
        axes.set_xticks(range(classes), class_names, rotation=45 if max(map(len, class_names)) > 3 else 0)
    axes.grid(alpha=0.2)
    save_figure(figure, path)


def plot_forecasts(found: "Forecasts", path: Path) -> None:
    """One column per window and one row per variate (the first few): input, truth and forecast."""
    shown = found.variates[:SHOWN]
    columns = len(found.windows)
    figure, panels = new_figure(columns, min(1.5 + 3.6 * columns, 24), 0.9 + 2.4 * len(shown), rows=len(shown))
    who = "the mean model" if found.node is None else f"node {found.node}"
    left = f", {len(shown)} of {len(found.variates)} variates" if len(shown) < len(found.variates) else ""
    figure.suptitle(f"{found.name}: test windows as {who} forecasts them{left}", fontsize=10)
    for number, axes in enumerate(panels):
        variate, window = divmod(number, columns)
        one = found.windows[window]
        seen = np.arange(len(one.seen)) + one.row
        ahead = np.arange(len(one.truth)) + one.row + len(one.seen)
        axes.plot(seen, one.seen[:, variate], color="grey", linewidth=1, label="seen")
        axes.plot(ahead, one.truth[:, variate], color="black", linewidth=1.2, label="what followed")
        axes.plot(ahead, one.forecast[:, variate], color="tab:blue", linewidth=1.4, label="forecast")
        axes.plot(ahead, one.naive[:, variate], color="tab:orange", linestyle="--", linewidth=1, label="last value")
        axes.grid(alpha=0.25)
        axes.ticklabel_format(useOffset=False)
        axes.locator_params(axis="x", nbins=5)
        if variate == 0:
            axes.set_title(one.site, fontsize=9)
        if window == 0:
            axes.set_ylabel(shown[variate])
        if variate == len(shown) - 1:
            axes.set_xlabel("row of the series")
    panels[0].legend(fontsize=7)
    save_figure(figure, path)


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure; the suffix of the path gives the format."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise FedA2LError(f"{path}: the figure cannot be written: {error.strerror}", see="cannot-write") from error
