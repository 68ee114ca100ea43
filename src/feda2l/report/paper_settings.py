"""What the paper calls a run's setting, and which of the run's settings differ from those that the paper fixes."""

import dataclasses
from collections.abc import Mapping
from math import isclose

from feda2l.rates import RULES
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
NETWORK = ("data.nodes", "data.partition", "data.alpha", "topology.name")
USUAL = "Dir(0.1)"  # the network of all tables except the one on robustness
FULL_GRAPH = {"topology.name": "full", "topology.weights": "samples"}
# the batch size, momentum and weight decay are the defaults of the released code: the paper does not print them
IMAGES: dict[str, object] = {
    "data.nodes": 10,
    "data.partition": "dirichlet",
    "data.alpha": 0.1,
    **FULL_GRAPH,
    "training.epochs": 1,
    "training.batch_size": 10,
    "training.optimizer": "sgd",
    "training.momentum": 0.9,
    "training.weight_decay": 0.0,
    "rates.base": 0.01,
    "rates.horizon": 500,
    "evaluation.every": 1,
    "evaluation.on": "global",
    "evaluation.smoothing": 10,
}
SERIES: dict[str, object] = {
    "data.partition": "natural",
    "data.input_length": 96,
    "data.horizon": 96,
    "data.stride": 1,
    "model.name": "timer",
    **FULL_GRAPH,
    "training.epochs": 1,
    "training.batch_size": 32,
    "training.optimizer": "sgd",
    "training.momentum": 0.9,
    "training.weight_decay": 0.0,
    "rates.base": 0.01,
    "rates.horizon": 100,
    "evaluation.every": 1,
}
SERIES_NODES = {"ExchangeRate": 8, "BeijingAirQuality": 12}

Names = dict[str, str | None]  # the paper's words by column


def names_of(run: FoundRun) -> Names:
    """What the paper's tables call a run's algorithm, rule, model and data; None for what is not in them."""
    tables = {"algorithm": ALGORITHM, "method": METHOD, "model": MODEL, "dataset": DATA}
    keys = {"algorithm": "algorithm.name", "method": "rates.name", "model": "model.name", "dataset": "data.name"}
    return {column: tables[column].get(str(run.keys.get(key, ""))) for column, key in keys.items()}


def network_of(run: FoundRun) -> str | None:
    """What the paper's robustness table calls a run's network and skew; None for one that is not in the paper."""
    keys = run.keys
    nodes, graph, alpha = keys.get("data.nodes"), keys.get("topology.name"), keys.get("data.alpha")
    if (nodes, graph) == (10, "full"):
        return f"Dir({alpha:g})" if alpha is not None else None
    if graph == "full" and alpha == 0.1:
        return f"{nodes} nodes"
    if (nodes, alpha) == (10, 0.1):
        return {"ring": "Ring", "k_regular": "K-Connected"}.get(str(graph))
    return None


def default_parameters(names: Names) -> dict[str, float]:
    """FedA2L's parameters by the paper's letters, as it sets them for a model and data."""
    if names["model"] == "CNN":
        return {"tau": 1e-3, "R_warm": 10.0, "rho": 5.0, "xi": 0.3, "beta": 0.6}
    xi = 0.05 if names["dataset"] == "TinyImageNet" else 0.1
    return {"tau": 1e-3, "R_warm": 40.0, "rho": 10.0, "xi": xi, "beta": 0.6}


def fixed_settings(run: FoundRun, names: Names) -> dict[str, object]:
    """The value that the paper fixes for each setting of a run's table, by the key of a spec."""
    fixed = {**SERIES, "data.nodes": SERIES_NODES.get(str(names["dataset"]))} if run.falls else dict(IMAGES)
    if names["algorithm"] == "DFedHPO":
        del fixed["rates.base"]  # found by its search
    if names["method"] != "FedA2L":
        return fixed | _rule_defaults(run)
    fixed["rates.consensus_sign"] = 1
    if names["model"] != "CNN":
        del fixed["training.momentum"]  # 0 for a deep FedA2L in the released code, while the paper does not say
    if not run.falls:  # the paper prints no parameters for series
        parameters = default_parameters(names)
        fixed |= {key: parameters[letter] for key, letter in PARAMETER.items()}
    return fixed


def differences(run: FoundRun, fixed: Mapping[str, object]) -> tuple[str, ...]:
    """Name each setting of a run that differs from the paper's; a key that an older record lacks does not count."""
    return tuple(
        f"{key} is {_text(run.keys[key])} (the paper: {_text(value)})"
        for key, value in fixed.items()
        if key in run.keys and not _same(run.keys[key], value)
    )


def _rule_defaults(run: FoundRun) -> dict[str, object]:
    kind = RULES.get(str(run.keys.get("rates.name")))
    if kind is None or not dataclasses.is_dataclass(kind):
        return {}
    return {f"rates.{own.name}": own.default for own in dataclasses.fields(kind) if own.default is not None}


def _same(value: object, expected: object) -> bool:
    if isinstance(value, int | float) and isinstance(expected, int | float):
        return isclose(value, expected)
    return value == expected


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
