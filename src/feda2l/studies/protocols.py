"""Readings: whole protocols that a study names. What the study itself gives wins over them."""

from dataclasses import dataclass
from typing import Any, Literal

from feda2l.algorithms import ALGORITHMS, Algorithm
from feda2l.data import CATALOG
from feda2l.rates import RULES
from feda2l.rates.decay_only import HiddenSchedule
from feda2l.rates.feda2l import FedA2LRule

Reading = Literal["paper", "reference", "fair"]
Table = dict[str, Any]
WITH_BATCH_NORM = ("resnet18", "resnet34")


@dataclass(frozen=True)
class Protocol:
    """One column of the readings' table."""

    preset: Literal["paper", "reference"]
    init: Literal["common", "per_node"]
    buffers: Literal["average", "local"]
    cycle_momentum: bool  # of one_cycle
    hyperbolic: Literal["hyperbolic", "hyperbolic_reference"]  # what "hyperbolic" means
    blocks: bool = False  # momentum 0 and the nodes' own BatchNorm statistics as second blocks
    partition_varies: bool = False  # with the run's seed; else it is that of seed 1
    tuned: bool = False  # the base rate of every cell; else it is .01


READINGS: dict[str, Protocol] = {
    # what the paper says; one start a node, since only so do its CNN values come near
    "paper": Protocol("paper", "per_node", "local", cycle_momentum=True, hyperbolic="hyperbolic"),
    # what the released code does, warts and all
    "reference": Protocol("reference", "per_node", "local", cycle_momentum=True, hyperbolic="hyperbolic_reference"),
    # everything equal but the rule
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


def read_as(reading: Reading, given: Table) -> list[tuple[str, Table]]:
    """A cell's partial spec under a reading: one, or one a block, each with what is added to the cell's name."""
    protocol, values = READINGS[reading], _copied(given)
    rates = values.setdefault("rates", {})
    if rates.get("name") == "hyperbolic" and not {"upper_bound", "warmup_rounds"} & rates.keys():
        rates["name"] = protocol.hyperbolic
    rule = RULES.get(rates.get("name", "feda2l"))
    deep_has_none = False
    if rule is not None and issubclass(rule, FedA2LRule):
        if not issubclass(rule, HiddenSchedule):
            rates.setdefault("preset", protocol.preset)
        # on more than ten layers a resolved spec then has momentum 0, as the released code
        deep_has_none = rates.get("preset", "reference") == "reference"
    training = values.setdefault("training", {})
    sgd = training.get("optimizer", "sgd") == "sgd"
    kind = ALGORITHMS.get(values.get("algorithm", {}).get("name", "fedavg"), Algorithm)
    own_momentum = "momentum" not in training and "momentum" not in kind.defaults.get("training", {})
    if sgd and own_momentum and not deep_has_none:
        training["momentum"] = 0.9
    if rates.get("name") == "one_cycle" and "cycle_momentum" not in rates:
        if not protocol.cycle_momentum:
            rates["cycle_momentum"] = False
        elif sgd and training.get("momentum"):
            rates["cycle_momentum"] = True
    values.setdefault("model", {}).setdefault("init", protocol.init)
    own_buffers = "buffers" not in values.get("algorithm", {})
    values.setdefault("algorithm", {}).setdefault("buffers", protocol.buffers)
    if not protocol.partition_varies:
        values.setdefault("data", {}).setdefault("partition_seed", 1)
    if not protocol.tuned:
        rates.setdefault("base", 0.01)
    blocks = [("", values)]
    if protocol.blocks and sgd and own_momentum:
        blocks.append(("momentum-0", _with(values, "training", momentum=0.0)))
    if protocol.blocks and own_buffers and _model(values) in WITH_BATCH_NORM:
        blocks.append(("buffers-local", _with(values, "algorithm", buffers="local")))
    return blocks


def _model(values: Table) -> str | None:
    data = values.get("data", {}).get("name", "digits")
    default = CATALOG[data].model if data in CATALOG else None
    name: str | None = values.get("model", {}).get("name", default)
    return name


def _copied(table: Table) -> Table:
    return {key: dict(value) if isinstance(value, dict) else value for key, value in table.items()}


def _with(values: Table, section: str, **keys: Any) -> Table:
    return values | {section: values[section] | keys}
