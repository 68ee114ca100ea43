"""The command `feda2l node`: read the config, open the log and run the node, or only check it with --check."""

from pathlib import Path

from feda2l.errors import FedA2LError
from feda2l.peer.config import NodeConfig
from feda2l.peer.log import NodeLog
from feda2l.peer.node import PeerNode, assemble_node
from feda2l.peer.strangers import watch_for_strangers
from feda2l.records.run_folder import RunFolder


def start_node(path: Path, *, insecure: bool, data: Path | None, log_json: bool) -> None:
    """Run a node to its end."""
    config = NodeConfig.load(path, insecure=insecure)
    try:
        config.state.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedA2LError(
            f"{path}: state = {config.state}: the folder cannot be created: {error.strerror}", see="cannot-write"
        ) from error
    plain = config.security is None
    megabytes, files = config.log.megabytes, config.log.files
    with NodeLog(
        config.name, config.state, megabytes=megabytes, files=files, insecure=plain, json_lines=log_json
    ) as log:
        log.adopt()
        watch_for_strangers(log)
        if plain:
            log.warning("plaintext", text="anybody can read, change and forge the messages of this node")
        try:
            PeerNode(config, log, data=data, reload=lambda: NodeConfig.load(path, insecure=insecure)).run()
        except FedA2LError as error:
            log.error("failed", error=str(error))
            raise


def check_node(path: Path, *, insecure: bool, data: Path | None) -> None:
    """Check whether a node could start: config, certificates, data, and which neighbours answer."""
    from feda2l.peer.reach import report_reachable

    config = NodeConfig.load(path, insecure=insecure)
    senders = ", ".join(neighbour.name for neighbour in config.receives) or "no other node"
    print(f"{path}: {config.name} is node {config.id} and receives from {senders}")
    assembled, _ = assemble_node(config, data, RunFolder(config.state))
    spec, samples = assembled.spec, len(assembled.live.plan.member.shards[0])
    print(f"{config.spec}: {spec.model.name} on {spec.data.name}, {samples} training samples, {spec.algorithm.name}")
    report_reachable(config)
