"""Check which neighbours answer before a node starts: `feda2l node --check`."""

import socket
import ssl
from datetime import UTC, datetime

from feda2l.peer.config import NeighbourConfig, NodeConfig
from feda2l.peer.connect import credentials

PATIENCE = 3.0  # seconds


def report_reachable(config: NodeConfig) -> None:
    """Print the state of the certificates, of this node's address and of every neighbour, which may still be down."""
    _, identity = credentials(config)
    if identity is None:
        print("INSECURE (plaintext): no certificates")
    else:
        days = (identity.until - datetime.now(UTC)).days
        print(f"certificate: {identity.name}, valid for {days} more days")
    print(f"listen = {config.listen}: {_listens(config.listen)}")
    for neighbour in config.neighbours:
        print(f"{neighbour.name} at {neighbour.address}: {_answers(config, neighbour)}")


def _listens(address: str) -> str:
    try:
        with socket.create_server(_split(address)):
            return "free"
    except OSError as error:
        return f"cannot listen there: {error.strerror}"


def _answers(config: NodeConfig, neighbour: NeighbourConfig) -> str:
    """Connect like the node: the neighbour's certificate must contain the host and have the neighbour's name."""
    host, port = _split(neighbour.address)
    try:
        with socket.create_connection((host, port), PATIENCE) as link:
            if config.security is None:
                return "reached"
            context = ssl.create_default_context(cafile=str(config.security.ca))
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(config.security.certificate, config.security.key)
            with context.wrap_socket(link, server_hostname=host) as secure:
                return _name(secure, neighbour)
    except ssl.SSLError as error:
        return f"TLS failed: {error.reason or error}"
    except OSError as error:
        return f"does not answer ({error.strerror or error}); it may not be running yet"


def _name(secure: ssl.SSLSocket, neighbour: NeighbourConfig) -> str:
    subject = (secure.getpeercert() or {}).get("subject", ())
    names = [str(value) for part in subject for key, value in part if key == "commonName"]  # type: ignore[str-unpack]
    if names != [neighbour.name]:
        return f"reached, but its certificate belongs to {', '.join(names)}"
    return "reached, and its certificate is correct"


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
