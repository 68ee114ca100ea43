"""Build the links of a node from its config: credentials, addresses and the transport."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from feda2l.errors import FedA2LError
from feda2l.peer.config import NodeConfig
from feda2l.wire.certificates import Authority, Identity
from feda2l.wire.transport import Transport

if TYPE_CHECKING:
    from feda2l.wire.zenoh_settings import Tls


def credentials(config: NodeConfig) -> tuple[Authority | None, Identity | None]:
    """The trusted authority and the identity of the node; both are None without [security]."""
    security = config.security
    if security is None:
        return None, None
    authority = Authority.load(security.ca)
    identity = Identity.load(security.certificate, security.key, authority)
    if identity.name != config.name:
        raise FedA2LError(
            f"{security.certificate}: belongs to {identity.name}, but name = {config.name!r}; both must be the same",
            see="certificates",
        )
    return authority, identity


def connect(config: NodeConfig, run: str) -> Transport:
    """Listen for the neighbours and connect to them."""
    from feda2l.wire.zenoh_transport import ZenohTransport  # imported late: other transports need no zenoh

    return ZenohTransport(config.name, run, config.listen, _addresses(config), _tls(config))


def reconnect(transport: Transport, config: NodeConfig) -> None:
    """Use the neighbours and certificates of a config that was read again."""
    from feda2l.wire.zenoh_transport import ZenohTransport

    if isinstance(transport, ZenohTransport):
        transport.reopen(_addresses(config), _tls(config))


def _addresses(config: NodeConfig) -> Mapping[str, str | None]:
    return {neighbour.name: neighbour.address for neighbour in config.neighbours}


def _tls(config: NodeConfig) -> "Tls | None":
    from feda2l.wire.zenoh_settings import Tls

    security = config.security
    return None if security is None else Tls(security.ca, security.certificate, security.key)
