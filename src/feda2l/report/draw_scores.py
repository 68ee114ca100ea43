"""Draw scores into axes: curves over rounds, seconds or minutes, and bars of the best."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from feda2l.report.curves import Floats, mean_of
from feda2l.report.metrics import mean_and_std
from feda2l.report.plots import save_figure
from feda2l.report.results import Cell, Contest
from feda2l.report.words import naive_words, scale_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
POINTS = 400
NOT_RUN = "not run"

Group = tuple[str, Sequence[Cell]]  # a name, and the cells whose bars stand together


def seeds_band(cell: Cell) -> tuple[Floats, Floats, Floats]:
    """Mean, minimum and maximum over the finite seeds, of the rounds that all of them have."""
    length = min(len(figures.curve.score) for figures in cell.sound)
    values = np.stack([figures.curve.score[:length] for figures in cell.sound])
    return values.mean(axis=0), values.min(axis=0), values.max(axis=0)


def seeds_seconds(cell: Cell) -> Floats | None:
    """Simulated seconds at the end of each round, mean over the finite seeds; None if one of them has none."""
    times = [figures.curve.seconds for figures in cell.sound if figures.curve.seconds is not None]
    return mean_of(times) if len(times) == len(cell.sound) else None


def draw_score_band(axes: "Axes", cell: Cell, metric: str, name: str, across: Floats | None = None) -> None:
    """Draw the mean score of the finite seeds over rounds or `across`, with a band from the lowest to the highest."""
    middle, low, high = seeds_band(cell)
    x = np.arange(1, len(middle) + 1) if across is None else across
    at = np.flatnonzero(~np.isnan(middle))
    at = at[:: max(len(at) // POINTS, 1)]
    scale = scale_of(metric)
    (line,) = axes.plot(x[at], scale * middle[at], label=name, linewidth=1.4)
    if len(cell.seeds) > 1:
        color = line.get_color()
        axes.fill_between(x[at], scale * low[at], scale * high[at], alpha=0.13, color=color, linewidth=0)


def decorate_score_axes(axes: "Axes", contest: Contest, metric: str, across: str) -> None:
    """Draw the target and the naive forecast as lines; label the axes, with `across` on the x-axis."""
    draw_target(axes, contest.target, metric)
    if contest.naive is not None:
        name, mse = contest.naive
        axes.axhline(mse, color="black", linestyle="--", linewidth=1, label=f"no training: {naive_words(name)}")
    axes.set(xlabel=across, ylabel=score_title(metric), title=contest.where)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.25)


def draw_target(axes: "Axes", target: float | None, metric: str) -> None:
    """Draw the target as a dotted line."""
    if target is not None:
        axes.axhline(scale_of(metric) * target, color="grey", linestyle=":", linewidth=1)


def draw_score_over_minutes(axes: "Axes", lines: Sequence[tuple[Cell, Floats]], metric: str) -> None:
    """Draw the score of the first seed of each cell over its clock, which is given in seconds after each round."""
    scale = scale_of(metric)
    for cell, clock in lines:
        score = cell.example.curve.score[: len(clock)]
        there = ~np.isnan(score)
        axes.plot(clock[there] / 60, scale * score[there], label=cell.row, linewidth=1.2)
    axes.set(xlabel="minutes, without evaluation", ylabel=score_title(metric))
    axes.legend(fontsize=8)
    axes.grid(alpha=0.25)


def draw_best_bars(axes: "Axes", groups: Sequence[Group], rows: Sequence[str], metric: str) -> None:
    """Draw the best score of each row, one group of bars per setting, with the sample standard deviation over seeds."""
    scale, width = scale_of(metric), 0.84 / len(rows)
    ends: list[float] = []
    for number, row in enumerate(rows):
        best = [
            (place + (number - (len(rows) - 1) / 2) * width, *mean_and_std([scale * value for value in values]))
            for place, (_, cells) in enumerate(groups)
            for cell in cells
            if cell.row == row and (values := cell.over_seeds("best"))
        ]
        if not best:
            continue  # an empty set of bars would have a wrong colour in the legend
        places, means, stds = np.array(best).reshape(-1, 3).T
        axes.bar(places, means, width, yerr=stds, capsize=2, label=row, color=f"C{number % 10}", error_kw={"lw": 0.8})
        ends += [*(means - stds), *(means + stds)]
    if not ends:
        write_inside(axes, "no finite score")
    else:
        margin = max(max(ends) - min(ends), 0.02 * abs(max(ends))) * 0.25
        axes.set_ylim(max(min(ends) - margin, 0), max(ends) + margin)  # differences are small; the label says so
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.set_xticks(range(len(groups)), [name for name, _ in groups], rotation=30, ha="right", fontsize=8)
    axes.set_ylabel(f"best {score_title(metric)} (axis cut)", fontsize=8)
    axes.grid(alpha=0.25, axis="y")


def write_inside(axes: "Axes", words: str) -> None:
    """Write a sentence into an empty panel."""
    axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes)


def score_title(metric: str) -> str:
    """The label of an axis of scores."""
    return "mean test accuracy of the nodes, %" if metric == "accuracy" else f"mean test {metric.upper()} of the nodes"


def slug(*words: str) -> str:
    """The part of a file name that tells a setting."""
    kept = (word for word in words if word != "all")
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(kept)).strip("-")


def save_formats(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG, SVG and PDF."""
    figure.canvas.draw()
    figure.set_layout_engine("none")  # the layout is computed once, and not again for each format
    for kind in FORMATS:
        save_figure(figure, path.with_name(f"{path.name}.{kind}"))
