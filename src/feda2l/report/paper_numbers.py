"""What the paper prints for a run's setting, where it prints anything; its numbers are package data."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import isclose
from typing import NamedTuple

from feda2l.report.find_runs import FoundRun
from feda2l.report.paper_settings import (
    NETWORK,
    PARAMETER,
    USUAL,
    Names,
    default_parameters,
    differences,
    fixed_settings,
    names_of,
    network_of,
)

Row = Mapping[str, str]


@dataclass(frozen=True)
class PaperNumber:
    """One cell of the paper."""

    rounds: float | None  # None: not reached
    std: float | None = None
    minutes: float | None = None
    best: float | None = None  # accuracy, of the sensitivity table
    flags: tuple[str, ...] = ()
    highest: float | None = None  # where the paper has several numbers for one setting

    @property
    def text(self) -> str:
        marks = "".join(f" [{flag}]" for flag in self.flags)
        if self.rounds is None:
            return f"not reached{marks}"
        several = f" to {self.highest:g}" if self.highest not in (None, self.rounds) else ""
        return f"{self.rounds:g}{several}" + (f" ± {self.std:g}" if self.std is not None else "") + marks


class PaperMatch(NamedTuple):
    """The paper's number for a run, or the settings that keep it from standing beside the run's own."""

    number: PaperNumber | None = None
    differs: tuple[str, ...] = ()


def compare_with_paper(run: FoundRun, varied: tuple[str, ...] = ()) -> PaperMatch:
    """Find the paper's number for a run; it belongs to the run only if every setting that the paper fixes is the same.

    Both fields are empty for an algorithm, rule, model or data that the paper has no number for. `varied` are the keys
    that make rows or columns: with one of FedA2L's own parameters, the number is from the sensitivity table.
    """
    names = names_of(run)
    if run.target is None or None in (names["algorithm"], names["method"], names["dataset"]):
        return PaperMatch()
    fixed = fixed_settings(run, names)
    if run.falls:
        return _compared(run, fixed, _number_of(_series_row(names)), printed_target(run))
    if names["method"] == "FedA2L" and any(key in PARAMETER for key in varied):
        return _sensitivity(run, names, fixed)
    if row := _robustness_row(run, names):
        apart = {key: value for key, value in fixed.items() if key not in NETWORK} | {"evaluation.smoothing": 15}
        return _compared(run, apart, _number_of(row), printed_target(run))
    return _compared(run, fixed, _main_number(names), printed_target(run))


def printed_target(run: FoundRun) -> float | None:
    """The target that the paper has for a run's setting, whatever the run's own; None for a setting without one."""
    names = names_of(run)
    if run.falls:
        row = _series_row(names)
        return float(row["target_mse"]) if row else None
    row = _robustness_row(run, names) or _row("main_results", **names)
    return float(row["target_accuracy_pct"]) / 100 if row else None


def paper_number(run: FoundRun, varied: tuple[str, ...] = ()) -> PaperNumber | None:
    """The paper's number for a run with all the settings that the paper fixes; None where it has none."""
    return compare_with_paper(run, varied).number


def paper_seconds(run: FoundRun) -> float | None:
    """The paper's seconds per round, evaluation included; None where it has none.

    FedA2L's parameters do not change them. The paper evaluates one model per node, each with its own statistics.
    """
    if run.keys.get("algorithm.buffers", "local") != "local":
        return None
    row = time_row(names_of(run))
    return number_in(row["seconds_per_round"]) if row else None


def paper_robustness(run: FoundRun) -> PaperNumber | None:
    """The paper's rounds for a run's network and skew, on the paper's own model and to its own target."""
    names = names_of(run)
    return _number_of(_row("robustness", algorithm=names["algorithm"], method=names["method"], setting=network_of(run)))


def paper_series(run: FoundRun) -> tuple[PaperNumber, float] | None:
    """The paper's rounds for a series, and the MSE that they are to, which may differ from the run's target."""
    names = names_of(run)
    row = _series_row(names)
    number = None if differences(run, fixed_settings(run, names)) else _number_of(row)
    return (number, float(row["target_mse"])) if row and number else None


@cache
def flag_texts() -> dict[str, str]:
    """What each flag stands for."""
    return {row["flag"]: row["text"] for row in rows_of("flags")}


@cache
def rows_of(table: str) -> tuple[Row, ...]:
    """A shipped table without its comments."""
    text = (files("feda2l.report") / "paper" / f"{table}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def time_row(names: Names) -> Row | None:
    """The row of the paper's table of times."""
    return _row("convergence_time", **names)


def number_in(text: str) -> float | None:
    """The number in an entry; None for an empty one."""
    return float(text) if text else None


def _compared(
    run: FoundRun, fixed: Mapping[str, object], number: PaperNumber | None, target: float | None
) -> PaperMatch:
    if number is None:
        return PaperMatch()
    differs = differences(run, {**fixed, "evaluation.target": target})
    return PaperMatch(None, differs) if differs else PaperMatch(number)


def _robustness_row(run: FoundRun, names: Names) -> Row | None:
    setting = network_of(run)
    if setting in (None, USUAL) or (names["model"], names["dataset"]) != ("ResNet-18", "CIFAR-100"):
        return None
    return _row("robustness", algorithm=names["algorithm"], method=names["method"], setting=setting)


def _main_number(names: Names) -> PaperNumber | None:
    """The paper's rounds and minutes in its main setting."""
    row = _row("main_results", **names)
    if row is None:
        return None
    time = time_row(names)
    minutes, flags = (number_in(time["total_minutes"]), _flags(time)) if time else (None, ())
    return PaperNumber(number_in(row["rounds_mean"]), number_in(row["rounds_std"]), minutes, None, _flags(row) + flags)


def _sensitivity(run: FoundRun, names: Names, fixed: dict[str, object]) -> PaperMatch:
    """The row of the one parameter that differs from the paper's default; the default itself is in every block."""
    table = _rows("sensitivity", model=names["model"], dataset=names["dataset"])
    metric = next((row["metric"] for row in table if row["metric"].startswith("Rounds@")), None)
    if names["algorithm"] != "FedAvg" or metric is None:
        return PaperMatch()
    values, results, flags = _parameters(run, names), dict[str, list[float]](), dict[str, None]()
    for row in table:
        if row["parameter"] in values and isclose(float(row["value"]), values[row["parameter"]]):
            results.setdefault(row["metric"], []).extend([float(row["result"])] if row["result"] else [])
            flags |= dict.fromkeys(_flags(row) if row["metric"] == metric else ())
    if metric in results:  # what the run varies is a value of the table
        fixed = {key: value for key, value in fixed.items() if key not in PARAMETER}
    low, high = (choose(results.get(metric, ()), default=None) for choose in (min, max))
    best = max(results.get("Best accuracy", ()), default=None)
    number = PaperNumber(low, best=best and best / 100, flags=tuple(flags), highest=high)
    return _compared(run, fixed, number, float(metric.removeprefix("Rounds@").removesuffix("%")) / 100)


def _parameters(run: FoundRun, names: Names) -> dict[str, float]:
    """The parameter that differs from the paper's default; all of them if none differs, none if several differ."""
    default = default_parameters(names)
    own = {name: float(run.keys[key]) for key, name in PARAMETER.items() if key in run.keys}
    differ = {name: value for name, value in own.items() if not isclose(value, default[name])}
    return {1: differ, 0: own}.get(len(differ), {})


def _rows(table: str, **where: str | None) -> list[Row]:
    return [row for row in rows_of(table) if all(row[key] == str(value) for key, value in where.items())]


def _row(table: str, **where: str | None) -> Row | None:
    return next(iter(_rows(table, **where)), None)


def _series_row(names: Names) -> Row | None:
    return _row("time_series", **{key: name for key, name in names.items() if key != "model"})


def _number_of(row: Row | None) -> PaperNumber | None:
    if row is None:
        return None
    seconds = number_in(row.get("total_seconds", ""))
    return PaperNumber(number_in(row["rounds"]), minutes=seconds and seconds / 60, flags=_flags(row))


def _flags(row: Row) -> tuple[str, ...]:
    return tuple(row["flag"].split())
