"""What the paper prints for a run's setting, where it prints anything; its numbers are package data."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import isclose

from feda2l.report.find_runs import FoundRun

ALGORITHM = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedyogi": "FedYogi",
    "fedntd": "FedNTD",
    "fedawa": "FedAWA",
    "dfedsam": "DFedSAM",
    "dfedhpo": "DFedHPO",
}
METHOD = {
    "constant": "Vanilla",
    "step": "StepLR",
    "cawr": "CAWR",
    "one_cycle": "OCLR",
    "hyperbolic": "Hyperbolic",
    "hyperbolic_reference": "Hyperbolic",
    "feda2l": "FedA2L",
}
MODEL = {"cnn": "CNN", "resnet18": "ResNet-18", "resnet34": "ResNet-34"}
DATA = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tinyimagenet": "TinyImageNet",
    "exchange_rate": "ExchangeRate",
    "beijing_air_quality": "BeijingAirQuality",
}
PARAMETER = {
    "rates.threshold": "tau",
    "rates.warmup_rounds": "R_warm",
    "rates.window": "rho",
    "rates.decay": "xi",
    "rates.balance": "beta",
}
DEFAULTS = {
    "CNN": {"tau": 1e-3, "R_warm": 10.0, "rho": 5.0, "xi": 0.3, "beta": 0.6},
    "ResNet": {"tau": 1e-3, "R_warm": 40.0, "rho": 10.0, "xi": 0.1, "beta": 0.6},
}

Names = dict[str, str | None]  # the paper's words by column


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


def paper_number(run: FoundRun, varied: tuple[str, ...] = ()) -> PaperNumber | None:
    """The paper's cell for this run's data, model, algorithm, rule, network and target; None where it has none.

    `varied` are the keys that make rows or columns: with one of FedA2L's own parameters it is the sensitivity table.
    """
    names = _names(run)
    known = None not in (names["algorithm"], names["method"], names["dataset"])
    if not known or run.target is None or _changed(run, names):
        return None
    if names["method"] == "FedA2L" and any(key in PARAMETER for key in varied):
        return _sensitivity(run, names, f"Rounds@{100 * run.target:g}%")
    if run.falls:
        return _number_of(_series_row(names, target_mse=f"{run.target:g}"))
    target = f"{100 * run.target:g}"
    if _usual(run):
        return _main_number(names, target)
    fits = (names["model"], names["dataset"]) == ("ResNet-18", "CIFAR-100")
    return paper_robustness(run, target_accuracy_pct=target) if fits else None


def paper_seconds(run: FoundRun) -> float | None:
    """Seconds a round in the paper, evaluation counted; None where it has none.

    FedA2L's settings are not felt in them. Its runs score a model a node, each with its own statistics.
    """
    if run.keys.get("algorithm.buffers", "local") != "local":
        return None
    row = _row("convergence_time", **_names(run))
    return _number(row["seconds_per_round"]) if row else None


def paper_robustness(run: FoundRun, **where: str) -> PaperNumber | None:
    """The paper's rounds for a run's network and skew, on the paper's own model; to its own target without `where`."""
    names, setting = _names(run), _robustness_setting(run)
    return _number_of(
        _row("robustness", algorithm=names["algorithm"], method=names["method"], setting=setting, **where)
    )


def paper_series(run: FoundRun) -> tuple[PaperNumber, float] | None:
    """The paper's rounds for a series and the MSE that they are to, which may be another than the run's."""
    names = _names(run)
    row = _series_row(names)
    number = None if _changed(run, names) else _number_of(row)
    return (number, float(row["target_mse"])) if row and number else None


@cache
def flag_texts() -> dict[str, str]:
    """What each flag stands for."""
    return {row["flag"]: row["text"] for row in rows_of("flags")}


@cache
def rows_of(table: str) -> tuple[Mapping[str, str], ...]:
    """A shipped table, its comments left out."""
    text = (files("feda2l.report") / "paper" / f"{table}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def _names(run: FoundRun) -> Names:
    """What the paper's tables call a run's algorithm, rule, model and data."""
    tables = {"algorithm": ALGORITHM, "method": METHOD, "model": MODEL, "dataset": DATA}
    keys = {"algorithm": "algorithm.name", "method": "rates.name", "model": "model.name", "dataset": "data.name"}
    return {column: tables[column].get(run.keys.get(key, "")) for column, key in keys.items()}


def _changed(run: FoundRun, names: Names) -> bool:
    """Has it another base rate, momentum or sign of zeta than the paper's runs? A deep FedA2L had no momentum there."""
    keys = run.keys
    momentum = keys.get("training.momentum", 0.9) if keys.get("training.optimizer", "sgd") == "sgd" else 0.9
    own = names["method"] == "FedA2L" and names["model"] != "CNN"
    rate = keys.get("rates.base", 0.01) if keys.get("algorithm.name") != "dfedhpo" else 0.01
    return not isclose(rate, 0.01) or keys.get("rates.consensus_sign", 1) != 1 or (momentum == 0 and not own)


def _usual(run: FoundRun) -> bool:
    """The network of the main table: 10 nodes, fully connected, Dirichlet 0.1."""
    keys = run.keys
    skew = keys.get("data.partition"), keys.get("data.alpha")
    return keys.get("data.nodes") == 10 and keys.get("topology.name") == "full" and skew == ("dirichlet", 0.1)


def _robustness_setting(run: FoundRun) -> str | None:
    """The setting of the robustness table that differs from the usual one in just this; None for any other."""
    keys = run.keys
    nodes, graph, alpha = keys.get("data.nodes"), keys.get("topology.name"), keys.get("data.alpha")
    if (nodes, graph) == (10, "full"):
        return f"Dir({alpha:g})" if alpha is not None else None
    if graph == "full" and alpha == 0.1:
        return f"{nodes} nodes"
    if (nodes, alpha) == (10, 0.1):
        return {"ring": "Ring", "k_regular": "K-Connected"}.get(str(graph))
    return None


def _main_number(names: Names, target: str) -> PaperNumber | None:
    """The paper's rounds and minutes in its main setting."""
    row, time = (_row(table, **names, target_accuracy_pct=target) for table in ("main_results", "convergence_time"))
    if row is None:
        return None
    minutes, flags = (_number(time["total_minutes"]), _flags(time)) if time else (None, ())
    return PaperNumber(_number(row["rounds_mean"]), _number(row["rounds_std"]), minutes, None, _flags(row) + flags)


def _sensitivity(run: FoundRun, names: Names, metric: str) -> PaperNumber | None:
    """The row of the one parameter that differs from the paper's default; the default itself stands in every block."""
    if names["algorithm"] != "FedAvg" or not _usual(run):
        return None
    values, results, flags = _parameters(run, names["model"]), dict[str, list[float]](), dict[str, None]()
    for row in _rows("sensitivity", model=names["model"], dataset=names["dataset"]):
        if row["parameter"] in values and isclose(float(row["value"]), values[row["parameter"]]):
            results.setdefault(row["metric"], []).extend([float(row["result"])] if row["result"] else [])
            flags |= dict.fromkeys(_flags(row) if row["metric"] == metric else ())
    if metric not in results:
        return None
    low, high = min(results[metric], default=None), max(results[metric], default=None)
    best = max(results.get("Best accuracy", ()), default=None)
    return PaperNumber(low, best=best and best / 100, flags=tuple(flags), highest=high)


def _parameters(run: FoundRun, model: str | None) -> dict[str, float]:
    """The parameter that differs from the paper's default; all of them if none differs, none if several differ."""
    default = DEFAULTS["CNN" if model == "CNN" else "ResNet"]
    own = {name: float(run.keys[key]) for key, name in PARAMETER.items() if key in run.keys}
    differ = {name: value for name, value in own.items() if not isclose(value, default[name])}
    return {1: differ, 0: own}.get(len(differ), {})


def _rows(table: str, **where: str | None) -> list[Mapping[str, str]]:
    return [row for row in rows_of(table) if all(row[key] == str(value) for key, value in where.items())]


def _row(table: str, **where: str | None) -> Mapping[str, str] | None:
    return next(iter(_rows(table, **where)), None)


def _series_row(names: Names, **where: str) -> Mapping[str, str] | None:
    return _row("time_series", **{key: name for key, name in names.items() if key != "model"}, **where)


def _number_of(row: Mapping[str, str] | None) -> PaperNumber | None:
    if row is None:
        return None
    seconds = _number(row.get("total_seconds", ""))
    return PaperNumber(_number(row["rounds"]), minutes=seconds and seconds / 60, flags=_flags(row))


def _number(text: str) -> float | None:
    return float(text) if text else None


def _flags(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row["flag"].split())
