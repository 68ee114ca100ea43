"""Benchmark of an exchange between real processes against plain zenoh in the same processes."""

import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple

import torch
import zenoh
from torch import Tensor

from feda2l.bench.works import Result, note
from feda2l.models import build
from feda2l.peer.config import NodeConfig
from feda2l.peer.log import NodeLog
from feda2l.peer.node import PeerNode
from feda2l.plain_values import PlainDict
from feda2l.round.aggregate import aggregate
from feda2l.runs.assemble import populate
from feda2l.wire.certificates import issue, make_authority
from feda2l.wire.payload import pack
from feda2l.wire.zenoh_settings import Tls

WAIT = 60.0  # timeout in seconds
# any spec serves, since the nodes do not train
SPEC = 'name = "bench"\n[data]\nnodes = {nodes}\nalpha = 10.0\n[model]\nname = "{model}"\n'


@dataclass(frozen=True)
class BenchProcess:
    """The position of a process in the benchmark. It is pickled and sent to the process."""

    name: str
    listen: str
    bare: str  # the address at which it listens for plain zenoh
    neighbours: Mapping[str, str]
    bare_neighbours: Mapping[str, str]
    tls: Tls


class Exchanger(NamedTuple):
    """One side of the comparison in one process: the exchange of a round, and a function to close it."""

    exchange: Callable[[int], None]
    close: Callable[[], None]


def ours(place: BenchProcess) -> Exchanger:
    """FedA2L's exchange without training: pack, hash, sign, answer, request in turn, check, add to the mean."""
    folder = place.tls.ca.parent
    neighbours = [{"name": name, "id": int(name[4:]), "address": address} for name, address in place.neighbours.items()]
    files = {"ca": place.tls.ca, "certificate": place.tls.certificate, "key": place.tls.key}
    values = {"name": place.name, "id": int(place.name[4:]), "listen": place.listen, "spec": "spec.toml"}
    values |= {"state": place.name, "neighbours": neighbours, "security": files}
    config = NodeConfig.parse(values, folder, "bench")
    node = PeerNode(config, NodeLog(place.name, None, level="warning"))
    engine = populate([node.assembled])
    engine.keep_memory()
    node.exchange.make_template(node.live)
    messenger = node.connect()
    state = node.live.state
    state.trained.copy_(state.base)
    wait_for(lambda: all(map(messenger.transport.alive, place.neighbours)))

    def exchange(number: int) -> None:
        state.round = number - 1
        messenger.begin()
        aggregate(node.live, [0])
        if len(node.exchange.senders) != len(neighbours):
            raise RuntimeError(f"{place.name}: received messages from {node.exchange.senders} only")

    return Exchanger(exchange, messenger.close)


def bare(place: BenchProcess, row: dict[str, Tensor]) -> Exchanger:
    """Plain zenoh with mutual TLS: a queryable that returns prepared bytes, two gets in turn, one copy per reply."""
    config = zenoh.Config()
    for key, value in {
        "mode": "peer",
        "scouting/multicast/enabled": False,
        "listen/endpoints": [f"tls/{place.bare}"],
        "connect/endpoints": [f"tls/{address}" for address in place.bare_neighbours.values()],
        "connect/exit_on_failure": False,
        "scouting/gossip/enabled": False,
        "transport/link/tls": {
            "root_ca_certificate": str(place.tls.ca),
            "enable_mtls": True,
            "listen_certificate": str(place.tls.certificate),
            "listen_private_key": str(place.tls.key),
            "connect_certificate": str(place.tls.certificate),
            "connect_private_key": str(place.tls.key),
            "verify_name_on_connect": True,
        },
    }.items():
        config.insert_json5(key, json.dumps(value))
    session = zenoh.open(config)
    load = zenoh.ZBytes(bytes(pack(row)))
    pool = ThreadPoolExecutor(4)

    def reply(query: zenoh.Query) -> None:
        with query:
            query.reply(query.key_expr, load)

    session.declare_queryable(f"bare/{place.name}", lambda query: pool.submit(reply, query))

    def get(neighbour: str) -> int:
        return sum(
            len(reply.ok.payload.to_bytes()) for reply in session.get(f"bare/{neighbour}", timeout=WAIT) if reply.ok
        )

    def exchange(number: int) -> None:
        for neighbour in place.neighbours:
            if get(neighbour) != len(load):
                raise RuntimeError(f"{place.name}: no answer from {neighbour}")

    def close() -> None:
        session.close()
        pool.shutdown()

    wait_for(lambda: all(get(neighbour) == len(load) for neighbour in place.neighbours))
    return Exchanger(exchange, close)


def exchange_work(*, nodes: int = 5, model: str = "resnet18", rounds: int = 15) -> Result:
    """Measure a ring of processes on loopback. Both sides take turns; the slowest node determines a round's time."""
    size = sum(4 * parameter.numel() for parameter in _model(model).values())
    with tempfile.TemporaryDirectory(prefix="feda2l-bench-") as folder:
        reports = _reports(ring(nodes, Path(folder), model), model, rounds)
    times = {
        name: [max(round) for round in zip(*(one[name] for one in reports), strict=True)] for name in ("ours", "bare")
    }
    medians = {name: statistics.median(each) for name, each in times.items()}
    copies = max(report["copies"] for report in reports)
    cpu = {name: statistics.mean(report[f"{name} cpu"] for report in reports) for name in times}
    return Result(
        what=f"ring of {nodes} processes, {size / 1e6:.1f} MB, mutual TLS",
        outcome=f"ours {1e3 * medians['ours']:.0f} ms per round, {1e3 * cpu['ours']:.0f} ms CPU per node; plain zenoh "
        f"{1e3 * medians['bare']:.0f} ms, {1e3 * cpu['bare']:.0f} ms CPU; memory per node {copies:.2f} models",
        figure=f"{medians['ours'] / medians['bare']:.2f}x",
        numbers={"seconds": times, "cpu_seconds": cpu, "copies": copies, "bytes": size},
    )


def _reports(places: Sequence[BenchProcess], model: str, rounds: int) -> list[PlainDict]:
    """Start the processes and return their measurements. Raise the error of a process that failed."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(len(places)), context.Queue()
    processes = [
        context.Process(target=_node, args=(place, model, rounds, barrier, results), daemon=True) for place in places
    ]
    for process in processes:
        process.start()
    try:
        reports = [results.get(timeout=10 * WAIT) for _ in processes]
    finally:
        for process in processes:
            process.join(timeout=5)
            process.kill()
    for report in reports:
        if "error" in report:
            raise RuntimeError(report["error"])
    return reports


def ring(nodes: int, folder: Path, model: str) -> list[BenchProcess]:
    """Create certificates and free addresses for a ring of `nodes` nodes."""
    make_authority(folder)
    (folder / "spec.toml").write_text(SPEC.format(nodes=nodes, model=model))
    names = [f"node{number}" for number in range(nodes)]
    for name in names:
        issue(folder, name, hosts=["127.0.0.1"])
    sockets = [
        socket.create_server(("127.0.0.1", 0)) for _ in range(2 * nodes)
    ]  # all open at the same time, so all ports differ
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    inbound, other = dict(zip(names, addresses, strict=False)), dict(zip(names, addresses[nodes:], strict=True))
    around = {name: (names[number - 1], names[(number + 1) % nodes]) for number, name in enumerate(names)}
    return [
        BenchProcess(
            name,
            inbound[name],
            other[name],
            {neighbour: inbound[neighbour] for neighbour in around[name]},
            {neighbour: other[neighbour] for neighbour in around[name]},
            Tls(folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key"),
        )
        for name in names
    ]


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError("the neighbours did not connect")
        time.sleep(0.05)


def _node(place: BenchProcess, model: str, rounds: int, barrier: Barrier, results: "Queue[PlainDict]") -> None:
    try:
        results.put(_measure(place, model, rounds, barrier))
    except BaseException as error:
        barrier.abort()
        results.put({"error": f"{place.name}: {error!r}"})


def _measure(place: BenchProcess, model: str, rounds: int, barrier: Barrier) -> PlainDict:
    torch.set_num_threads(1)  # five processes on few cores
    row = _model(model)
    sides = {"ours": ours(place)}
    barrier.wait(WAIT)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak memory
    number = 0
    for _ in range(3):  # measure memory first: plain zenoh would leave memory in the allocator
        number += 1
        sides["ours"].exchange(number)
        barrier.wait(WAIT)
    copies = (_memory("VmHWM") - before) / len(pack(row))
    sides["bare"] = bare(place, row)
    barrier.wait(WAIT)
    report: PlainDict = {"copies": copies, "ours": [], "bare": [], "ours cpu": 0.0, "bare cpu": 0.0}
    for turn in range(rounds + 1):
        for name in ("ours", "bare") if turn % 2 else ("bare", "ours"):
            number += 1
            barrier.wait(WAIT)
            started, cpu = time.perf_counter(), time.process_time()
            sides[name].exchange(number)
            seconds = time.perf_counter() - started
            barrier.wait(WAIT)  # the CPU time includes answering the others
            if turn:  # the first turn is the warm-up
                report[name].append(seconds)
                report[f"{name} cpu"] += (time.process_time() - cpu) / rounds
    barrier.wait(WAIT)  # keep answering until all others are done
    for one in sides.values():
        one.close()
    return report


def _model(name: str) -> dict[str, Tensor]:
    return {name: values.detach() for name, values in build(name, classes=10, input=(1, 8, 8)).named_parameters()}


def _memory(field: str) -> int:
    """Return a field of /proc/self/status in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


EXCHANGE_WORKS: dict[str, Callable[[], Result]] = {"exchange": partial(exchange_work)}

if __name__ == "__main__":
    note(f"load {os.getloadavg()[0]:.1f}")
    result = exchange_work()
    print(f"exchange {result.what}: {result.outcome}  {result.figure}")
