"""A swarm's nodes on disk: for each a folder with its config, its certificate and its state, all below `nodes/`."""

import contextlib
import os
import random
import secrets
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from feda2l.errors import FedA2LError, RunFailed
from feda2l.faults.plan import FaultPlan
from feda2l.peer.check import refuse_unfit
from feda2l.peer.config import NodeConfig
from feda2l.records.run_folder import RunFolder
from feda2l.spec.spec import Spec
from feda2l.toml_files import read_toml
from feda2l.topology import Topology
from feda2l.wire.certificates import AUTHORITY, issue, make_authority

HOST = "127.0.0.1"
LOWEST = 10_000  # of a node's port
# All nodes share this machine: who is late here waits for a core. So a swarm is patient, and its rounds miss nobody.
DEADLINE = {"factor": 20.0, "least": 20.0, "most": 3600.0}
DAYS = 30  # that a certificate is valid: longer than any swarm runs, and keys are deleted at its end


@dataclass(frozen=True)
class NodeFolder:
    """One node of a swarm, as it lies on disk."""

    id: int
    folder: Path
    config: Path
    state: RunFolder

    @property
    def name(self) -> str:
        return name_of(self.id)

    @property
    def faults(self) -> Path:
        """Its copy of the fault plan: what has happened to it is struck out of it when it is started again."""
        return self.folder / "faults.toml"

    @property
    def output(self) -> Path:
        """What its process says on stdout and stderr."""
        return self.folder / "output.log"


class SwarmFolder:
    """`nodes/` below a run folder: `spec.toml` and the fault plan for all, `n0/`, `n1/`, ... for each."""

    def __init__(self, path: Path, nodes: int) -> None:
        self.shared = RunFolder(path)  # of the nodes: their spec and fault plan have the names of a run folder's
        self.authority = path / "authority"
        folders = [path / name_of(id) for id in range(nodes)]
        self.members = [
            NodeFolder(id, folder, folder / "node.toml", RunFolder(folder / "state"))
            for id, folder in enumerate(folders)
        ]

    def prepare(self, spec: Spec, graph: Topology, plan: FaultPlan | None, *, insecure: bool, wire: str) -> None:
        """Write everything that the nodes start from; where they were before, under their former addresses."""
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

    def _write(self, spec: Spec, plan: FaultPlan | None, configs: Sequence[Mapping[str, Any]]) -> None:
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
        """Delete every private key, and what is of no use without them."""
        shutil.rmtree(self.authority, ignore_errors=True)
        for member in self.members:
            for ending in ("key", "pem"):
                (member.folder / f"{member.name}.{ending}").unlink(missing_ok=True)

    def strike_out(self, member: NodeFolder, round: int) -> None:
        """Leave out of a node's own plan that it crashes up to a round: it has done so, and must not again."""
        values = read_toml(member.faults)
        kept = []
        for entry in values.get("fault", []):
            if entry["kind"] in ("crash", "restart") and entry["round"] <= round:
                named = entry["node"] if isinstance(entry["node"], list) else [entry["node"]]
                entry["node"] = [node for node in named if node != member.id]
                if not entry["node"]:
                    continue
            kept.append(entry)
        values["fault"] = kept
        self.shared.write(member.faults, tomli_w.dumps(values).encode())

    def _configs(
        self, spec: Spec, graph: Topology, *, insecure: bool, wire: str, planned: bool
    ) -> list[dict[str, Any]]:
        """Every node's config, checked; a folder of an earlier start keeps its run, wire format and ports."""
        before = [read_toml(member.config) if member.config.exists() else {} for member in self.members]
        was = before[0].get("wire", wire)
        if was != wire:
            raise FedA2LError(f"--wire {wire}: the run in this folder began with {was}; go on with --wire {was}")
        run = before[0].get("run") or f"{spec.name[:48]}-{secrets.token_hex(4)}"
        ports = free_ports([_port(values) for values in before])
        return [
            self._config(member, spec, near, ports, run=run, insecure=insecure, wire=wire, planned=planned)
            for member, near in zip(self.members, neighbour_lists(graph), strict=True)
        ]

    def _config(
        self,
        member: NodeFolder,
        spec: Spec,
        near: list[dict[str, Any]],
        ports: list[int],
        *,
        run: str,
        insecure: bool,
        wire: str,
        planned: bool,
    ) -> dict[str, Any]:
        """A node's config, checked."""
        name = member.name
        values: dict[str, Any] = {
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
        values["neighbours"] = [{**neighbour, "address": f"{HOST}:{ports[neighbour['id']]}"} for neighbour in near]
        with spec.at_fault():
            refuse_unfit(spec, NodeConfig.parse(values, member.folder, str(member.config), insecure=insecure))
        return values

    def _certify(self) -> None:
        """A throw-away authority that vouches for these nodes and, its key deleted, for nobody else."""
        make_authority(self.authority, days=DAYS)
        for member in self.members:
            issue(self.authority, member.name, hosts=[HOST], days=DAYS, out=member.folder)
        (self.authority / f"{AUTHORITY}.key").unlink()


def name_of(id: int) -> str:
    return f"n{id}"


def neighbour_lists(graph: Topology) -> Iterator[list[dict[str, Any]]]:
    """For every node those it talks to, without their addresses."""
    near = graph.period[0]
    receivers: list[set[int]] = [set() for _ in near]
    for node, received in enumerate(near):
        for other in received:
            receivers[other].add(node)
    for receives, listeners in zip(map(set, near), receivers, strict=True):
        yield [
            {
                "name": name_of(other),
                "id": other,
                "direction": "both" if other in receives & listeners else "in" if other in receives else "out",
            }
            for other in sorted(receives | listeners)
        ]


def free_ports(wanted: Sequence[int]) -> list[int]:
    """Ports of the loopback that nobody listens at: those wanted where they are free, others for them and for 0.

    They lie below those that the system gives to outgoing connections: else a node's connection to one neighbour might
    take the port of another that is not up yet.
    """
    with contextlib.ExitStack() as stack:

        def take(port: int) -> bool:
            taken = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            # as the node's own socket: a port whose last connection is a minute old is free
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
                        f"there are not enough free ports on {HOST} for {len(wanted)} nodes", see="port-in-use"
                    )
            ports.append(port)
        return ports


def _first_outgoing() -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return 32_768


def _port(config: dict[str, Any]) -> int:
    return int(config["listen"].rpartition(":")[2]) if "listen" in config else 0


def unused_folder(name: str) -> Path:
    """`runs/NAME`, with a number where that is taken."""
    names = (Path("runs") / (name if n == 1 else f"{name}-{n}") for n in range(1, 1 << 30))
    return next(path for path in names if not os.path.lexists(path))
