"""A hostile member of a network: it has a valid certificate and sends a different bad message in every round."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from feda2l.peer.config import NodeConfig
from feda2l.peer.connect import connect
from feda2l.peer.node import assemble_node
from feda2l.records.run_folder import RunFolder
from feda2l.runs.assemble import populate
from feda2l.wire.certificates import Authority, Identity
from feda2l.wire.mailbox import NEWEST
from feda2l.wire.message import PROTOCOL, Head, seal
from feda2l.wire.payload import Template, digest, pack
from feda2l.wire.transport import Payload, Reply

Lie = Callable[["Hostile", int], tuple[Payload, Payload]]  # the sealed head of a round, and its payload


class Hostile:
    """Answers under the name of a real member of the network."""

    def __init__(self, file: Path, stolen: Mapping[str, Identity]) -> None:
        config = NodeConfig.load(file)
        assembled, exchange = assemble_node(config, None, RunFolder(config.state))
        engine = populate([assembled])
        exchange.make_template(assembled.live)
        self.template: Template = exchange.template
        self.model = {name: values.clone() for name, values in exchange.example(assembled.live).items()}
        engine.close()
        assert config.security is not None
        authority = Authority.load(config.security.ca)
        self.identity = Identity.load(config.security.certificate, config.security.key, authority)
        self.stolen = stolen  # identities that this network does not accept
        self.name, self.run = config.name, assembled.spec.name
        self.round = 0  # the last requested round
        self.transport = connect(config, self.run)
        self.transport.serve(self.answer)

    def answer(self, key: str, reply: Reply) -> None:
        """Every neighbour gets the same bad message in the same round."""
        if key == NEWEST:  # it joins like any other node and keeps up
            reply(self.sealed(self.round + 1))
            return
        kind, round, _ = key.split("/")
        self.round = max(self.round, int(round))
        head, load = LIES[list(LIES)[int(round) % len(LIES)]](self, int(round))
        reply(head if kind == "head" else load)

    def sealed(self, round: int, load: Payload = b"", *, by: Identity | None = None, **changes: Any) -> bytes:
        """The signed head of a round, with changes."""
        return seal(replace(self.head(round, load), **changes), by or self.identity)

    def head(self, round: int, load: Payload) -> Head:
        return Head(
            protocol=PROTOCOL,
            run=self.run,
            round=round,
            step=0,
            sender=self.name,
            model=self.template.fingerprint,
            digest=digest(load) if load else "",
            size=len(load),
            samples=100,
            steps=1,
            degree=3,
            receivers=3,
        )

    def packed(self, **changes: Tensor) -> bytearray:
        """The model as a payload, with the first tensor replaced."""
        name = next(iter(self.model))
        return pack(self.model | {name: changes.get("first", self.model[name])}, self.template)

    @property
    def first(self) -> Tensor:
        return next(iter(self.model.values()))

    def close(self) -> None:
        self.transport.close()


def _unsigned(hostile: Hostile, round: int) -> tuple[Payload, Payload]:
    return seal(hostile.head(round, hostile.packed()), None), b""


def _broken_signature(hostile: Hostile, round: int) -> tuple[Payload, Payload]:
    sealed = bytearray(hostile.sealed(round, hostile.packed()))
    sealed[-1] ^= 1
    return bytes(sealed), b""


def _load(change: Callable[[Hostile], Payload]) -> Lie:
    """A correct head of a bad payload."""

    def lie(hostile: Hostile, round: int) -> tuple[Payload, Payload]:
        load = change(hostile)
        return hostile.sealed(round, load), load

    return lie


def _head(**changes: Any) -> Lie:
    """A signed head with a wrong field."""
    return lambda hostile, round: (hostile.sealed(round, hostile.packed(), **changes), hostile.packed())


def _tampered(hostile: Hostile, round: int) -> tuple[Payload, Payload]:
    load = hostile.packed()
    sealed = hostile.sealed(round, load)
    load[-1] ^= 1
    return sealed, load


LIES: dict[str, Lie] = {  # by the reason for which a node rejects each
    "replay": lambda hostile, round: (hostile.sealed(max(1, round - 1), hostile.packed()), b""),
    "sender": _head(sender="n1"),  # signed with its own key
    "run": _head(run="another"),
    "model": _head(model="0" * 64),
    "samples": _head(samples=10**9),
    "round": lambda hostile, round: (hostile.sealed(10**9, hostile.packed()), hostile.packed()),
    "unsigned": _unsigned,
    "signature": _broken_signature,
    "authority": lambda hostile, round: (hostile.sealed(round, by=hostile.stolen["other"]), b""),
    "certificate expired": lambda hostile, round: (hostile.sealed(round, by=hostile.stolen["expired"]), b""),
    "too large": lambda hostile, round: (hostile.sealed(round, hostile.packed()), bytes(50 << 20)),
    "size": _load(lambda hostile: hostile.packed() + b"more"),
    "not finite": _load(lambda hostile: hostile.packed(first=torch.full_like(hostile.first, math.nan))),
    "norm": _load(lambda hostile: hostile.packed(first=torch.full_like(hostile.first, 1e30))),
    "digest": _tampered,
    "head": lambda hostile, round: (b"\x00\x01{" * 100, b""),
}
