"""Read the rounds of a run while its files grow. Only the values that the page draws are kept."""

import json
from collections import deque
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from feda2l.records.growing_file import Tail
from feda2l.records.round_record import METRICS, LayerColumn, Metric, RoundRecord, from_line
from feda2l.records.round_timings import RoundTimings, total_seconds
from feda2l.records.run_folder import RunFolder

SIGNALS: tuple[LayerColumn, ...] = ("rate", "divergence", "stability")
CELLS = 2000  # maximum nodes x layers per round that are kept for the heat maps
PACE = 10  # number of rounds over which the time per round is averaged
Signals = NDArray[np.float32]


class RoundSeries:
    """Columns over rounds. Entry r belongs to round r + 1 and is NaN if nothing was measured."""

    def __init__(self) -> None:
        self.metric: Metric | Literal[""] = ""
        self.score: list[float] = []
        self.loss: list[float] = []
        self.distance: list[float] = []
        self.sent: list[float] = []
        self.nodes: list[float] = []  # last measured score of each node
        self.received: int | None = None  # messages that a real node received in its last round
        self.count = 0  # number of nodes
        self.layers: list[str] = []
        self.signals: list[Signals | None] = []  # per round [signal, node, layer]; None if a node missed it

    def __len__(self) -> int:
        return len(self.score)

    def add(self, record: RoundRecord) -> None:
        nodes, layers = record["nodes"], record["layers"]
        metric = next((name for name in METRICS if name in nodes), None)
        self.metric = metric or self.metric
        self.score.append(_number(record.get(metric) if metric else None))
        self.loss.append(_number(record["train_loss"]))
        self.distance.append(_number(record.get("disagreement")))
        self.sent.append(_number(record.get("bytes_sent")))
        if metric:
            self.nodes = [_number(value) for value in nodes[metric]]
        self.received = len(record["received"]) if "received" in record else None
        self.count, self.layers = len(nodes["train_loss"]), layers["name"] or self.layers
        self.signals.append(_signals(record))

    def signals_at(self, round: int, layers: int) -> Signals:
        """Return the signals of a round (counted from 0), or NaN if the node missed it or has not reached it."""
        signals = self.signals[round] if round < len(self) else None
        return np.full((len(SIGNALS), 1, layers), np.nan, dtype=np.float32) if signals is None else signals


class Arriving:
    """Reader of `rounds.jsonl` and `timings.jsonl` of a run that may still be in progress."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.rounds = RoundSeries()
        self.damage = ""  # describes what is wrong with the records
        self._lines, self._timings = Tail(folder.rounds), Tail(folder.timings)
        self._begun = 0
        self._seconds: deque[float] = deque(maxlen=PACE)

    @property
    def pace(self) -> float | None:
        """Mean seconds per round over the last rounds."""
        return sum(self._seconds) / len(self._seconds) if self._seconds else None

    def read(self) -> bool:
        """Read new lines. Return True if there are new rounds."""
        for line in self._timings.read():
            try:
                timing: RoundTimings = json.loads(line)
                self._seconds.append(total_seconds(timing))
            except (ValueError, AttributeError, TypeError):
                continue  # incomplete line of a killed process
        changed = False
        while lines := self._lines.read():
            changed = True
            if self._lines.begun != self._begun:  # the file was cut back to a checkpoint, or replaced by another run
                self.rounds, self.damage, self._begun = RoundSeries(), "", self._lines.begun
            self._take(lines)
        return changed

    def _take(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            if self.damage:
                return
            try:
                record = from_line(line)
                if record["round"] != len(self.rounds) + 1:
                    raise ValueError(f"its round is {record['round']}")
                self.rounds.add(record)
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                self.damage = f"line {len(self.rounds) + 1} of {self.folder.rounds.name} is invalid: {error}"


def joined(nodes: Sequence[RoundSeries]) -> RoundSeries:
    """Combine the rounds of a network's nodes into those of one run: each value is the mean over available nodes."""
    network = RoundSeries()
    network.count = len(nodes)
    network.metric = next(filter(None, (node.metric for node in nodes)), "")
    network.layers = next(filter(None, (node.layers for node in nodes)), [])
    network.nodes = [node.nodes[0] if node.nodes else float("nan") for node in nodes]
    network.score = _mean([node.score for node in nodes])
    network.loss = _mean([node.loss for node in nodes])
    network.sent = np.nansum(_table([node.sent for node in nodes]), axis=0).tolist()
    network.distance = [float("nan")] * len(network.score)  # the consensus distance needs all models
    count = len(network.layers)
    shown = nodes[: max(1, CELLS // max(1, count))]
    for at in range(len(network.score)):
        network.signals.append(np.concatenate([node.signals_at(at, count) for node in shown], axis=1))
    return network


def _signals(record: RoundRecord) -> Signals | None:
    layers, nodes = record["layers"], len(record["nodes"]["train_loss"])
    count = len(layers["name"])
    if not count:
        return None
    rows = [layers.get(name) or [[None] * count] * nodes for name in SIGNALS]
    return np.array([row[: max(1, CELLS // count)] for row in rows], dtype=np.float32)


def _table(columns: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Return a table with one row per node and one column per round; missing and non-finite values are NaN."""
    table = np.full((len(columns), max(map(len, columns), default=0)), np.nan)
    for row, column in zip(table, columns, strict=True):
        row[: len(column)] = column
    return np.where(np.isfinite(table), table, np.nan)


def _mean(columns: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean over nodes for each round, NaN if no node has a value."""
    table = _table(columns)
    counts = np.isfinite(table).sum(axis=0)
    means = np.divide(np.nansum(table, axis=0), counts, out=np.full(len(counts), np.nan), where=counts > 0)
    result: list[float] = means.tolist()
    return result


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
