"""Who answers: what `feda2l node --check` tries of the network before a node starts."""

import socket
import ssl
from datetime import UTC, datetime

from feda2l.peer.config import NeighbourConfig, NodeConfig
from feda2l.peer.connect import credentials

PATIENCE = 3.0  # seconds


def say_who_answers(config: NodeConfig) -> None:
    """Print the state of the certificates, of the own address and of every neighbour; a neighbour may still be down."""
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
        return f"cannot be listened on: {error.strerror}"


def _answers(config: NodeConfig, neighbour: NeighbourConfig) -> str:
    """Connect as the node will: the host must be in the neighbour's certificate, and the name its own."""
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
        return f"refused: {error.reason or error}"
    except OSError as error:
        return f"does not answer ({error.strerror or error}); it may not be running yet"


def _name(secure: ssl.SSLSocket, neighbour: NeighbourConfig) -> str:
    subject = (secure.getpeercert() or {}).get("subject", ())
    names = [str(value) for part in subject for key, value in part if key == "commonName"]  # type: ignore[str-unpack]
    if names != [neighbour.name]:
        return f"reached, but its certificate is of {', '.join(names)}"
    return "reached, and it is who it says it is"


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
