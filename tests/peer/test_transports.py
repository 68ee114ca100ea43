"""One contract for every transport: in memory, zenoh in plaintext, and zenoh with mutual TLS."""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from feda2l.errors import FedA2LError
from feda2l.wire.certificates import issue, make_authority
from feda2l.wire.memory_transport import Hub
from feda2l.wire.rejected_message import RejectedMessage
from feda2l.wire.transport import Reply, Transport
from feda2l.wire.zenoh_settings import PIECE, Tls
from feda2l.wire.zenoh_transport import ZenohTransport

NODES = ("anna", "bert", "carl")
LONG = 20.0  # seconds: never reached when everything works
SOON = LONG / 2  # a request that ends earlier than this was not ended by its own timeout


def wait_for(condition: Callable[[], Any], seconds: float = LONG) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "the condition did not become true in time"
        time.sleep(0.005)


def free_addresses(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_authority(folder)
    for name in NODES:
        issue(folder, name, hosts=["127.0.0.1"])
    return folder


class MemoryNetwork:
    """Three nodes that know each other; each of them can join and leave."""

    def __init__(self) -> None:
        self.hub = Hub()

    def join(self, name: str) -> Transport:
        return self.hub.join(name)


class ZenohNetwork:
    def __init__(self, folder: Path | None) -> None:
        self.folder, self.addresses = folder, dict(zip(NODES, free_addresses(len(NODES)), strict=True))

    def tls(self, name: str) -> Tls | None:
        if self.folder is None:
            return None
        return Tls(self.folder / "ca.pem", self.folder / f"{name}.pem", self.folder / f"{name}.key")

    def neighbours(self, name: str) -> dict[str, str]:
        return {other: address for other, address in self.addresses.items() if other != name}

    def join(self, name: str) -> ZenohTransport:
        return ZenohTransport(name, "test", self.addresses[name], self.neighbours(name), self.tls(name))


class Nodes:
    """The transports of a test, which are closed at its end."""

    def __init__(self, network: MemoryNetwork | ZenohNetwork) -> None:
        self.network = network
        self.joined: list[Transport] = []

    def join(self, name: str, answer: Callable[[str, Reply], None] | None = None) -> Any:
        transport = self.network.join(name)
        self.joined.append(transport)
        if answer is not None:
            transport.serve(answer)
        return transport


@pytest.fixture(params=["memory", "zenoh", "zenoh-tls"])
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    folder = request.getfixturevalue("certificates") if request.param == "zenoh-tls" else None
    nodes = Nodes(MemoryNetwork() if request.param == "memory" else ZenohNetwork(folder))
    yield nodes
    for transport in nodes.joined:
        transport.close()


class Desk:
    """Answers `say/WORD` at once, holds `held/...` until told, never answers `never`, and knows no other key."""

    def __init__(self, **ready: bytes) -> None:
        self.ready, self.held, self.asked = ready, list[tuple[str, Reply]](), list[str]()

    def __call__(self, key: str, reply: Reply) -> None:
        self.asked.append(key)
        if key.startswith("held"):
            self.held.append((key, reply))
        elif key == "broken":
            raise ValueError("broken")
        elif key != "never":
            kind, _, word = key.partition("/")
            reply(word.encode() if kind == "say" else self.ready.get(key))


def test_answer_at_once(nodes: Nodes) -> None:
    anna, _ = nodes.join("anna", Desk()), nodes.join("bert", Desk(nothing=b""))
    wait_for(lambda: anna.alive("bert"))
    assert anna.ask("bert", "say/1/0", LONG, 100) == b"1/0"
    assert anna.ask("bert", "nothing", LONG, 100) == b""
    assert anna.ask("bert", "unknown", LONG, 100) is None


def test_an_answer_that_raises_is_empty_and_the_next_one_works(nodes: Nodes) -> None:
    anna, _ = nodes.join("anna"), nodes.join("bert", Desk())
    wait_for(lambda: anna.alive("bert"))
    assert anna.ask("bert", "broken", LONG, 100) is None
    assert anna.ask("bert", "say/more", LONG, 100) == b"more"


def test_held_request_is_answered_when_ready_and_only_once(nodes: Nodes) -> None:
    desk = Desk()
    anna, _ = nodes.join("anna"), nodes.join("bert", desk)
    wait_for(lambda: anna.alive("bert"))
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(anna.ask, "bert", f"held/{number}", LONG, 100) for number in range(5)]
        wait_for(lambda: len(desk.held) == 5)
        assert anna.ask("bert", "say/meanwhile", LONG, 100) == b"meanwhile"  # held requests occupy no thread
        for key, reply in desk.held:
            reply(key.encode())
            reply(b"again")
        assert [one.result() for one in asked] == [f"held/{number}".encode() for number in range(5)]


def test_absent_neighbour(nodes: Nodes) -> None:
    anna = nodes.join("anna", Desk())
    started = time.monotonic()
    assert anna.ask("bert", "say/1", LONG, 100) is None
    assert anna.ask("stranger", "say/1", LONG, 100) is None
    assert time.monotonic() - started < SOON
    assert not anna.alive("bert")
    assert not anna.alive("stranger")


def test_neighbour_that_does_not_serve_yet(nodes: Nodes) -> None:
    anna, bert = nodes.join("anna"), nodes.join("bert")
    assert anna.ask("bert", "say/1", LONG, 100) is None
    assert not anna.alive("bert")
    bert.serve(Desk())
    wait_for(lambda: anna.alive("bert"))
    assert anna.ask("bert", "say/1", LONG, 100) == b"1"


def test_no_answer_in_time(nodes: Nodes) -> None:
    anna, _ = nodes.join("anna"), nodes.join("bert", Desk())
    wait_for(lambda: anna.alive("bert"))
    for key in ("never", "held/1"):
        started = time.monotonic()
        assert anna.ask("bert", key, 0.4, 100) is None
        assert 0.35 < time.monotonic() - started < SOON
    assert anna.ask("bert", "never", 0.0, 100) is None


def test_neighbour_closes_while_it_holds_requests(nodes: Nodes) -> None:
    desk = Desk()
    anna, bert = nodes.join("anna"), nodes.join("bert", desk)
    wait_for(lambda: anna.alive("bert"))
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(anna.ask, "bert", "held/1", LONG, 100) for _ in range(3)]
        wait_for(lambda: len(desk.held) == 3)
        started = time.monotonic()
        bert.close()
        assert [one.result() for one in asked] == [None] * 3
        assert time.monotonic() - started < SOON
    for _, reply in desk.held:
        reply(b"too late")  # no error
    wait_for(lambda: not anna.alive("bert"))  # the end of the link is reported separately from the answers


def test_closing_while_asking(nodes: Nodes) -> None:
    desk = Desk()
    anna, _ = nodes.join("anna"), nodes.join("bert", desk)
    wait_for(lambda: anna.alive("bert"))
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(anna.ask, "bert", "held/1", LONG, 100)
        wait_for(lambda: desk.held)
        anna.close()
        assert asked.result() is None
    anna.close()
    assert anna.ask("bert", "say/1", LONG, 100) is None
    assert not anna.alive("bert")


@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, 7 * PIECE, 50_000_000])
def test_large_payloads_are_intact(nodes: Nodes, size: int) -> None:
    load = random.Random(size).randbytes(size)
    anna, _ = nodes.join("anna"), nodes.join("bert", Desk(bytes=load, view=memoryview(load), array=bytearray(load)))
    wait_for(lambda: anna.alive("bert"))
    for key in ("bytes", "view", "array"):
        assert anna.ask("bert", key, LONG, size) == load


def test_payload_above_the_limit_is_rejected_and_not_fetched(nodes: Nodes) -> None:
    desk = Desk(load=bytes(50_000_000))
    anna, _ = nodes.join("anna"), nodes.join("bert", desk)
    wait_for(lambda: anna.alive("bert"))
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    with pytest.raises(RejectedMessage, match="too large"):
        anna.ask("bert", "load", LONG, 49_999_999)
    assert desk.asked == ["load"]  # one request, so at most one piece
    assert memory("VmHWM") - before < 4 * PIECE  # there are three copies: at the sender, in flight, at the receiver
    with pytest.raises(RejectedMessage, match="too large"):
        anna.ask("bert", "say/four", LONG, 3)
    assert anna.ask("bert", "say/four", LONG, 4) == b"four"


def test_many_requests_of_several_neighbours(nodes: Nodes) -> None:
    load = random.Random(1).randbytes(3 * PIECE)
    anna, bert = nodes.join("anna"), nodes.join("bert")
    carl = nodes.join("carl", Desk(load=load))
    wait_for(lambda: anna.alive("carl") and bert.alive("carl"))
    assert carl.ask("anna", "say/1", LONG, 100) is None  # anna serves nothing
    with ThreadPoolExecutor(16) as pool:
        small = [pool.submit(who.ask, "carl", f"say/{n}", LONG, 100) for n in range(100) for who in (anna, bert)]
        large = [pool.submit(who.ask, "carl", "load", LONG, len(load)) for _ in range(4) for who in (anna, bert)]
        assert [one.result() for one in small] == [str(n).encode() for n in range(100) for _ in range(2)]
        assert all(one.result() == load for one in large)


def test_slow_answers_to_one_neighbour_do_not_delay_another(nodes: Nodes) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def answer(key: str, reply: Reply) -> None:
        if key == "slow":
            begun.release()
            assert go_on.wait(LONG)
        reply(b"done")

    anna, bert = nodes.join("anna"), nodes.join("bert")
    nodes.join("carl", answer)
    wait_for(lambda: anna.alive("carl") and bert.alive("carl"))
    with ThreadPoolExecutor() as pool:
        slow = [pool.submit(anna.ask, "carl", "slow", LONG, 100) for _ in range(2)]
        assert begun.acquire(timeout=LONG)
        for _ in range(5):  # the slow requests end after these, or never
            assert bert.ask("carl", "quick", SOON, 100) == b"done"
        go_on.set()
        assert [one.result() for one in slow] == [b"done"] * 2


def test_leaving_and_coming_back(nodes: Nodes) -> None:
    anna = nodes.join("anna", Desk())
    for turn in range(3):
        bert = nodes.join("bert", Desk(turn=str(turn).encode()))
        wait_for(lambda: anna.alive("bert"))
        wait_for(lambda bert=bert: bert.alive("anna"))
        assert anna.ask("bert", "turn", LONG, 100) == str(turn).encode()
        assert bert.ask("anna", "say/x", LONG, 100) == b"x"
        bert.close()
        wait_for(lambda: not anna.alive("bert"))
        assert anna.ask("bert", "turn", LONG, 100) is None


def test_memory_is_flat_over_many_exchanges(nodes: Nodes) -> None:
    load = random.Random(1).randbytes(10_000_000)
    anna, _ = nodes.join("anna"), nodes.join("bert", Desk(load=load))
    wait_for(lambda: anna.alive("bert"))
    after = []
    for number in range(200):
        answer = anna.ask("bert", "load", LONG, len(load))
        assert answer is not None
        assert len(answer) == len(load)
        del answer
        if number % 50 == 49:
            after.append(memory("VmRSS"))
    assert after[-1] - after[0] < 10_000_000, after


def test_hub_cuts_and_heals() -> None:
    hub, desk = Hub(), Desk()
    anna, bert, carl = (hub.join(name) for name in NODES)
    for one in (anna, bert, carl):
        one.serve(desk)
    with pytest.raises(ValueError, match="anna is already in the hub"):
        hub.join("anna")
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(anna.ask, "bert", "held/1", LONG, 100)
        wait_for(lambda: desk.held)
        hub.cut("bert", "anna")
        assert asked.result() is None
    assert anna.ask("bert", "say/1", LONG, 100) is None
    assert bert.ask("anna", "say/1", LONG, 100) is None
    assert not bert.alive("anna")
    assert carl.ask("anna", "say/1", LONG, 100) == b"1"
    hub.heal("anna", "bert")
    assert anna.ask("bert", "say/1", LONG, 100) == b"1"
    for one in (anna, bert, carl):
        one.close()


# Tests that need real sockets and processes.

CHILD = """
import sys, time
from pathlib import Path
from feda2l.wire.zenoh_settings import Tls
from feda2l.wire.zenoh_transport import ZenohTransport
name, listen, neighbour, address, folder, word = sys.argv[1:]
folder = Path(folder)
tls = Tls(folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key")
node = ZenohTransport(name, "test", listen, {neighbour: address}, tls)
load = bytes(30_000_000)
def answer(key, reply):
    if key == "word":
        reply(word.encode())
    if key == "load":
        reply(load)
node.serve(answer)
print("ready", flush=True)
for line in sys.stdin:
    answer = node.ask(neighbour, line.strip(), 20, 1 << 30)
    print(None if answer is None else len(answer), flush=True)
"""


class Child:
    """A node in a separate process: it answers `word` and `load`, never `never`, and sends requests on command."""

    def __init__(self, network: ZenohNetwork, name: str, neighbour: str, word: str = "") -> None:
        where = (name, network.addresses[name], neighbour, network.addresses[neighbour], str(network.folder), word)
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, *where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def tell(self, key: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(key + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def network(certificates: Path) -> ZenohNetwork:
    return ZenohNetwork(certificates)


def test_neighbour_killed_is_noticed_and_found_again(network: ZenohNetwork) -> None:
    anna = network.join("anna")
    killed = threading.Event()

    def longest(key: str) -> float:
        """Ask repeatedly until the neighbour is gone; return the longest time that a request took after the kill."""
        most = 0.0
        while True:
            answer = anna.ask("bert", key, LONG, 100)
            if killed.is_set():
                most = max(most, time.monotonic() - died)
                if answer is None and not anna.alive("bert"):
                    return most

    try:
        for word in ("first", "second", "third"):
            killed.clear()
            child = Child(network, "bert", "anna", word)
            wait_for(lambda: anna.alive("bert"))
            assert anna.ask("bert", "word", LONG, 100) == word.encode()
            with ThreadPoolExecutor() as pool:
                asking = [pool.submit(longest, key) for key in ("never", "word", "word", "word")]
                time.sleep(0.1)
                died = time.monotonic()
                os.kill(child.process.pid, signal.SIGKILL)
                killed.set()
                assert max(one.result() for one in asking) < SOON
            child.kill()
    finally:
        anna.close()


def test_hung_neighbour_is_noticed_and_comes_back(network: ZenohNetwork) -> None:
    carl = network.join("carl")
    child = Child(network, "bert", "carl", "word")
    try:
        wait_for(lambda: carl.alive("bert"))
        child.process.send_signal(signal.SIGSTOP)  # without data in flight, the lease always ends the link
        assert carl.ask("bert", "word", LONG, 100) is None
        wait_for(lambda: not carl.alive("bert"))
        child.process.send_signal(signal.SIGCONT)
        wait_for(lambda: carl.alive("bert"))
        assert carl.ask("bert", "word", LONG, 100) == b"word"
    finally:
        child.kill()
        carl.close()


def test_hung_neighbour_does_not_delay_others_and_comes_back(network: ZenohNetwork) -> None:
    load = bytes(30_000_000)
    carl = network.join("carl")
    carl.serve(lambda key, reply: reply(load if key == "load" else b"hello"))
    anna = network.join("anna")
    child = Child(network, "bert", "carl", "word")
    try:
        wait_for(lambda: anna.alive("carl") and carl.alive("bert"))
        child.tell("load")
        child.process.send_signal(signal.SIGSTOP)  # most likely in the middle of the transfer
        for _ in range(10):
            started = time.monotonic()
            assert anna.ask("carl", "head", LONG, 100) == b"hello"
            assert time.monotonic() - started < 4  # a write that waits for bert takes five
        # The lease ends the request after 2.5 s, or its own timeout if the link hangs in the middle of a write.
        assert carl.ask("bert", "word", 5.0, 100) is None
        child.process.send_signal(signal.SIGCONT)
        wait_for(lambda: carl.ask("bert", "word", 2.0, 100) == b"word")  # the old link ends first
    finally:
        child.kill()
        anna.close()
        carl.close()


def test_reopen_admits_a_neighbour_and_loads_a_renewed_certificate(network: ZenohNetwork, tmp_path: Path) -> None:
    folder = network.folder
    assert folder is not None
    only_carl = {"carl": network.addresses["carl"]}
    anna = ZenohTransport("anna", "test", network.addresses["anna"], only_carl, network.tls("anna"))
    bert = network.join("bert")
    try:
        anna.serve(lambda key, reply: reply(b"anna"))
        wait_for(lambda: bert.session.info.links())  # without a link there is nothing to reject
        assert bert.ask("anna", "word", LONG, 100) is None
        assert not bert.alive("anna")  # anna has no neighbour bert yet
        issue(folder, "anna", hosts=["127.0.0.1"], out=tmp_path)
        renewed = Tls(folder / "ca.pem", tmp_path / "anna.pem", tmp_path / "anna.key")
        anna.reopen(network.neighbours("anna"), renewed)
        wait_for(lambda: bert.alive("anna"))
        assert bert.ask("anna", "word", LONG, 100) == b"anna"
    finally:
        anna.close()
        bert.close()


def test_a_neighbour_that_floods_loses_its_oldest_requests() -> None:
    network, desk = ZenohNetwork(None), Desk()
    anna, bert = network.join("anna"), network.join("bert")
    try:
        bert.serve(desk)
        wait_for(lambda: anna.alive("bert"))
        with ThreadPoolExecutor(70) as pool:
            first = pool.submit(anna.ask, "bert", "held/first", LONG, 100)
            wait_for(lambda: desk.held)
            more = [pool.submit(anna.ask, "bert", f"held/{number}", LONG, 100) for number in range(64)]
            assert first.result() is None
            wait_for(lambda: len(desk.held) == 65)
            for _, reply in desk.held:
                reply(b"x")
            assert [one.result() for one in more] == [b"x"] * 64
    finally:
        anna.close()
        bert.close()


def test_mistakes_are_explained(network: ZenohNetwork) -> None:
    with pytest.raises(FedA2LError, match=r"'a/\*' is not a valid name"):
        ZenohTransport("a/*", "test", "127.0.0.1:0", {})
    anna = network.join("anna")
    try:
        with pytest.raises(FedA2LError, match="node anna cannot listen there"):
            network.join("anna")
    finally:
        anna.close()


def test_programs_that_end_with_an_error_keep_their_exit_code() -> None:
    program = """
from feda2l.wire.zenoh_transport import ZenohTransport
node = ZenohTransport("anna", "test", "127.0.0.1:0", {"bert": "127.0.0.1:1"})
node.serve(lambda key, reply: None)
raise SystemExit(7)
"""
    # Several at a time: on a busy machine one in four used to abort, because Python ended while a thread was in zenoh.
    programs = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(8)]
    assert [one.wait(timeout=60) for one in programs] == [7] * 8


def test_closing_leaves_no_threads_and_descriptors(certificates: Path) -> None:
    network = ZenohNetwork(certificates)

    def meet() -> None:
        anna, bert = network.join("anna"), network.join("bert")
        bert.serve(lambda key, reply: reply(b"x"))
        wait_for(lambda: anna.alive("bert"))
        assert anna.ask("bert", "x", LONG, 10) == b"x"
        anna.close()
        bert.close()

    meet()
    wait_for(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("answers-")])
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        meet()
    wait_for(lambda: threading.active_count() <= threads and len(os.listdir("/proc/self/fd")) <= descriptors + 2)


def memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
