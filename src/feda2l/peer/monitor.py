"""The monitor of a node for its operator: `/metrics`, `/health` and `/ready` over HTTP.

The node passes a frozen status and continues; a scrape reads the last status. Neither waits for the other.
"""

import json
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Self

from feda2l.errors import FedA2LError
from feda2l.http_server import HttpServer, Query, Response, listen
from feda2l.plain_values import PlainDict

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

Phase = Literal["starting", "running", "leaving", "done"]
NeighbourState = Literal["present", "away", "quarantined"]
STATES: tuple[NeighbourState, ...] = ("present", "away", "quarantined")
PATIENCE = 3.0  # a node is stalled if no round completes within this many usual round lengths (or deadlines)
LEAST = 30.0  # seconds without a round before a node may count as stalled
RECENT = 10  # the usual round length is the longest of this many rounds
PAIRS = 256  # of neighbour and reason that are counted; names in forged messages must not fill the memory
CONNECTIONS = 8  # answered at the same time; more are closed
PLAIN = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus's text format
_Rows = Sequence[tuple[Mapping[str, str], float | None]]  # the labels of each value, and the value or None
_Metric = tuple[Literal["gauge", "counter"], str, str, _Rows]  # kind, name, help text and values


@dataclass(frozen=True)
class NeighbourStatus:
    """The state of a neighbour, as this node sees it."""

    name: str
    state: NeighbourState
    last_round: int = 0  # the last round in which a message of it arrived
    waited: float = 0.0  # seconds its message took in this node's last round


@dataclass(frozen=True)
class NodeStatus:
    """The state of a node between two rounds. Values that are None are unknown and are not shown."""

    phase: Phase = "starting"
    round: int = 0  # completed
    rounds: int = 0  # of the whole run
    deadline: float = 0.0  # seconds from the start of a round
    train_loss: float | None = None
    accuracy: float | None = None  # scores are those of the last evaluated round; None keeps the previous score
    test_loss: float | None = None
    mse: float | None = None
    mae: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)  # of each layer
    multipliers: Mapping[str, float] = field(default_factory=dict)
    bytes_sent: int = 0  # since the process started
    bytes_received: int = 0
    neighbours: tuple[NeighbourStatus, ...] = ()
    rounds_alone: int = 0  # rounds without a message of any neighbour
    checkpoint_time: float | None = None  # seconds since 1970
    certificate_expires: float | None = None  # seconds since 1970
    insecure: bool = False
    log_lines_lost: int = 0


SCORES = ("accuracy", "test_loss", "mse", "mae")


class Monitor:
    """Counts what a node does, and serves the numbers over HTTP if there is an address."""

    def __init__(self, address: str | None, node: str, *, start_limit: float = 600.0) -> None:
        """`start_limit`: seconds until the first round after which a node counts as stalled."""
        self.node, self.start_limit = node, start_limit
        self.status = NodeStatus()
        self._scores: dict[str, tuple[float, int]] = {}  # value and the round it was measured in
        self._rejected: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()  # taken briefly, never while something is computed or sent
        self._progress = time.monotonic()
        self._lengths: deque[float] = deque(maxlen=RECENT)
        self._server = _serve(address, self) if address else None

    @property
    def address(self) -> str | None:
        """The address of the server; if the configuration has port 0, with the port that was chosen."""
        if self._server is None:
            return None
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def update(self, status: NodeStatus) -> None:
        """Update the status of the node at the end of a round, or whenever it changes."""
        now = time.monotonic()
        with self._lock:
            if status.round != self.status.round and self.status.phase != "starting":
                self._lengths.append(
                    now - self._progress
                )  # the time before the first round is not the length of a round
            if (status.round, status.phase) != (self.status.round, self.status.phase):
                self._progress = now
            for name in SCORES:
                if (value := getattr(status, name)) is not None:
                    self._scores[name] = (value, status.round)
            self.status = status

    def rejected(self, neighbour: str, reason: str) -> None:
        """Count a dropped message by its sender and the reason."""
        pair = (neighbour, reason)
        with self._lock:
            if pair not in self._rejected and len(self._rejected) >= PAIRS:
                pair = ("other", "other")
            self._rejected[pair] = self._rejected.get(pair, 0) + 1

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def health(self) -> tuple[bool, PlainDict]:
        """Does the node make progress? A round is due within `PATIENCE` usual round lengths."""
        with self._lock:
            status, lengths, since = self.status, tuple(self._lengths), time.monotonic() - self._progress
        if status.phase == "starting":
            allowed = self.start_limit
        else:
            # training may take longer than the deadline for neighbours, so the lengths of rounds count too
            allowed = max(LEAST, PATIENCE * max(status.deadline, *lengths, 0.0))
        well = status.phase == "done" or since <= allowed
        return well, {
            "status": status.phase if well else "stalled",
            "node": self.node,
            "phase": status.phase,
            "round": status.round,
            "rounds": status.rounds,
            "seconds_since_round": round(since, 3),
            "seconds_allowed": round(allowed, 3),
            "neighbours": _count(status.neighbours),
            "insecure": status.insecure,
        }

    def ready(self) -> tuple[bool, PlainDict]:
        """Does the node take part in rounds?"""
        phase = self.status.phase
        return phase == "running", {"ready": phase == "running", "node": self.node, "phase": phase}

    def collect(self) -> Iterator["Metric"]:
        """All metrics with their current values; the registry calls this for each scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for kind, name, text, rows in self._metrics():
            family = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}[kind](
                f"feda2l_{name}", text, labels=["node", *(rows[0][0] if rows else ())]
            )
            for labels, value in rows:
                if value is not None:
                    family.add_metric([self.node, *labels.values()], value)
            yield family

    def _metrics(self) -> Iterator[_Metric]:
        with self._lock:
            status, scores, rejected = self.status, dict(self._scores), dict(self._rejected)
            length = self._lengths[-1] if self._lengths else None
            since = time.monotonic() - self._progress
        now = time.time()
        age = None if status.checkpoint_time is None else max(0.0, now - status.checkpoint_time)
        left = None if status.certificate_expires is None else (status.certificate_expires - now) / 86400
        yield _gauge("round", "Rounds completed", status.round)
        yield _gauge("rounds", "Rounds of the whole run", status.rounds)
        yield _gauge("healthy", "1 while rounds are completed in time", self.health()[0])
        yield _gauge("ready", "1 while the node takes part in rounds", self.ready()[0])
        yield _gauge("insecure", "1 if the node communicates in plaintext", status.insecure)
        yield _gauge("since_round_seconds", "Seconds since the last round was completed", since)
        yield _gauge("round_seconds", "Seconds the last round took", length)
        yield _gauge("deadline_seconds", "Seconds a round waits for neighbours", status.deadline)
        yield _gauge("train_loss", "Training loss of the last round", status.train_loss)
        for name in SCORES:
            yield _gauge(name, f"{name} of the last evaluated round", scores.get(name, (None, 0))[0])
        evaluated = max((measured for _, measured in scores.values()), default=None)
        yield _gauge("evaluated_round", "The round the scores belong to", evaluated)
        yield from _layers("rate", "Learning rate", status.rates)
        yield from _layers("multiplier", "Multiplier of the learning rate", status.multipliers)
        yield _counter("sent_bytes", "Bytes sent to neighbours", status.bytes_sent)
        yield _counter("received_bytes", "Bytes received from neighbours", status.bytes_received)
        yield from _neighbours(status.neighbours)
        pairs: _Rows = [({"neighbour": who, "reason": why}, count) for (who, why), count in rejected.items()]
        yield "counter", "rejected_messages", "Messages dropped, by sender and reason", pairs
        yield _counter("rounds_alone", "Rounds without a message of any neighbour", status.rounds_alone)
        yield _gauge("checkpoint_age_seconds", "Seconds since the last checkpoint", age)
        yield _gauge("certificate_days_left", "Days the node's certificate is still valid", left)
        yield _counter("log_lines_lost", "Lines that did not reach the log file", status.log_lines_lost)


def _gauge(name: str, text: str, value: float | None) -> _Metric:
    return "gauge", name, text, [({}, value)]


def _counter(name: str, text: str, value: float) -> _Metric:
    return "counter", name, text, [({}, value)]


def _layers(name: str, text: str, values: Mapping[str, float]) -> Iterator[_Metric]:
    yield "gauge", f"layer_{name}", f"{text} of a layer", [({"layer": key}, values[key]) for key in values]
    yield "gauge", name, f"{text} over the layers", [({"stat": key}, of) for key, of in _spread(values.values())]


def _neighbours(neighbours: Sequence[NeighbourStatus]) -> Iterator[_Metric]:
    counted = _count(neighbours)
    yield "gauge", "neighbours", "Neighbours by state", [({"state": state}, counted[state]) for state in STATES]
    states = [({"neighbour": n.name, "state": state}, n.state == state) for n in neighbours for state in STATES]
    yield "gauge", "neighbour_state", "1 for the state a neighbour is in", states
    received = [({"neighbour": n.name}, n.last_round) for n in neighbours]
    yield "gauge", "neighbour_last_round", "The last round received from a neighbour", received
    waited = [({"neighbour": n.name}, n.waited) for n in neighbours]
    yield "gauge", "neighbour_waited_seconds", "Seconds a neighbour's message took in the last round", waited


def _serve(address: str, monitor: Monitor) -> HttpServer:
    host, port = split_address(address)
    registry = _registry(monitor)

    def respond(path: str, query: Query) -> Response:
        if path == "/metrics":
            from prometheus_client.exposition import generate_latest

            return Response(generate_latest(registry), PLAIN)
        if path in ("/health", "/ready"):
            good, facts = monitor.health() if path == "/health" else monitor.ready()
            return Response(json.dumps(facts).encode() + b"\n", "application/json", 200 if good else 503)
        return Response(b"/metrics /health /ready\n", status=404)

    try:
        server = HttpServer(listen(host, port), respond, connections=CONNECTIONS)
    except OSError as error:
        raise FedA2LError(
            f"the metrics cannot be served there: {error.strerror}; choose another port, or remove the key to serve no "
            "metrics",
            key="monitor.address",
            value=address,
            see="port-in-use",
        ) from error
    threading.Thread(target=server.serve_forever, name="monitor", daemon=True).start()
    return server


def split_address(address: str) -> tuple[str, int]:
    """Host and port.

    >>> split_address("127.0.0.1:9450"), split_address("[::1]:0")
    (('127.0.0.1', 9450), ('::1', 0))
    """
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    complete = colon and bare and (bare == host) == (":" not in bare)
    if not (complete and port.isascii() and port.isdigit() and int(port) < 65536):
        raise FedA2LError('expected HOST:PORT, for example "127.0.0.1:9450"', key="monitor.address", value=address)
    return bare, int(port)


def _registry(monitor: Monitor) -> "CollectorRegistry":
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
    except ImportError as error:
        raise FedA2LError(
            "monitor.address needs prometheus_client: pip install 'feda2l[peers]'", see="missing-extra"
        ) from error
    registry = CollectorRegistry(auto_describe=False)  # not the global one: another node may run in the same process
    registry.register(monitor)
    ProcessCollector(registry=registry)  # memory, file descriptors and processor time
    return registry


def _count(neighbours: Iterable[NeighbourStatus]) -> dict[NeighbourState, int]:
    states = [neighbour.state for neighbour in neighbours]
    return {state: states.count(state) for state in STATES}


def _spread(values: Iterable[float]) -> list[tuple[str, float]]:
    values = list(values)
    if not values:
        return []
    return [("min", min(values)), ("mean", math.fsum(values) / len(values)), ("max", max(values))]
