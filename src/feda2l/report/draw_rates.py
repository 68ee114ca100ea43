"""Draw what FedA2L did to the rates of the layers that diverge most."""

from typing import TYPE_CHECKING

import numpy as np
import polars

from feda2l.report.curves import Floats, read_layers, why_no_layers
from feda2l.report.plots import new_figure
from feda2l.report.results import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LAYERS = 3


def steepest_layers(run_layers: polars.DataFrame, count: int = LAYERS) -> tuple[int, list[str]]:
    """The node with the highest mean divergence over all rounds, and its layers with the highest."""
    means = run_layers.group_by("node", "layer").agg(polars.col("divergence").mean()).drop_nulls()
    means = means.sort(["divergence", "layer"], descending=[True, False])
    if means.is_empty():
        return 0, []
    node = int(means["node"][0])
    return node, means.filter(polars.col("node") == node)["layer"].head(count).to_list()


def rate_figure(cell: Cell, title: str) -> "Figure | str":
    """One panel per layer for the first seed of a cell: its rate, and the two signals rescaled to 0..1.

    The reason if the records have no layers or no divergence.
    """
    frame = read_layers(cell.example.run)
    if frame is None:
        return why_no_layers(cell.example.run)
    node, names = steepest_layers(frame)
    if not names:
        return "no divergence in its records"
    figure, panels = new_figure(len(names), 4.6 * len(names), 4)
    for axes, name in zip(panels, names, strict=True):
        own = frame.filter((polars.col("node") == node) & (polars.col("layer") == name)).sort("round")
        _draw_layer(axes, own, f"node {node}, layer {name}")
    figure.suptitle(f"{title}, seed {cell.example.run.seed}", fontsize=10)
    return figure


def rescaled(values: Floats) -> Floats:
    """To 0..1 between the lowest and the highest value of all rounds, round 1 included.

    >>> rescaled(np.array([3.0, np.nan, 1.0, 2.0]))
    array([1. , nan, 0. , 0.5])
    """
    known = values[~np.isnan(values)]
    low, high = (known.min(), known.max()) if len(known) else (0.0, 1.0)
    scaled: Floats = (values - low) / (high - low if high > low else 1.0)
    return scaled


def _draw_layer(axes: "Axes", layer: polars.DataFrame, title: str) -> None:
    rounds = layer["round"].to_numpy()
    axes.plot(rounds, layer["rate"].to_numpy(), color="C0", linewidth=1.4, label="rate")
    right = axes.twinx()
    for values, color, words in ((layer["divergence"], "C1", "divergence"), (1 - layer["stability"], "C2", "1 - zeta")):
        scaled = rescaled(values.cast(polars.Float64).to_numpy())
        right.plot(rounds, scaled, color=color, linewidth=0.9, alpha=0.8, label=words)
    axes.set(xlabel="round", ylabel="learning rate", title=title)
    right.set_ylabel("sigma, 1 - zeta (rescaled to 0..1)")
    lines = [*axes.get_lines(), *right.get_lines()]
    axes.legend(lines, [str(line.get_label()) for line in lines], fontsize=8)
    axes.grid(alpha=0.25)
