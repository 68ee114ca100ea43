"""Readings: whole protocols that a study can name. What the study itself sets wins over its reading."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from feda2l.algorithms import ALGORITHMS, Algorithm, part_names
from feda2l.data import CATALOG
from feda2l.rates import RULES

Reading = Literal["paper", "reference", "fair"]
Table = dict[str, Any]
WITH_BATCH_NORM = ("resnet18", "resnet34")


@dataclass(frozen=True)
class Protocol:
    """The settings of one reading."""

    preset: Literal["paper", "reference"]
    init: Literal["common", "per_node"]
    buffers: Literal["average", "local"]
    cycle_momentum: bool  # for one_cycle
    hyperbolic: Literal["hyperbolic", "hyperbolic_reference"]  # what "hyperbolic" means
    blocks: bool = False  # momentum 0 and local BatchNorm statistics as additional blocks
    partition_varies: bool = False  # with the seed of the run; otherwise every run has the partition of seed 1
    tuned: bool = False  # the base rate of every cell; otherwise it is 0.01


READINGS: dict[str, Protocol] = {
    # what the paper says; one initial model per node, as its values on the CNN are only reproduced that way
    "paper": Protocol("paper", "per_node", "local", cycle_momentum=True, hyperbolic="hyperbolic"),
    # what the released code does, including its oddities
    "reference": Protocol("reference", "per_node", "local", cycle_momentum=True, hyperbolic="hyperbolic_reference"),
    # everything is equal except the rule
    "fair": Protocol(
        "paper",
        "common",
        "average",
        cycle_momentum=False,
        hyperbolic="hyperbolic",
        blocks=True,
        partition_varies=True,
        tuned=True,
    ),
}


def read_as(reading: Reading | None, given: Table) -> list[tuple[str, Table]]:
    """The partial specs of a cell under a reading, one per block, each with the suffix of the cell's name."""
    if reading is None:
        return [("", given)]
    protocol, values = READINGS[reading], _copied(given)
    rates, training, model, algorithm = (
        values.setdefault(section, {}) for section in ("rates", "training", "model", "algorithm")
    )
    sgd = training.get("optimizer", "sgd") == "sgd"
    open_momentum = sgd and _leaves_momentum_open(training, algorithm)
    open_buffers = "buffers" not in algorithm
    preset = _read_preset(protocol, rates)
    # with the preset "reference", a resolved spec with more than ten layers has momentum 0, as in the released code
    if open_momentum and preset != "reference":
        training["momentum"] = 0.9
    _read_cycle(protocol, rates, has_momentum=bool(sgd and training.get("momentum")))
    model.setdefault("init", protocol.init)
    algorithm.setdefault("buffers", protocol.buffers)
    if not protocol.partition_varies:
        values.setdefault("data", {}).setdefault("partition_seed", 1)
    if not protocol.tuned:
        rates.setdefault("base", 0.01)
    return [("", values), *(_blocks(values, open_momentum, open_buffers) if protocol.blocks else ())]


def _read_preset(protocol: Protocol, rates: Table) -> str | None:
    """Choose what "hyperbolic" means and the rule's preset; returns the preset, None for a rule without presets."""
    if rates.get("name") == "hyperbolic" and not {"upper_bound", "warmup_rounds"} & rates.keys():
        rates["name"] = protocol.hyperbolic
    default = getattr(RULES.get(rates.get("name", "feda2l")), "preset", None)
    if default is None:
        return None
    if default == "paper":  # hidden_schedule has the preset "reference" only
        rates.setdefault("preset", protocol.preset)
    preset: str = rates.get("preset", default)
    return preset


def _read_cycle(protocol: Protocol, rates: Table, *, has_momentum: bool) -> None:
    if rates.get("name") == "one_cycle" and (has_momentum or not protocol.cycle_momentum):
        rates.setdefault("cycle_momentum", protocol.cycle_momentum)


def _leaves_momentum_open(training: Table, algorithm: Table) -> bool:
    kinds = [ALGORITHMS.get(name, Algorithm) for name in part_names(algorithm.get("name", "fedavg"))]
    return "momentum" not in training and all("momentum" not in kind.defaults.get("training", {}) for kind in kinds)


def _blocks(values: Table, open_momentum: bool, open_buffers: bool) -> Iterator[tuple[str, Table]]:
    if open_momentum:
        yield "momentum-0", _with(values, "training", momentum=0.0)
    if open_buffers and _model(values) in WITH_BATCH_NORM:
        yield "buffers-local", _with(values, "algorithm", buffers="local")


def _model(values: Table) -> str | None:
    data = values.get("data", {}).get("name", "digits")
    default = CATALOG[data].model if data in CATALOG else None
    name: str | None = values.get("model", {}).get("name", default)
    return name


def _copied(table: Table) -> Table:
    return {key: dict(value) if isinstance(value, dict) else value for key, value in table.items()}


def _with(values: Table, section: str, **keys: Any) -> Table:
    return values | {section: values[section] | keys}
