"""Networks of real `Node`s in one process over the in-memory transport."""

import threading
from pathlib import Path
from typing import Any

import tomli_w

from feda2l.peer.config import NodeConfig
from feda2l.peer.log import NodeLog
from feda2l.peer.node import PeerNode
from feda2l.spec.spec import Spec
from feda2l.swarm.swarm_folder import neighbour_lists
from feda2l.topology import build
from feda2l.wire.memory_transport import Hub

# a busy machine must not cause absences: without faults no node may miss a round, however slow it is
PATIENT = {"least": 100.0, "most": 600.0}


def neighbours_of_all(spec: Spec) -> list[list[dict[str, Any]]]:
    """The `[[neighbours]]` of every node on a spec's graph."""
    topology = spec.topology
    graph = build(topology.name, spec.data.nodes, k=topology.k, p=topology.p, seed=topology.seed, file=topology.file)
    return [
        [{**other, "address": f"127.0.0.1:{7000 + other['id']}"} for other in near] for near in neighbour_lists(graph)
    ]


def configs(values: dict[str, Any], folder: Path, **more: Any) -> list[NodeConfig]:
    """The configs of all nodes of a spec, with their states below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.toml").write_text(tomli_w.dumps(values))
    spec = Spec.load(folder / "spec.toml")
    return [
        NodeConfig.parse(
            {
                "name": f"n{node}",
                "id": node,
                "spec": "spec.toml",
                "state": f"n{node}",
                "listen": f"127.0.0.1:{7000 + node}",
                "neighbours": near,
                "deadline": PATIENT,
                **more,
            },
            folder,
            f"n{node}.toml",
            insecure=True,
        )
        for node, near in enumerate(neighbours_of_all(spec))
    ]


def run_together(nodes: list[NodeConfig], *, timeout: float = 120.0) -> list[PeerNode]:
    """Run nodes in threads to their end and raise the first error."""
    hub, errors = Hub(), list[BaseException]()
    made = [
        PeerNode(config, NodeLog(config.name, None, level="warning"), transport=hub.join(config.name))
        for config in nodes
    ]

    def work(node: PeerNode) -> None:
        try:
            node.run()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(node,), daemon=True) for node in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a node did not end"
    return made
