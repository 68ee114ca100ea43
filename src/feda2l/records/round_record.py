"""The record of a round: its keys, its line in `rounds.jsonl`, its rows in `rounds.parquet` and `layers.parquet`."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Literal, NotRequired, TypedDict, cast

from feda2l.old_names import current_record
from feda2l.records.round_timings import RoundTimings
from feda2l.records.theory import THEORY, TheoryQuantities

Metric = Literal["accuracy", "mse"]
Score = Literal["accuracy", "mse", "mae", "test_loss"]
MeanModelScore = Literal["mean_model_accuracy", "mean_model_mse", "mean_model_mae", "mean_model_loss"]
LayerColumn = Literal["rate", "multiplier", "divergence", "stability"]
LayerRows = list[list[float | None]]  # [node][layer]

METRICS: tuple[Metric, ...] = ("accuracy", "mse")  # the main score of a classification and of a regression
SCORES: tuple[Score, ...] = ("accuracy", "mse", "mae", "test_loss")
MEAN_MODEL: tuple[MeanModelScore, ...] = (
    "mean_model_accuracy",
    "mean_model_mse",
    "mean_model_mae",
    "mean_model_loss",
)
LAYER_COLUMNS: tuple[LayerColumn, ...] = ("rate", "multiplier", "divergence", "stability")
ROUND_COLUMNS = (
    "train_loss",
    *SCORES,
    *(f"local_{name}" for name in SCORES),
    "bytes_sent",
    "simulated_seconds",
    "received",
    "rejected",
)
RUN_COLUMNS = (*MEAN_MODEL, "disagreement", "multiplier_min", "multiplier_max", "multiplier_change", *THEORY)


class NodeScores(TypedDict, total=False):
    """Scores of each node; None for a node that was absent, has no test samples or whose loss overflowed.

    The prefix `local_` marks scores on the test part of a node's own data, beside those on the test set.
    """

    accuracy: list[float | None]
    mse: list[float | None]
    mae: list[float | None]
    test_loss: list[float | None]
    local_accuracy: list[float | None]
    local_mse: list[float | None]
    local_mae: list[float | None]
    local_test_loss: list[float | None]


class NodeColumns(NodeScores):
    """One entry per node; None for a node that was absent."""

    train_loss: list[float | None]
    bytes_sent: list[int]
    simulated_seconds: NotRequired[list[float]]  # when the node completed the round
    received: NotRequired[list[int | None]]  # messages received from other nodes, if nodes can be absent
    rejected: NotRequired[list[int | None]]  # messages rejected


class LayerColumns(TypedDict):
    """One row per node and one column per layer; None for a node that was absent."""

    name: list[str]
    disagreement: NotRequired[list[float]]  # over all nodes; unknown to a single peer
    rate: LayerRows  # used for training in the round
    multiplier: LayerRows
    divergence: LayerRows  # measured in the round
    stability: LayerRows


class RoundScores(TypedDict, total=False):
    """Means over nodes, with the standard deviation and the worst node of the main score; only in evaluated rounds.

    A loss that overflowed is null on disk.
    """

    accuracy: float | None
    accuracy_std: float | None
    accuracy_worst: float | None
    mse: float | None
    mse_std: float | None
    mse_worst: float | None
    mae: float | None
    test_loss: float | None
    local_accuracy: float | None
    local_accuracy_std: float | None
    local_accuracy_worst: float | None
    local_mse: float | None
    local_mse_std: float | None
    local_mse_worst: float | None
    local_mae: float | None
    local_test_loss: float | None
    mean_model_accuracy: float | None
    mean_model_mse: float | None
    mean_model_mae: float | None
    mean_model_loss: float | None


class RoundRecord(RoundScores, TheoryQuantities):
    """A line of `rounds.jsonl`. Keys that were not measured are absent or null."""

    round: int
    train_loss: float | None
    disagreement: float | None  # null in a peer's record, because it needs all models
    bytes_sent: int
    simulated_seconds: NotRequired[float]  # when the last node completed the round
    multiplier_min: float | None
    multiplier_max: float | None
    multiplier_change: float | None
    nodes: NodeColumns
    layers: LayerColumns
    received: NotRequired[list[int]]  # in a peer's record: the nodes whose message it received


class NamedRecord(RoundRecord):
    """What `on_round` receives: the record and the name of its run."""

    name: str


class TimedRecord(RoundRecord):
    """What a tracker receives: the record and the seconds of the round."""

    seconds: float


class Evaluation(RoundScores):
    """The scores of a run's models, computed after the run."""

    round: int
    nodes: NodeScores
    class_accuracy: NotRequired[list[float | None]]


# --- making and reading records -------------------------------------------------------------------------------


def missed_round(round: int) -> RoundRecord:
    """Make the record of a round that a peer missed, so that line n is always round n."""
    return {
        "round": round,
        "train_loss": None,
        "disagreement": None,
        "bytes_sent": 0,
        "multiplier_min": None,
        "multiplier_max": None,
        "multiplier_change": None,
        "nodes": {"train_loss": [None], "bytes_sent": [0]},
        "layers": {"name": [], "rate": [[]], "multiplier": [[]], "divergence": [[]], "stability": [[]]},
        "received": [],
    }


def unscored(record: RoundRecord) -> RoundRecord:
    """Return the record without scores, as in a round that is not evaluated."""
    bare = {key: value for key, value in record.items() if key not in RoundScores.__optional_keys__}
    bare["nodes"] = {key: value for key, value in record["nodes"].items() if key not in NodeScores.__optional_keys__}
    return cast(RoundRecord, bare)


def update_scores(
    record: RoundRecord | Evaluation,
    scores: Mapping[str, float | None],
    of_nodes: Mapping[str, list[float | None]] | None = None,
) -> None:
    """Add scores to a record, of the round and of each node."""
    _update(record, scores)
    _update(record["nodes"], of_nodes or {})


def update_theory(record: RoundRecord, quantities: TheoryQuantities) -> None:
    """Add the estimates of the convergence bounds' quantities to a record."""
    _update(record, quantities)


def _update(columns: RoundScores | NodeScores, values: Mapping[str, object]) -> None:
    cast(dict[str, object], columns).update(values)


def node_scores(nodes: NodeScores, prefix: str = "") -> dict[Score, list[float | None]]:
    """Return a record's scores of its nodes; `prefix` "local_" selects those on a node's own data."""
    columns = cast(Mapping[str, list[float | None]], nodes)
    return {name: columns[prefix + name] for name in SCORES if prefix + name in columns}


def main_score(scores: RoundScores) -> tuple[Metric, float] | None:
    """Return name and value of the main score; None if the round was not evaluated."""
    for metric in METRICS:
        if (value := scores.get(metric)) is not None:
            return metric, value
    return None


def known(values: Iterable[float | None]) -> list[float]:
    """Return the values that were measured."""
    return [value for value in values if value is not None]


# --- lines ----------------------------------------------------------------------------------------------------


def to_line(line: RoundRecord | RoundTimings) -> str:
    """Format a line of JSON. JSON has no infinity and no NaN, so a loss that overflowed becomes null."""
    try:
        return json.dumps(line, allow_nan=False) + "\n"
    except ValueError:
        return json.dumps(_finite(line), allow_nan=False) + "\n"


def from_line(line: str | bytes) -> RoundRecord:
    """Parse a line. Its keys are not checked, because a record of an older version may lack some."""
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError("a record must be a JSON object")
    return cast(RoundRecord, current_record(record))


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- tables ---------------------------------------------------------------------------------------------------


def round_columns(records: Iterable[RoundRecord]) -> dict[str, list[object]]:
    """Return the records as columns with one row per node and round; values of the whole run repeat on each row.

    A node that was absent in a round has nulls in its columns. Columns without any value are left out.
    """
    columns: dict[str, list[object]] = {name: [] for name in ("round", "node", *ROUND_COLUMNS, *RUN_COLUMNS)}
    for record in records:
        nodes = len(record["nodes"]["train_loss"])
        of_nodes, of_run = cast(Mapping[str, list[object]], record["nodes"]), dict[str, object](record)
        columns["round"] += [record["round"]] * nodes
        columns["node"] += range(nodes)
        for name in ROUND_COLUMNS:
            columns[name] += of_nodes.get(name, [None] * nodes)
        for name in RUN_COLUMNS:
            columns[name] += [of_run.get(name)] * nodes
    return {name: values for name, values in columns.items() if any(value is not None for value in values)}


def layer_columns(records: Iterable[RoundRecord]) -> dict[str, list[object]]:
    """Return the records as columns with one row per node, layer and round.

    `rate` and `multiplier` were used for training in the round; `divergence` and `stability` were measured in it.
    """
    columns: dict[str, list[object]] = {name: [] for name in ("round", "node", "layer", *LAYER_COLUMNS)}
    for record in records:
        layers = record["layers"]
        names, nodes = layers["name"], len(layers["rate"])
        columns["round"] += [record["round"]] * (nodes * len(names))
        columns["node"] += [node for node in range(nodes) for _ in names]
        columns["layer"] += names * nodes
        for name in LAYER_COLUMNS:
            columns[name] += [value for row in layers[name] for value in row]
    return columns
