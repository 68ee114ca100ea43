"""The zenoh configuration of a node: connections, mutual TLS, and access rules for requests and answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from feda2l.errors import FedA2LError
from feda2l.plain_values import PlainDict
from feda2l.wire.certificates import NAME

PIECE = 4 << 20  # bytes fetched with one request


@dataclass(frozen=True)
class Tls:
    """The PEM files with which a node proves its identity and verifies others."""

    ca: Path
    certificate: Path
    key: Path


def session_settings(
    name: str, run: str, listen: str, neighbours: Mapping[str, str | None], tls: Tls | None
) -> PlainDict:
    """The zenoh configuration of a node."""
    for word in (name, run, *neighbours):  # each becomes one part of a key: no "/", no wildcards
        if not NAME.fullmatch(word):
            raise FedA2LError(
                f"{word!r} is not a valid name of a node or run: use up to 64 letters, digits, '.', '_' and '-', "
                "with a letter or digit first"
            )
    scheme = "tls" if tls else "tcp"
    settings: PlainDict = {
        "mode": "peer",  # peers forward nothing: every message comes from the neighbour itself
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},  # only configured neighbours
        "listen": {"endpoints": [f"{scheme}/{listen}"], "timeout_ms": 0, "exit_on_failure": True},
        "connect": {
            # Both sides connect, so either one may be behind a firewall. zenoh merges the two connections of a pair
            # into one transport. It retries forever, also after a link was lost.
            "endpoints": [f"{scheme}/{address}" for address in neighbours.values() if address],
            "timeout_ms": -1,
            "exit_on_failure": False,
            "retry": {"period_init_ms": 200, "period_max_ms": 1000, "period_increase_factor": 2},
        },
        "open": {
            "return_conditions": {"connect_scouted": False, "declares": False}
        },  # open without waiting for any neighbour
        "transport": {
            "unicast": {
                # Not 1. zenoh finds a transport by the id that its peer claims, and its first link determines the
                # access rules. With 1, every owner of a certificate could add a link under a neighbour's id and get
                # its rights. With more, a further link must prove that it belongs to the same process.
                "max_links": 2,
            },
            "link": {
                "protocols": [scheme],
                "tx": {"lease": 2500, "keep_alive": 4},  # a neighbour that is silent for 2.5 s is disconnected
                "rx": {"max_message_size": PIECE + (1 << 16)},  # the most memory that a neighbour's message can take
            },
            "shared_memory": {"enabled": False},
        },
    }
    if tls is not None:
        settings["transport"]["link"]["tls"] = {
            "root_ca_certificate": str(tls.ca),
            "enable_mtls": True,
            "listen_certificate": str(tls.certificate),
            "listen_private_key": str(tls.key),
            "connect_certificate": str(tls.certificate),
            "connect_private_key": str(tls.key),
            "verify_name_on_connect": True,
            "close_link_on_expiration": True,
        }
        settings["access_control"] = access_rules(name, run, list(neighbours))
    return settings


def access_rules(name: str, run: str, neighbours: list[str]) -> PlainDict:
    """Allow only this: each neighbour sends requests and answers under its own name."""
    ours = f"feda2l/{run}/{name}"
    rules: list[PlainDict] = []
    policies: list[PlainDict] = []
    for neighbour in neighbours:
        theirs = f"feda2l/{run}/{neighbour}"
        for flow, messages, key in (
            ("ingress", ["query"], f"{ours}/{neighbour}/**"),
            ("egress", ["declare_queryable", "reply"], f"{ours}/**"),
            ("egress", ["query"], f"{theirs}/{name}/**"),
            ("ingress", ["declare_queryable", "reply"], f"{theirs}/**"),
        ):
            rule = {"id": f"{neighbour} {len(rules)}", "flows": [flow], "messages": messages, "key_exprs": [key]}
            rules.append({**rule, "permission": "allow"})
        policies.append({"rules": [rule["id"] for rule in rules[-4:]], "subjects": [neighbour]})
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": [{"id": neighbour, "cert_common_names": [neighbour]} for neighbour in neighbours],
        "policies": policies,
    }
