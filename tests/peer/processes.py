"""Real nodes for tests: processes of `feda2l node`, each with a certificate, on free loopback ports."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import tomli_w
from networks import neighbours_of_all

import feda2l
from feda2l.simulate.checkpoint import read_checkpoint
from feda2l.spec.spec import Spec
from feda2l.wire.certificates import issue, make_authority

LONG = 120.0  # seconds: never reached when everything works
HOSTS = ("127.0.0.1",)
COMMAND = (sys.executable, "-m", "feda2l", "node")


def wait_for(condition: Callable[[], Any], what: str, seconds: float = LONG) -> Any:
    """Wait until a condition holds and return its value."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, f"waited {seconds:g} s in vain: {what}"
        time.sleep(0.02)
    return found


def free_addresses(count: int) -> list[str]:
    """Free addresses; all are chosen before the first is released, so that they differ."""
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in taken]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file of JSON lines."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


class NodeProcess:
    """One node: its config, its successive processes and its files."""

    def __init__(self, folder: Path, config: dict[str, Any], *options: str) -> None:
        self.folder, self.config, self.options = folder, config, options
        self.name: str = config["name"]
        self.file, self.state = folder / f"{self.name}.toml", folder / config["state"]
        self.errors = folder / f"{self.name}.err"
        self.process: subprocess.Popen[bytes] | None = None
        self.write()

    def write(self, **changes: Any) -> None:
        """Write the config with changes."""
        self.config |= changes
        self.file.write_text(tomli_w.dumps(self.config))

    def start(self) -> None:
        assert not self.running, f"{self.name} runs already"
        # one thread each: five nodes share two cores. The node sets zenoh's log level itself, so ignore the user's
        environment = os.environ | {"OMP_NUM_THREADS": "1", "RUST_LOG": "error"}
        with open(self.errors, "ab") as errors:
            command = [*COMMAND, "--config", str(self.file), *self.options]
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=environment
            )

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        assert self.running, f"{self.name} ended with {self.process.returncode}: {self.said}"
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9: the process cannot write or save anything."""
        self.signal(signal.SIGKILL)
        self.end()

    def end(self, seconds: float = LONG) -> int:
        """Wait for the end and return the exit code."""
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end in {seconds:g} s: {self.said[-3000:]}") from None

    def clean_up(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()  # also works on a stopped process
            self.process.wait()

    @property
    def said(self) -> str:
        """The stderr of all its processes."""
        return self.errors.read_text() if self.errors.exists() else ""

    def rounds(self) -> list[dict[str, Any]]:
        return read_lines(self.state / "rounds.jsonl")

    def timings(self) -> list[dict[str, Any]]:
        return read_lines(self.state / "timings.jsonl")

    @property
    def round(self) -> int:
        """The last recorded round, without parsing all records."""
        path = self.state / "rounds.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def log(self, event: str | None = None) -> list[dict[str, Any]]:
        return [line for line in read_lines(self.state / "log.jsonl") if event in (None, line["event"])]

    def reach(self, round: int, seconds: float = LONG) -> None:
        """Wait until the node has completed a round."""

        def there() -> bool:
            assert self.process is None or self.process.poll() in (None, 0), f"{self.name}: {self.said[-3000:]}"
            return self.round >= round

        wait_for(there, f"{self.name} at round {round}", seconds)

    def says(self, event: str, times: int = 1, seconds: float = LONG) -> dict[str, Any]:
        """Wait for the n-th line of an event in its log."""
        try:
            wait_for(lambda: len(self.log(event)) >= times or not self.running, f"{self.name} says {event!r}", seconds)
            assert len(self.log(event)) >= times, f"{self.name} ended before it said {event!r}"
        except AssertionError as error:
            raise AssertionError(f"{error}; it said {self.said[-2000:]}") from None
        return self.log(event)[times - 1]

    @property
    def accuracy(self) -> float:
        return self.rounds()[-1]["accuracy"]


class Network:
    """The nodes of a spec as processes; processes that still run at the end of the `with` are killed.

    Every address is new. `through` puts a `Proxy` between each node and each neighbour.
    """

    def __init__(
        self,
        folder: Path,
        spec: dict[str, Any],
        *,
        through: "Proxies | None" = None,
        monitors: bool = False,
        **more: Any,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.certs, self.more = folder, folder / "certs", more
        (folder / "spec.toml").write_text(tomli_w.dumps(spec))
        lists = neighbours_of_all(Spec.load(folder / "spec.toml"))
        addresses = free_addresses(2 * len(lists))
        self.addresses, watched = addresses[: len(lists)], addresses[len(lists) :]
        self.monitors = watched if monitors else []
        make_authority(self.certs)
        self.nodes = [self.node(id, near, through) for id, near in enumerate(lists)]

    def node(
        self, id: int, near: list[dict[str, Any]], through: "Proxies | None" = None, **changes: Any
    ) -> NodeProcess:
        """The process of a node with its certificate; not started."""
        name = f"n{id}"
        issue(self.certs, name, hosts=HOSTS)
        for neighbour in near:
            there = self.addresses[neighbour["id"]]
            neighbour["address"] = through.between(id, neighbour["id"], there) if through else there
        monitor = {"monitor": {"address": self.monitors[id]}} if self.monitors else {}
        config = {
            "name": name,
            "id": id,
            "spec": "spec.toml",
            "state": name,
            "listen": self.addresses[id],
            "security": {"ca": "certs/ca.pem", "certificate": f"certs/{name}.pem", "key": f"certs/{name}.key"},
            "deadline": {"least": 1.5, "most": 20.0},
            "neighbours": near,
        }
        return NodeProcess(self.folder, config | monitor | self.more | changes)

    def __enter__(self) -> Self:
        for node in self.nodes:
            node.start()
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.clean_up()

    def finish(self, seconds: float = LONG) -> None:
        """Wait until every node has ended with exit code 0."""
        until = time.monotonic() + seconds
        codes = {node.name: node.end(until - time.monotonic()) for node in self.nodes}
        assert set(codes.values()) == {0}, "\n".join(f"{node.name}: {node.said[-2000:]}" for node in self.nodes)


class Proxies:
    """Links that can be cut: one proxy per direction of each pair, one thread for all of them.

    Both nodes of a pair connect to each other, so cutting a pair means both proxies.
    """

    def __init__(self) -> None:
        self.links: dict[tuple[int, int], _Link] = {}
        self.cut_pairs: set[frozenset[int]] = set()

    def between(self, source: int, target: int, address: str) -> str:
        """The address at which `source` reaches `target` through the proxy of `address`."""
        link = self.links[source, target] = _Link(address, lambda: frozenset((source, target)) in self.cut_pairs)
        return link.address

    def cut(self, one: set[int], other: set[int]) -> None:
        """Close every connection between two sides and reject new ones."""
        self.cut_pairs |= {frozenset((a, b)) for a in one for b in other}

    def heal(self) -> None:
        self.cut_pairs.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for link in self.links.values():
            link.close()


class _Link:
    """A TCP proxy of one address in a separate thread. While `is_cut()`, it forwards nothing."""

    def __init__(self, address: str, is_cut: Callable[[], bool]) -> None:
        host, port = address.rsplit(":", 1)
        self.target, self.is_cut = (host, int(port)), is_cut
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        self.ends: dict[socket.socket, socket.socket] = {}
        self.closed = False
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.closed = True
        self.thread.join()

    def _work(self) -> None:
        while not self.closed:
            readable, _, _ = select.select([self.server, *self.ends], [], [], 0.05)
            if self.is_cut():
                for end in list(self.ends):
                    self._drop(end)
            for one in readable:
                if one is self.server:
                    self._accept()
                elif one in self.ends:
                    self._pass_on(one)
        for end in list(self.ends):
            self._drop(end)
        self.server.close()

    def _accept(self) -> None:
        near, _ = self.server.accept()
        try:
            if self.is_cut():
                raise OSError("cut")
            far = socket.create_connection(self.target, 2.0)
        except OSError:
            near.close()
            return
        self.ends |= {near: far, far: near}

    def _pass_on(self, one: socket.socket) -> None:
        try:
            if data := one.recv(1 << 16):
                self.ends[one].sendall(data)
                return
        except OSError:
            pass
        self._drop(one)

    def _drop(self, one: socket.socket) -> None:
        other = self.ends.pop(one, None)
        if other is not None:
            self.ends.pop(other, None)
            for end in (one, other):
                end.close()


@contextlib.contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[None]:
    """Mount a file system of a few kilobytes at a folder; OSError without the permission to mount."""
    folder.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if made.returncode:
        raise OSError(made.stderr)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def check_lines(node: NodeProcess, rounds: int) -> list[dict[str, Any]]:
    """Check that line n has round n; return the records of the rounds in which the node took part."""
    lines = node.rounds()
    assert [line["round"] for line in lines] == list(range(1, rounds + 1)), node.name
    assert [line["round"] for line in node.timings()] == list(range(1, rounds + 1)), node.name
    return [line for line in lines if line["train_loss"] is not None]


def check_applied_once(node: NodeProcess, steps: int) -> None:
    """The node made `steps` local steps per recorded round: no step is lost, none counts twice.

    An interrupted round left no trace.
    """
    state = read_checkpoint(node.state / "checkpoint.safetensors")
    lines = node.rounds()
    assert int(state["round"]) == len(lines)
    trained = sum(line["train_loss"] is not None for line in lines)
    assert int(state["optimizer.steps"]) == trained * steps, node.name


def fault_free(spec: dict[str, Any], folder: Path) -> tuple[float, list[int]]:
    """The simulator's mean accuracy and steps per round of each node, which a network without faults reproduces."""
    run = feda2l.run(spec, out=folder, progress=False)
    steps = read_checkpoint(run.checkpoint)["optimizer.steps"] / spec["rounds"]
    return run.folder.read()[-1]["accuracy"], [int(own) for own in steps]
