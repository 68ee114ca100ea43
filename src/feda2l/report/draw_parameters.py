"""Draw how results depend on the parameters of FedA2L."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from feda2l.report.draw_scores import NOT_RUN, draw_score_band, draw_target, score_title, write_inside
from feda2l.report.layout import label
from feda2l.report.plots import new_figure
from feda2l.report.results import Cell, ResultTable
from feda2l.report.words import scale_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

BALANCE = "rates.balance"
PARAMETERS = ("rates.threshold", "rates.warmup_rounds", "rates.window", "rates.decay", BALANCE, "rates.base")
MOST_PANELS = 6


class Varied(NamedTuple):
    """The cells of a setting by the one parameter that each of them varies."""

    by_key: dict[str, list[Cell]]
    default: list[Cell]  # nothing is varied
    several: list[Cell]  # more than one parameter is varied


def varied_cells(cells: Sequence[Cell], keys: Sequence[str]) -> Varied:
    """Sort cells by what they vary: the keys in which they differ from the value that most cells have.

    With one key, all cells are values of it.
    """
    if len(keys) == 1:
        return Varied({keys[0]: _by_value(cells, keys[0])}, [], [])
    usual = {key: Counter(cell.example.run.keys[key] for cell in cells).most_common(1)[0][0] for key in keys}
    found = Varied({key: [] for key in keys}, [], [])
    for cell in cells:
        differ = [key for key in keys if cell.example.run.keys[key] != usual[key]]
        (found.by_key[differ[0]] if len(differ) == 1 else found.several if differ else found.default).append(cell)
    return Varied({key: _by_value(cells, key) for key, cells in found.by_key.items()}, found.default, found.several)


def sensitivity_figure(table: ResultTable) -> tuple["Figure | None", list[str]]:
    """Rounds and best score against each parameter: one row of panels per setting, one point per seed.

    A run is drawn once, in the panel of the parameter that it varies; the default is a line in each panel. Returned are
    the figure and what is not in it.
    """
    keys, by_setting = _settings(table)
    if not keys:
        return None, [f"sensitivity of {table.title}: no parameter of the rate rule was varied"]
    missing = _too_many("sensitivity", table.title, len(by_setting))
    shown = list(by_setting.items())[:MOST_PANELS]
    figure, panels = new_figure(len(keys), 4.6 * len(keys), 4 * len(shown), rows=len(shown))
    for number, (where, cells) in enumerate(shown):
        varied = varied_cells(cells, keys)
        for axes, key in zip(panels[number * len(keys) :], keys, strict=False):
            _draw_parameter(axes, varied.by_key[key], varied.default, key, table.metric)
            axes.set_title(where, fontsize=9)
        if varied.several:
            names = ", ".join(cell.row for cell in varied.several)
            missing.append(f"sensitivity of {table.title}: cells that vary several parameters at once ({names})")
    return figure, missing


def balance_figure(table: ResultTable) -> tuple["Figure | None", list[str]]:
    """Curves for each beta, the weight of the two signals: one panel per setting."""
    keys, settings = _settings(table)
    if BALANCE not in keys:
        return None, [f"curves for each beta of {table.title}: rates.balance was not varied"]
    # a cell that varies another parameter is in the sensitivity figure
    varied = {where: varied_cells(cells, keys) for where, cells in settings.items()}
    by_setting = {where: _by_value([*own.by_key[BALANCE], *own.default], BALANCE) for where, own in varied.items()}
    missing = _too_many("curves for each beta", table.title, len(by_setting))
    return beta_panels(dict(list(by_setting.items())[:MOST_PANELS]), table.metric), missing


def beta_panels(panels: Mapping[str, Sequence[Cell]], metric: str) -> "Figure":
    """One panel per setting with a curve for each beta; a beta has one colour and one entry in the legend."""
    figure, axes_list = new_figure(len(panels), 5 * len(panels), 4.5)
    lines: dict[str, Line2D] = {}
    for axes, (where, cells) in zip(axes_list, panels.items(), strict=True):
        axes.set(xlabel="round", ylabel=score_title(metric), title=where)
        axes.grid(alpha=0.25)
        for cell in cells:
            name = f"beta {cell.example.run.keys[BALANCE]:g}"
            draw_score_band(axes, cell, metric, name)
            lines.setdefault(name, axes.get_lines()[-1])
        if cells:
            draw_target(axes, cells[0].example.run.target, metric)
        else:
            write_inside(axes, NOT_RUN)
    figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=max(len(lines), 1), fontsize=8)
    return figure


def _settings(table: ResultTable) -> tuple[list[str], dict[str, list[Cell]]]:
    """The parameters that vary within a setting, and the cells of the settings in which one of them varies.

    A setting is everything that the layout of the table varies besides the parameters.
    """
    layout = (*table.layout.blocks, *table.layout.columns, *table.layout.rows)
    keys = [key for key in layout if key in PARAMETERS]
    rest = [key for key in layout if key not in PARAMETERS]
    found: dict[str, list[Cell]] = {}
    for _, cell in table.cells:
        if all(key in cell.example.run.keys for key in keys):
            words = label(cell.example.run, rest)
            found.setdefault("" if words == "all" else words, []).append(cell)
    keys = [key for key in keys if any(_varies(cells, key) for cells in found.values())]
    return keys, {where: cells for where, cells in found.items() if any(_varies(cells, key) for key in keys)}


def _varies(cells: Sequence[Cell], key: str) -> bool:
    return len({cell.example.run.keys[key] for cell in cells}) > 1


def _draw_parameter(axes: "Axes", cells: Sequence[Cell], default: Sequence[Cell], key: str, metric: str) -> None:
    scale, right = scale_of(metric), axes.twinx()
    places = list(dict.fromkeys(f"{cell.example.run.keys[key]:g}" for cell in cells))
    for cell in cells:
        place = places.index(f"{cell.example.run.keys[key]:g}")
        rounds, best = cell.over_seeds("reached"), cell.over_seeds("best")
        axes.plot([place - 0.08] * len(rounds), rounds, "o", color="C0", alpha=0.7)
        right.plot([place + 0.08] * len(best), [scale * value for value in best], "s", color="C1", alpha=0.7)
    for cell in default:
        for side, what, factor, color in ((axes, "reached", 1, "C0"), (right, "best", scale, "C1")):
            if values := cell.over_seeds(what):
                name = f"default, {cell.example.run.keys[key]:g}"
                side.axhline(factor * statistics.mean(values), color=color, linestyle="--", linewidth=1, label=name)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)
    axes.set_xticks(range(len(places)), places)
    axes.set_xlabel(key.rpartition(".")[2].replace("_", " "))
    axes.set_ylabel("rounds to target, one point per seed", color="C0")
    right.set_ylabel(f"best {score_title(metric)}", color="C1")
    axes.grid(alpha=0.25)


def _by_value(cells: Sequence[Cell], key: str) -> list[Cell]:
    return sorted(cells, key=lambda cell: float(cell.example.run.keys[key]))


def _too_many(what: str, title: str, count: int) -> list[str]:
    return [f"{what}: {count - MOST_PANELS} of {count} settings of {title}"] * (count > MOST_PANELS)
