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
    algorithm, method, model, data = (names[column] for column in ("algorithm", "method", "model", "dataset"))
    if not (algorithm and method and data and run.target is not None) or _changed(run, method, model):
        return None
    if method == "FedA2L" and any(key in PARAMETER for key in varied):
        return _sensitivity(run, model, data) if model and algorithm == "FedAvg" and _usual(run) else None
    if run.falls:
        row = _row("time_series", algorithm=algorithm, method=method, dataset=data, target_mse=f"{run.target:g}")
        if row is None:
            return None
        return PaperNumber(_number(row["rounds"]), None, _minutes(row["total_seconds"]), None, _flags(row))
    target = f"{100 * run.target:g}"
    if not _usual(run):
        setting = _robustness_setting(run)
        row = _row("robustness", algorithm=algorithm, method=method, setting=setting, target_accuracy_pct=target)
        fits = setting and (model, data) == ("ResNet-18", "CIFAR-100")
        return PaperNumber(_number(row["rounds"]), flags=_flags(row)) if row and fits else None
    row, time = (_row(table, **names, target_accuracy_pct=target) for table in ("main_results", "convergence_time"))
    if row is None:
        return None
    minutes = _number(time["total_minutes"]) if time else None
    flags = (*_flags(row), *(_flags(time) if time else ()))
    return PaperNumber(_number(row["rounds_mean"]), _number(row["rounds_std"]), minutes, None, flags)


def paper_seconds(run: FoundRun) -> float | None:
    """Seconds a round in the paper, evaluation counted; None where it has none.

    FedA2L's settings are not felt in them. Its runs score a model a node, each with its own statistics.
    """
    if run.keys.get("algorithm.buffers", "local") != "local":
        return None
    row = _row("convergence_time", **_names(run))
    return _number(row["seconds_per_round"]) if row else None


def paper_robustness(run: FoundRun) -> PaperNumber | None:
    """The paper's rounds for a run's network and skew, on the paper's own model and to its own target."""
    names = _names(run)
    row = _row("robustness", algorithm=names["algorithm"], method=names["method"], setting=_robustness_setting(run))
    return PaperNumber(_number(row["rounds"]), flags=_flags(row)) if row else None


def paper_series(run: FoundRun) -> tuple[PaperNumber, float] | None:
    """The paper's rounds for a series and the MSE that they are to, which may be another than the run's."""
    names = _names(run)
    method, model = names.pop("method"), names.pop("model")
    row = _row("time_series", method=method, **names)
    if row is None or method is None or _changed(run, method, model):
        return None
    return PaperNumber(_number(row["rounds"]), flags=_flags(row)), float(row["target_mse"])


@cache
def flag_texts() -> dict[str, str]:
    """What each flag stands for."""
    return {row["flag"]: row["text"] for row in rows_of("flags")}


@cache
def rows_of(table: str) -> tuple[Mapping[str, str], ...]:
    """A shipped table, its comments left out."""
    text = (files("feda2l.report") / "paper" / f"{table}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def _names(run: FoundRun) -> dict[str, str | None]:
    """What the paper's tables call a run's algorithm, rule, model and data."""
    tables = {"algorithm": ALGORITHM, "method": METHOD, "model": MODEL, "dataset": DATA}
    keys = {"algorithm": "algorithm.name", "method": "rates.name", "model": "model.name", "dataset": "data.name"}
    return {column: tables[column].get(run.keys.get(key, "")) for column, key in keys.items()}


def _changed(run: FoundRun, method: str, model: str | None) -> bool:
    """Has it another base rate, momentum or sign of zeta than the paper's runs? A deep FedA2L had no momentum there."""
    keys = run.keys
    momentum = keys.get("training.momentum", 0.9) if keys.get("training.optimizer", "sgd") == "sgd" else 0.9
    own = method == "FedA2L" and model != "CNN"
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


def _sensitivity(run: FoundRun, model: str, data: str) -> PaperNumber | None:
    """The row of the one parameter that differs from the paper's default; the default itself stands in every block."""
    default = DEFAULTS["CNN" if model == "CNN" else "ResNet"]
    own = {name: float(run.keys[key]) for key, name in PARAMETER.items() if key in run.keys}
    differ = [name for name, value in own.items() if not isclose(value, default[name])]
    if len(differ) > 1 or run.target is None:
        return None
    rows = [
        row
        for row in rows_of("sensitivity")
        if (row["model"], row["dataset"]) == (model, data)
        and row["parameter"] in (differ or own)
        and isclose(float(row["value"]), own[row["parameter"]])
    ]
    rounds = [row for row in rows if row["metric"] == f"Rounds@{100 * run.target:g}%"]
    best = [float(row["result"]) / 100 for row in rows if row["metric"] == "Best accuracy" and row["result"]]
    if not rounds:
        return None
    reached = sorted(float(row["result"]) for row in rounds if row["result"])
    flags = tuple(dict.fromkeys(flag for row in rounds for flag in _flags(row)))
    low, high = (reached[0], reached[-1]) if reached else (None, None)
    return PaperNumber(low, best=max(best, default=None), flags=flags, highest=high)


def _row(table: str, **where: str | None) -> Mapping[str, str] | None:
    wanted = {key: str(value) for key, value in where.items()}
    rows = rows_of(table)
    return next((row for row in rows if all(row[key] == value for key, value in wanted.items())), None)


def _number(text: str) -> float | None:
    return float(text) if text else None


def _minutes(seconds: str) -> float | None:
    return float(seconds) / 60 if seconds else None


def _flags(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row["flag"].split())
