"""Figures for a paper: PNG, SVG and PDF of each; matplotlib is loaded on use."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars

from feda2l.report.curves import Floats, mean_of, read_layers
from feda2l.report.layout import label
from feda2l.report.machine_time import own_clock
from feda2l.report.metrics import mean_and_std
from feda2l.report.plots import new_figure, save_figure
from feda2l.report.results import Cell, Contest, ResultTable
from feda2l.report.words import naive_words, scale_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("png", "svg", "pdf")
MOST_BARS = 24
MOST_CONTESTS = 6  # figures of a kind; a study of hundreds of settings has its page and tables
POINTS = 400


def draw_all(tables: Sequence[ResultTable], folder: Path) -> list[str]:
    """Every figure the runs have data for; returned is what could not be drawn and why."""
    missing: list[str] = []
    for number, table in enumerate(tables, start=1):
        front = f"{number}-" if len(tables) > 1 else ""
        for contest in table.contests[:MOST_CONTESTS]:
            name = front + _slug("curves", contest.block, contest.column)
            _curves(table, contest, folder / name)
            if any(cell.simulated for cell in contest.cells):
                _curves(table, contest, folder / f"{name}-seconds", seconds=True)
        if len(table.contests) > MOST_CONTESTS:
            count = len(table.contests)
            missing.append(f"curves of {count - MOST_CONTESTS} of {count} settings of {table.title}")
        _bars(table, folder / f"{front}best")
        missing += _minutes(table, folder / f"{front}minutes")
        missing += _dynamics(table, folder / f"{front}rates")
        missing += _sensitivity(table, folder / f"{front}sensitivity")
        missing += _by_balance(table, folder / f"{front}balance")
    return missing


def seeds_band(cell: Cell) -> tuple[Floats, Floats, Floats]:
    """Mean, lowest and highest over the sound seeds, of the rounds that all have."""
    length = min(len(figures.curve.score) for figures in cell.sound)
    values = np.stack([figures.curve.score[:length] for figures in cell.sound])
    return values.mean(axis=0), values.min(axis=0), values.max(axis=0)


def steepest_layers(run_layers: polars.DataFrame, count: int = 3) -> tuple[int, list[str]]:
    """The node with the highest mean divergence, and its layers with the highest, round 1 aside (it has no past)."""
    later = run_layers.filter(polars.col("round") > 1)
    means = (
        later.group_by("node", "layer")
        .agg(polars.col("divergence").mean())
        .drop_nulls()
        .sort("divergence", descending=True)
    )
    if means.is_empty():
        return 0, []
    node = int(means["node"][0])
    return node, means.filter(polars.col("node") == node)["layer"].head(count).to_list()


def seeds_seconds(cell: Cell) -> Floats | None:
    """Simulated seconds of each round, mean over the sound seeds; None where one has none."""
    times = [figures.curve.seconds for figures in cell.sound if figures.curve.seconds is not None]
    return mean_of(times) if len(times) == len(cell.sound) else None


def _curves(table: ResultTable, contest: Contest, path: Path, *, seconds: bool = False) -> None:
    """Scores over rounds, or over simulated seconds."""
    figure, (axes,) = new_figure(1, 7, 4.5)
    for cell in contest.cells:
        across = seeds_seconds(cell) if seconds else None
        if across is not None or not seconds:
            draw_score_band(axes, cell, table.metric, cell.row, across)
    decorate_score_axes(axes, contest, table.metric, "simulated seconds" if seconds else "round")
    _save(figure, path)


def draw_score_band(axes: "Axes", cell: Cell, metric: str, name: str, across: Floats | None = None) -> None:
    """Draw the mean score of the sound seeds over rounds or `across`, with a band from the lowest to the highest."""
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
    if contest.target is not None:
        axes.axhline(scale_of(metric) * contest.target, color="grey", linestyle=":", linewidth=1)
    if contest.naive is not None:
        name, mse = contest.naive
        axes.axhline(mse, color="black", linestyle="--", linewidth=1, label=f"no training: {naive_words(name)}")
    axes.set(xlabel=across, ylabel=_score_title(metric), title=contest.where)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.25)


def _bars(table: ResultTable, path: Path) -> None:
    """Best score of each method, a group a setting."""
    contests = table.contests[:MOST_BARS]
    figure, (axes,) = new_figure(1, min(5.5 + 0.14 * len(table.rows) * len(contests), 18), 4)
    scale = scale_of(table.metric)
    width = 0.84 / len(table.rows)
    ends: list[float] = []
    for number, row in enumerate(table.rows):
        best = [
            (place + (number - (len(table.rows) - 1) / 2) * width, *mean_and_std([scale * value for value in values]))
            for place, contest in enumerate(contests)
            for cell in contest.cells
            if cell.row == row and (values := cell.over_seeds("best"))
        ]
        places, means, stds = np.array(best).reshape(-1, 3).T
        axes.bar(places, means, width, yerr=stds, capsize=2, label=row, color=f"C{number % 10}", error_kw={"lw": 0.8})
        ends += [*(means - stds), *(means + stds)]
    if not ends:
        axes.text(0.5, 0.5, "all runs diverged", ha="center", transform=axes.transAxes)
    else:
        margin = max(max(ends) - min(ends), 0.02 * abs(max(ends))) * 0.25
        axes.set_ylim(max(min(ends) - margin, 0), max(ends) + margin)  # differences are small: the label says it
        axes.legend(fontsize=7, ncols=min(len(table.rows), 4), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    where = [contest.where for contest in contests]
    axes.set_xticks(range(len(contests)), where, rotation=30, ha="right", fontsize=8)
    axes.set_ylabel(f"best {_score_title(table.metric)} (axis cut)", fontsize=8)
    axes.grid(alpha=0.25, axis="y")
    _save(figure, path)


def _minutes(table: ResultTable, path: Path) -> list[str]:
    """Score against minutes, a panel an algorithm; only runs that had the machine to themselves have a time."""
    panels: dict[str, list[tuple[Cell, Floats]]] = {}
    for contest in table.contests[:MOST_CONTESTS]:
        for cell in contest.cells:
            clock = own_clock(cell.example)
            if clock is not None:
                where = f"{cell.example.run.keys.get('algorithm.name')}, {contest.column}".removesuffix(", all")
                panels.setdefault(where, []).append((cell, clock))
    if not panels:
        return [f"score against minutes of {table.title}: every run shared the machine, or has no timings.jsonl"]
    figure, axes_list = new_figure(len(panels), 4.5 * len(panels), 4)
    for axes, (where, lines) in zip(axes_list, panels.items(), strict=True):
        draw_score_over_minutes(axes, lines, table.metric)
        axes.set_title(where)
    _save(figure, path)
    return []


def draw_score_over_minutes(axes: "Axes", lines: Sequence[tuple[Cell, Floats]], metric: str) -> None:
    """Draw the score of the first seed of each cell over its clock, which is given in seconds after each round."""
    scale = scale_of(metric)
    for cell, clock in lines:
        score = cell.example.curve.score[: len(clock)]
        there = ~np.isnan(score)
        axes.plot(clock[there] / 60, scale * score[there], label=cell.row, linewidth=1.2)
    axes.set(xlabel="minutes, without evaluation", ylabel=_score_title(metric))
    axes.legend(fontsize=8)
    axes.grid(alpha=0.25)


def _dynamics(table: ResultTable, path: Path) -> list[str]:
    """Rates of the three layers that training moves most, with what they answer to: sigma and 1 - zeta, rescaled."""
    ours = [cell for _, cell in table.cells if cell.role == "ours"]
    layers = next(((cell, frame) for cell in ours[:4] if (frame := read_layers(cell.example.run)) is not None), None)
    if layers is None:
        return [f"rate dynamics of {table.title}: no run of feda2l with layers.parquet"]
    cell, frame = layers
    node, names = steepest_layers(frame)
    if not names:
        return [f"rate dynamics of {table.title}: no sigma was recorded"]
    figure, panels = new_figure(len(names), 4.6 * len(names), 4)
    for axes, name in zip(panels, names, strict=True):
        own = frame.filter((polars.col("node") == node) & (polars.col("layer") == name)).sort("round")
        rounds = own["round"].to_numpy()
        axes.plot(rounds, own["rate"].to_numpy(), color="C0", linewidth=1.4, label="rate")
        right = axes.twinx()
        for values, color, words in ((own["divergence"], "C1", "divergence"), (1 - own["stability"], "C2", "1 - zeta")):
            right.plot(rounds, _rescaled(values.to_numpy()), color=color, linewidth=0.9, alpha=0.8, label=words)
        axes.set(xlabel="round", ylabel="learning rate", title=f"node {node}, layer {name}")
        right.set_ylabel("sigma, 1 - zeta (rescaled to 0..1)")
        lines = [*axes.get_lines(), *right.get_lines()]
        axes.legend(lines, [str(line.get_label()) for line in lines], fontsize=8)
        axes.grid(alpha=0.25)
    figure.suptitle(f"{cell.row}, seed {cell.example.run.seed}", fontsize=10)
    _save(figure, path)
    return []


def _sensitivity(table: ResultTable, path: Path) -> list[str]:
    """Rounds and best score against each parameter of FedA2L that was varied."""
    wanted = ("rates.threshold", "rates.warmup_rounds", "rates.window", "rates.decay", "rates.balance", "rates.base")
    varied = [key for key in (*table.layout.rows, *table.layout.columns) if key in wanted]
    if not varied:
        return [f"sensitivity of {table.title}: no parameter of the rate rule was varied"]
    figure, panels = new_figure(len(varied), 4.6 * len(varied), 4)
    for axes, key in zip(panels, varied, strict=True):
        cells, scale = _cells_by(table, key), scale_of(table.metric)
        words = [f"{cell.example.run.keys[key]:g}" for cell in cells]
        places = list(dict.fromkeys(words))
        right = axes.twinx()
        for cell, word in zip(cells, words, strict=True):
            rounds, best = cell.over_seeds("reached"), cell.over_seeds("best")
            axes.plot([places.index(word) - 0.08] * len(rounds), rounds, "o", color="C0", alpha=0.7)
            right.plot([places.index(word) + 0.08] * len(best), [scale * b for b in best], "s", color="C1", alpha=0.7)
        axes.set_xticks(range(len(places)), places)
        axes.set_xlabel(label(cells[0].example.run, [key]).rpartition(" ")[0])
        axes.set_ylabel("rounds to target, a dot a seed", color="C0")
        right.set_ylabel(f"best {_score_title(table.metric)}", color="C1")
        axes.grid(alpha=0.25)
    _save(figure, path)
    return []


def _by_balance(table: ResultTable, path: Path) -> list[str]:
    """Curves by beta, what the two signals weigh."""
    key = "rates.balance"
    if key not in (*table.layout.rows, *table.layout.columns):
        return [f"trajectories by beta of {table.title}: rates.balance was not varied"]
    figure, (axes,) = new_figure(1, 7, 4.5)
    for cell in _cells_by(table, key):
        draw_score_band(axes, cell, table.metric, f"beta {cell.example.run.keys[key]:g}")
    decorate_score_axes(axes, table.contests[0], table.metric, "round")
    _save(figure, path)
    return []


def _cells_by(table: ResultTable, key: str) -> list[Cell]:
    """The cells whose runs have the key, by its value."""
    cells = [cell for _, cell in table.cells if key in cell.example.run.keys]
    return sorted(cells, key=lambda cell: float(cell.example.run.keys[key]))


def _rescaled(values: Floats) -> Floats:
    """To 0..1 between its lowest and highest value after round 1, which has no past."""
    later = values[1:][~np.isnan(values[1:])]
    if not len(later):
        return np.zeros_like(values)
    low, high = later.min(), later.max()
    scaled: Floats = np.clip((values - low) / (high - low if high > low else 1.0), 0, 1)
    return scaled


def _score_title(metric: str) -> str:
    return "mean test accuracy of the nodes, %" if metric == "accuracy" else f"mean test {metric.upper()} of the nodes"


def _slug(*words: str) -> str:
    kept = (word for word in words if word != "all")
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(kept)).strip("-")


def _save(figure: Any, path: Path) -> None:
    figure.canvas.draw()
    figure.set_layout_engine("none")  # where things stand is found out once, not for every format again
    for kind in FORMATS:
        save_figure(figure, path.with_name(f"{path.name}.{kind}"))
