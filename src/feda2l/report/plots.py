"""Figures; matplotlib is loaded on use."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from feda2l.errors import FedA2LError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(columns: int, width: float, height: float) -> "tuple[Figure, Sequence[Axes]]":
    """A figure without a display, or an error that says how to get matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FedA2LError("figures need matplotlib: pip install 'feda2l[plots]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(1, columns, number + 1) for number in range(columns)]


def plot_rules(
    curves: Mapping[str, NDArray[np.float64]],
    rates: NDArray[np.float64],
    layers: Sequence[str],
    target: float,
    path: Path,
    decay: NDArray[np.float64] | None = None,
) -> None:
    """Accuracy of each rule (mean over seeds, band = smallest to largest), and one node's layer-wise rates.

    `curves` are [seeds, rounds], `rates` is [rounds, layers], `decay` the same node's rate under decay_only.
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


def plot_partition(counts: NDArray[np.int64], class_names: Sequence[str], title: str, path: Path) -> None:
    """Nodes x classes: the area of a dot is the number of samples."""
    nodes, classes = counts.shape
    figure, (axes,) = new_figure(1, min(4 + 0.25 * classes, 16), min(2.5 + 0.25 * nodes, 16))
    node, label = np.nonzero(counts)
    size = counts[node, label]
    axes.scatter(label, node, s=220 * size / max(size.max(), 1), alpha=0.7)
    axes.set(xlabel="class", ylabel="node", title=title, xlim=(-0.7, classes - 0.3), ylim=(nodes - 0.3, -0.7))
    if classes <= 20:
        axes.set_xticks(range(classes), class_names, rotation=45 if max(map(len, class_names)) > 3 else 0)
    axes.grid(alpha=0.2)
    save_figure(figure, path)


def save_figure(figure: Any, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise FedA2LError(f"{path}: the figure cannot be written: {error.strerror}") from error
