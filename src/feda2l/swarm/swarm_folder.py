"""The nodes of a swarm on disk: `nodes/` has one folder per node with its config, its certificate and its state."""

import contextlib
import os
import random
import secrets
import shutil
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from feda2l.errors import FedA2LError, RunFailed
from feda2l.faults.plan import FaultPlan
from feda2l.peer.check import refuse_unfit
from feda2l.peer.config import NodeConfig
from feda2l.plain_values import PlainDict, PlainMapping
from feda2l.records.run_folder import RunFolder
from feda2l.spec.spec import Spec
from feda2l.toml_files import read_toml
from feda2l.topology import Topology
from feda2l.wire.certificates import AUTHORITY, issue, make_authority

HOST = "127.0.0.1"
LOWEST = 10_000  # the lowest port of a node
# All nodes share this machine, so a late node usually waits for a core. Long deadlines let every round include all.
DEADLINE = {"factor": 20.0, "least": 20.0, "most": 3600.0}
DAYS = 30  # the validity of a certificate: longer than any swarm runs; the keys are deleted at its end


@dataclass(frozen=True)
class NodeFolder:
    """One node of a swarm on disk."""

    id: int
    folder: Path
    config: Path
    state: RunFolder

    @property
    def name(self) -> str:
        return name_of(self.id)

    @property
    def faults(self) -> Path:
        """Its copy of the fault plan; faults that already happened are removed from it at a restart."""
        return self.folder / "faults.toml"

    @property
    def output(self) -> Path:
        """The stdout and stderr of its process."""
        return self.folder / "output.log"


class SwarmFolder:
    """`nodes/` below a run folder: `spec.toml` and the fault plan for all, `n0/`, `n1/`, ... for each."""

    def __init__(self, path: Path, nodes: int) -> None:
        self.shared = RunFolder(path)  # spec and fault plan have the same names as in a run folder
        self.authority = path / "authority"
        folders = [path / name_of(id) for id in range(nodes)]
        self.members = [
            NodeFolder(id, folder, folder / "node.toml", RunFolder(folder / "state"))
            for id, folder in enumerate(folders)
        ]

    def prepare(self, spec: Spec, graph: Topology, plan: FaultPlan | None, *, insecure: bool, wire: str) -> None:
        """Write everything that the nodes need to start; nodes of an earlier start keep their addresses."""
        configs = self._configs(spec, graph, insecure=insecure, wire=wire, planned=bool(plan))
        try:
            self._write(spec, plan, configs)
            self.forget_keys()
            if not insecure:
                self._certify()
        except OSError as error:
            raise RunFailed(
                f"{error.filename or self.shared.path}: cannot be written: {error.strerror}", see="cannot-write"
            ) from error

    def _write(self, spec: Spec, plan: FaultPlan | None, configs: Sequence[PlainMapping]) -> None:
        for member in self.members:
            member.folder.mkdir(parents=True, exist_ok=True)
        self.shared.write(self.shared.spec, spec.to_toml().encode())
        for member, values in zip(self.members, configs, strict=True):
            self.shared.write(member.config, tomli_w.dumps(values).encode())
            if plan and not member.faults.exists():
                self.shared.write(member.faults, plan.text.encode())
        if plan:
            self.shared.write(self.shared.faults, plan.text.encode())

    def forget_keys(self) -> None:
        """Delete every private key and the certificates, which are useless without them."""
        shutil.rmtree(self.authority, ignore_errors=True)
        for member in self.members:
            for ending in ("key", "pem"):
                (member.folder / f"{member.name}.{ending}").unlink(missing_ok=True)

    def strike_out(self, member: NodeFolder, round: int) -> None:
        """Remove the node's crashes up to `round` from its plan: they have happened and must not happen again."""
        values = read_toml(member.faults)
        remaining = []
        for entry in values.get("fault", []):
            if entry["kind"] in ("crash", "restart") and entry["round"] <= round:
                named = entry["node"] if isinstance(entry["node"], list) else [entry["node"]]
                entry["node"] = [node for node in named if node != member.id]
                if not entry["node"]:
                    continue
            remaining.append(entry)
        values["fault"] = remaining
        self.shared.write(member.faults, tomli_w.dumps(values).encode())

    def _configs(self, spec: Spec, graph: Topology, *, insecure: bool, wire: str, planned: bool) -> list[PlainDict]:
        """The checked config of every node; a folder of an earlier start keeps its run, wire format and ports."""
        before = [read_toml(member.config) if member.config.exists() else {} for member in self.members]
        was = before[0].get("wire", wire)
        if was != wire:
            raise FedA2LError(
                f"--wire {wire}: the run in this folder started with {was}; use --wire {was} to resume it"
            )
        run = before[0].get("run") or f"{spec.name[:48]}-{secrets.token_hex(4)}"
        ports = free_ports([_port(values) for values in before])
        return [
            self._node_config(member, spec, neighbours, ports, run=run, insecure=insecure, wire=wire, planned=planned)
            for member, neighbours in zip(self.members, neighbour_lists(graph), strict=True)
        ]

    def _node_config(
        self,
        member: NodeFolder,
        spec: Spec,
        neighbours: list[PlainDict],
        ports: list[int],
        *,
        run: str,
        insecure: bool,
        wire: str,
        planned: bool,
    ) -> PlainDict:
        """The checked config of one node."""
        name = member.name
        values: PlainDict = {
            "name": name,
            "id": member.id,
            "spec": "../spec.toml",
            "state": "state",
            "listen": f"{HOST}:{ports[member.id]}",
            "run": run,
            "wire": wire,
        }
        if planned:
            values["faults"] = member.faults.name
        values["deadline"] = DEADLINE
        if not insecure:
            ca = f"../{self.authority.name}/{AUTHORITY}.pem"
            values["security"] = {"ca": ca, "certificate": f"{name}.pem", "key": f"{name}.key"}
        values["neighbours"] = [
            {**neighbour, "address": f"{HOST}:{ports[neighbour['id']]}"} for neighbour in neighbours
        ]
        with spec.at_fault():
            refuse_unfit(spec, NodeConfig.parse(values, member.folder, str(member.config), insecure=insecure))
        return values

    def _certify(self) -> None:
        """Make a temporary authority for these nodes; its key is deleted, so it cannot issue other certificates."""
        make_authority(self.authority, days=DAYS)
        for member in self.members:
            issue(self.authority, member.name, hosts=[HOST], days=DAYS, out=member.folder)
        (self.authority / f"{AUTHORITY}.key").unlink()


def name_of(id: int) -> str:
    return f"n{id}"


def neighbour_lists(graph: Topology) -> Iterator[list[PlainDict]]:
    """The neighbours of every node, without their addresses."""
    neighbours = graph.period[0]
    receivers: list[set[int]] = [set() for _ in neighbours]
    for node, received in enumerate(neighbours):
        for other in received:
            receivers[other].add(node)
    for receives, listeners in zip(map(set, neighbours), receivers, strict=True):
        yield [
            {
                "name": name_of(other),
                "id": other,
                "direction": "both" if other in receives & listeners else "in" if other in receives else "out",
            }
            for other in sorted(receives | listeners)
        ]


def free_ports(wanted: Sequence[int]) -> list[int]:
    """Free ports of the loopback: the wanted ones if they are free, otherwise (and for 0) random ones.

    They lie below the ports that the system gives to outgoing connections. Otherwise a node's connection to one
    neighbour could take the port of another neighbour that has not started yet.
    """
    with contextlib.ExitStack() as stack:

        def take(port: int) -> bool:
            taken = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            # like the node's socket: a port is free although its last connection ended a minute ago
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                taken.bind((HOST, port))
            except OSError:
                return False
            return True

        highest = max(_first_outgoing(), LOWEST + 1000)
        others = random.SystemRandom().sample(range(LOWEST, highest), min(highest - LOWEST, 1000 + 4 * len(wanted)))
        ports = []
        for port in wanted:
            if not (port and take(port)):
                while others and not take(port := others.pop()):
                    pass
                if not others:
                    raise RunFailed(
                        f"{HOST} has not enough free ports for {len(wanted)} nodes; use fewer --nodes",
                        see="port-in-use",
                    )
            ports.append(port)
        return ports


def _first_outgoing() -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return 32_768


def _port(config: PlainDict) -> int:
    return int(config["listen"].rpartition(":")[2]) if "listen" in config else 0


def unused_folder(name: str) -> Path:
    """`runs/NAME`, with a number if that folder exists."""
    names = (Path("runs") / (name if n == 1 else f"{name}-{n}") for n in range(1, 1 << 30))
    return next(path for path in names if not os.path.lexists(path))
