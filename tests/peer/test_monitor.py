"""The monitor of a node, tested over real HTTP."""

import http.client
import json
import math
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from feda2l import http_server
from feda2l.errors import FedA2LError
from feda2l.peer import monitor as module
from feda2l.peer.monitor import Monitor, NeighbourStatus, NodeStatus

STATUS = NodeStatus(
    phase="running",
    round=12,
    rounds=70,
    deadline=8.0,
    train_loss=0.5,
    accuracy=0.75,
    test_loss=1.25,
    rates={"conv1.weight": 0.01, "fc.weight": 0.03},
    multipliers={"conv1.weight": 0.5, "fc.weight": 1.5},
    bytes_sent=1000,
    bytes_received=2000,
    neighbours=(
        NeighbourStatus("n1", "present", 12, 0.25),
        NeighbourStatus("n4", "away", 9, 8.0),
        NeighbourStatus("n3", "quarantined", 2),
    ),
    rounds_alone=2,
)


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    with Monitor("127.0.0.1:0", "n0") as monitor:
        yield monitor


def get(monitor: Monitor, path: str, method: str = "GET") -> tuple[int, str, str]:
    assert monitor.address
    connection = http.client.HTTPConnection(monitor.address, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers["Content-Type"], body


def metrics(monitor: Monitor) -> dict[str, float]:
    """Every sample as `name{label=value,...}`, without the label of the node, which all samples have."""
    code, kind, text = get(monitor, "/metrics")
    assert code == 200
    assert kind.startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            if sample.name.startswith("feda2l_"):
                assert labels.pop("node") == "n0"
            found[f"{sample.name}{{{','.join(f'{key}={labels[key]}' for key in labels)}}}"] = sample.value
    return found


def test_metrics_show_the_status_of_the_node(monitor: Monitor) -> None:
    monitor.update(STATUS)
    monitor.rejected("n3", "norm")
    monitor.rejected("n3", "norm")
    monitor.rejected("n1", "signature")
    found = metrics(monitor)
    expected = {
        "feda2l_round{}": 12,
        "feda2l_rounds{}": 70,
        "feda2l_deadline_seconds{}": 8,
        "feda2l_train_loss{}": 0.5,
        "feda2l_accuracy{}": 0.75,
        "feda2l_test_loss{}": 1.25,
        "feda2l_evaluated_round{}": 12,
        "feda2l_layer_rate{layer=conv1.weight}": 0.01,
        "feda2l_layer_rate{layer=fc.weight}": 0.03,
        "feda2l_rate{stat=min}": 0.01,
        "feda2l_rate{stat=mean}": 0.02,
        "feda2l_rate{stat=max}": 0.03,
        "feda2l_layer_multiplier{layer=fc.weight}": 1.5,
        "feda2l_multiplier{stat=mean}": 1.0,
        "feda2l_sent_bytes_total{}": 1000,
        "feda2l_received_bytes_total{}": 2000,
        "feda2l_neighbours{state=present}": 1,
        "feda2l_neighbours{state=away}": 1,
        "feda2l_neighbours{state=quarantined}": 1,
        "feda2l_neighbour_state{neighbour=n4,state=away}": 1,
        "feda2l_neighbour_state{neighbour=n4,state=present}": 0,
        "feda2l_neighbour_last_round{neighbour=n4}": 9,
        "feda2l_neighbour_waited_seconds{neighbour=n1}": 0.25,
        "feda2l_rejected_messages_total{neighbour=n3,reason=norm}": 2,
        "feda2l_rejected_messages_total{neighbour=n1,reason=signature}": 1,
        "feda2l_rounds_alone_total{}": 2,
        "feda2l_insecure{}": 0,
        "feda2l_healthy{}": 1,
        "feda2l_ready{}": 1,
        "feda2l_log_lines_lost_total{}": 0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["process_resident_memory_bytes{}"] > 0
    assert "feda2l_mse{}" not in found  # unknown values are not shown
    assert "feda2l_checkpoint_age_seconds{}" not in found
    assert "feda2l_certificate_days_left{}" not in found


def test_ages_and_days_are_computed_at_the_scrape(monitor: Monitor) -> None:
    now = time.time()
    monitor.update(NodeStatus(checkpoint_time=now - 100, certificate_expires=now + 10 * 86400, insecure=True))
    found = metrics(monitor)
    assert found["feda2l_checkpoint_age_seconds{}"] == pytest.approx(100, abs=60)
    assert found["feda2l_certificate_days_left{}"] == pytest.approx(10, abs=0.01)
    assert found["feda2l_insecure{}"] == 1


def test_scores_stay_until_the_next_evaluation(monitor: Monitor) -> None:
    monitor.update(STATUS)
    monitor.update(NodeStatus(phase="running", round=13, train_loss=math.nan))
    found = metrics(monitor)
    assert (found["feda2l_accuracy{}"], found["feda2l_evaluated_round{}"]) == (0.75, 12)
    assert math.isnan(found["feda2l_train_loss{}"])


def test_a_neighbour_that_left_the_configuration_leaves_the_metrics(monitor: Monitor) -> None:
    monitor.update(STATUS)
    monitor.update(NodeStatus(phase="running", round=13))
    assert not [name for name in metrics(monitor) if name.startswith("feda2l_neighbour_")]


def test_names_in_forged_messages_do_not_fill_the_memory(monitor: Monitor) -> None:
    for number in range(10_000):
        monitor.rejected(f"stranger{number}", "signature")
    found = {name: value for name, value in metrics(monitor).items() if name.startswith("feda2l_rejected")}
    assert len(found) == module.PAIRS + 1
    assert sum(found.values()) == 10_000


def test_hostile_names_stay_labels(monitor: Monitor) -> None:
    monitor.rejected('n1"} 5\nfeda2l_round{node="n0"} 9', "x")
    assert metrics(monitor)["feda2l_round{}"] == 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that `time.monotonic` shows the monitor, in a list of one."""
    now = [1000.0]

    class Time:
        monotonic = staticmethod(lambda: now[0])
        time = staticmethod(time.time)

    monkeypatch.setattr(module, "time", Time)
    return now


def health(monitor: Monitor) -> tuple[int, Any]:
    code, kind, body = get(monitor, "/health")
    assert kind == "application/json"
    return code, json.loads(body)


def test_a_node_that_completes_rounds_is_healthy_and_one_that_does_not_is_stalled(clock: list[float]) -> None:
    with Monitor("127.0.0.1:0", "n0") as monitor:
        monitor.update(STATUS)
        clock[0] += 29
        code, found = health(monitor)
        assert (code, found["status"], found["round"]) == (200, "running", 12)
        assert found["neighbours"] == {"present": 1, "away": 1, "quarantined": 1}
        clock[0] += 2  # 31 s without a round, where a round may take 8 s
        code, found = health(monitor)
        assert (code, found["status"]) == (503, "stalled")
        assert metrics(monitor)["feda2l_healthy{}"] == 0
        monitor.update(NodeStatus(phase="running", round=12, deadline=8.0))  # an update without a new round
        assert health(monitor)[0] == 503
        monitor.update(NodeStatus(phase="running", round=13, deadline=8.0))
        assert health(monitor)[0] == 200


def test_more_time_is_given_where_the_deadline_or_the_rounds_are_longer(clock: list[float]) -> None:
    with Monitor("127.0.0.1:0", "n0") as monitor:
        monitor.update(NodeStatus(phase="running", round=1, deadline=100.0))
        clock[0] += 299
        assert health(monitor)[0] == 200
        clock[0] += 2
        assert health(monitor)[0] == 503
        # its training takes 301 s, longer than its wait for others
        monitor.update(NodeStatus(phase="running", round=2, deadline=100.0))
        clock[0] += 900
        assert health(monitor)[0] == 200
        clock[0] += 4
        assert health(monitor)[0] == 503


def test_starting_has_its_own_limit_and_a_finished_node_none(clock: list[float]) -> None:
    with Monitor("127.0.0.1:0", "n0", start_limit=60) as monitor:
        clock[0] += 59
        assert health(monitor)[1]["status"] == "starting"
        clock[0] += 2
        assert health(monitor)[0] == 503
        monitor.update(NodeStatus(phase="done", round=70))
        clock[0] += 1e6
        code, found = health(monitor)
        assert (code, found["status"]) == (200, "done")


def test_the_time_before_the_first_round_is_not_the_length_of_a_round(clock: list[float]) -> None:
    with Monitor("127.0.0.1:0", "n0") as monitor:
        clock[0] += 500  # the node reads its data
        monitor.update(NodeStatus(phase="running", round=1, deadline=5.0))
        clock[0] += 31
        assert health(monitor)[0] == 503


@pytest.mark.parametrize(("phase", "code"), [("starting", 503), ("running", 200), ("leaving", 503), ("done", 503)])
def test_ready_while_it_takes_part(monitor: Monitor, phase: Any, code: int) -> None:
    monitor.update(NodeStatus(phase=phase))
    answer, _, body = get(monitor, "/ready")
    assert (answer, json.loads(body)["phase"]) == (code, phase)


def test_other_paths_and_methods(monitor: Monitor) -> None:
    assert get(monitor, "/")[0] == 404
    assert get(monitor, "/metrics?name=x")[0] == 200
    assert get(monitor, "/health", "HEAD") == (200, "application/json", "")
    assert get(monitor, "/metrics", "POST")[0] == 405


def test_a_port_in_use_is_reported_as_a_users_mistake() -> None:
    with Monitor("127.0.0.1:0", "n0") as first, pytest.raises(FedA2LError, match=r"monitor\.address.*in use"):
        Monitor(first.address, "n1")


@pytest.mark.parametrize("address", ["9450", "localhost", ":9450", "a:b", "127.0.0.1:70000", "::1:9450", "a:²"])
def test_an_invalid_address(address: str) -> None:
    with pytest.raises(FedA2LError, match=r"monitor\.address.*expected HOST:PORT"):
        Monitor(address, "n0")


def test_a_host_of_another_machine() -> None:
    with pytest.raises(FedA2LError, match=r"monitor\.address"):
        Monitor("192.0.2.1:0", "n0")  # an address reserved for documentation


def test_without_an_address_nothing_is_served_or_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    threads = threading.active_count()
    with Monitor(None, "n0") as monitor:
        monitor.update(STATUS)
        monitor.rejected("n1", "norm")
        assert monitor.address is None
        assert threading.active_count() == threads
    with pytest.raises(FedA2LError, match=r"feda2l\[peers\]"):
        Monitor("127.0.0.1:0", "n0")


def test_two_nodes_in_one_process_do_not_share_metrics(monitor: Monitor) -> None:
    with Monitor("127.0.0.1:0", "n0") as other:
        monitor.update(STATUS)
        assert metrics(other)["feda2l_round{}"] == 0


def test_silent_clients_delay_neither_the_node_nor_its_end(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server._Handler, "timeout", 0.3)
    assert monitor.address
    where = ("127.0.0.1", int(monitor.address.rpartition(":")[2]))
    silent = [socket.create_connection(where) for _ in range(module.CONNECTIONS * 3)]
    monitor.update(STATUS)  # does not wait
    for client in silent:
        client.settimeout(10)
        assert client.recv(1) == b""  # all connections are closed, surplus ones at once
        client.close()
    assert get(monitor, "/health")[0] == 200


def test_a_hung_scrape_holds_no_lock_of_the_node(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go_on = threading.Event(), threading.Event()
    spread = module._spread

    def slow(values: Any) -> Any:
        inside.set()
        go_on.wait(10)
        return spread(values)

    monkeypatch.setattr(module, "_spread", slow)
    monitor.update(STATUS)
    scrape = threading.Thread(target=get, args=(monitor, "/metrics"))
    scrape.start()
    assert inside.wait(10)
    node = threading.Thread(target=lambda: (monitor.update(STATUS), monitor.rejected("n1", "norm")))
    node.start()
    node.join(10)
    assert not node.is_alive()
    go_on.set()
    scrape.join(10)


def test_after_the_end_the_port_is_free() -> None:
    monitor = Monitor("127.0.0.1:0", "n0")
    address = monitor.address
    monitor.close()
    monitor.close()
    with Monitor(address, "n0") as again:
        assert get(again, "/health")[0] == 200
