"""Figures of a report, each as PNG, SVG and PDF; matplotlib is loaded on use."""

from collections.abc import Sequence
from pathlib import Path

from feda2l.report.draw_parameters import balance_figure, sensitivity_figure
from feda2l.report.draw_rates import rate_figure
from feda2l.report.draw_scores import (
    decorate_score_axes,
    draw_best_bars,
    draw_score_band,
    draw_score_over_minutes,
    draw_target,
    save_formats,
    seeds_seconds,
    slug,
)
from feda2l.report.machine_time import own_clock
from feda2l.report.plots import new_figure
from feda2l.report.results import Cell, Contest, ResultTable

MOST_BARS = 24
MOST_CONTESTS = 6  # figures of one kind; a study of hundreds of settings has its page and tables


def draw_all(tables: Sequence[ResultTable], folder: Path) -> list[str]:
    """Draw every figure that the runs have data for; return what could not be drawn and why."""
    missing: list[str] = []
    for number, table in enumerate(tables, start=1):
        front = f"{number}-" if len(tables) > 1 else ""
        missing += _curves(table, folder, front)
        _bars(table, folder / f"{front}best")
        missing += _minutes(table, folder / f"{front}minutes")
        missing += _rates(table, folder, front)
        for name, (figure, left_out) in (
            ("sensitivity", sensitivity_figure(table)),
            ("balance", balance_figure(table)),
        ):
            missing += left_out
            if figure is not None:
                save_formats(figure, folder / f"{front}{name}")
    return missing


def _curves(table: ResultTable, folder: Path, front: str) -> list[str]:
    for contest in table.contests[:MOST_CONTESTS]:
        name = front + slug("curves", contest.block, contest.column)
        _draw_curves(table, contest, folder / name)
        if any(cell.simulated for cell in contest.cells):
            _draw_curves(table, contest, folder / f"{name}-seconds", seconds=True)
    return _too_many("curves", len(table.contests), table)


def _draw_curves(table: ResultTable, contest: Contest, path: Path, *, seconds: bool = False) -> None:
    """Scores over rounds, or over simulated seconds."""
    figure, (axes,) = new_figure(1, 7, 4.5)
    for cell in contest.cells:
        across = seeds_seconds(cell) if seconds else None
        if across is not None or not seconds:
            draw_score_band(axes, cell, table.metric, cell.row, across)
    decorate_score_axes(axes, contest, table.metric, "simulated seconds" if seconds else "round")
    save_formats(figure, path)


def _bars(table: ResultTable, path: Path) -> None:
    """Best score of each method, one group per setting."""
    groups = [(contest.where, contest.cells) for contest in table.contests[:MOST_BARS]]
    figure, (axes,) = new_figure(1, min(5.5 + 0.14 * len(table.rows) * len(groups), 18), 4)
    draw_best_bars(axes, groups, table.rows, table.metric)
    axes.legend(fontsize=7, ncols=min(len(table.rows), 4), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    save_formats(figure, path)


def _minutes(table: ResultTable, path: Path) -> list[str]:
    """Score over minutes, one panel per setting; only runs that had the machine to themselves have a time."""
    panels = []
    for contest in table.contests:
        lines = [(cell, clock) for cell in contest.cells if (clock := own_clock(cell.example)) is not None]
        panels += [(contest, lines)] * bool(lines)
    if not panels:
        return [f"score over minutes of {table.title}: every run shared the machine, or has no timings.jsonl"]
    shown = panels[:MOST_CONTESTS]
    figure, axes_list = new_figure(len(shown), 4.5 * len(shown), 4)
    for axes, (contest, lines) in zip(axes_list, shown, strict=True):
        draw_score_over_minutes(axes, lines, table.metric)
        draw_target(axes, contest.target, table.metric)
        axes.set_title(contest.where or str(contest.cells[0].example.run.keys.get("algorithm.name", "")))
    save_formats(figure, path)
    return _too_many("score over minutes", len(panels), table)


def _rates(table: ResultTable, folder: Path, front: str) -> list[str]:
    """Rates and signals of three layers, one figure per cell of FedA2L."""
    ours = [(contest, cell) for contest, cell in table.cells if cell.role == "ours"]
    if not ours:
        return [f"rates of layers of {table.title}: no run of feda2l"]
    missing = _too_many("rates of layers", len(ours), table)
    for contest, cell in ours[:MOST_CONTESTS]:
        figure = rate_figure(cell, _name(contest, cell))
        if isinstance(figure, str):
            missing.append(f"rates of layers of {table.title}, {_name(contest, cell)}: {figure}")
            continue
        several = len(ours) > 1
        save_formats(figure, folder / (front + slug("rates", *[contest.block, contest.column, cell.row] * several)))
    return missing


def _name(contest: Contest, cell: Cell) -> str:
    return ", ".join(filter(None, (contest.where, cell.row)))


def _too_many(what: str, count: int, table: ResultTable) -> list[str]:
    left = count - MOST_CONTESTS
    return [f"{what} of {left} of {count} settings of {table.title}"] * (left > 0)
