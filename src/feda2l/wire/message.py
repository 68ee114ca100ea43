"""The head of a message: who says what of which round, in a few signed bytes that come before the payload.

    sealed = lengths (3 x uint16, big-endian) | head (JSON) | certificate (DER) | signature
    signature = Ed25519("feda2l head 1" | 0 | head)

The head has one spelling: keys in the order below, no spaces, ASCII. The receiver spells what it read again and
compares, so whatever JSON lets two readers understand differently (keys twice, 1.0 for 1, escapes) is refused.
"""

import json
import re
import struct
from dataclasses import asdict, dataclass, fields
from itertools import chain
from typing import Any

from cryptography.exceptions import InvalidSignature

from feda2l.wire.certificates import NAME, Authority, Identity
from feda2l.wire.rejected_message import RejectedMessage

PROTOCOL = 1
HEAD_LIMIT = 8192  # bytes of a sealed head
LENGTHS = struct.Struct(">HHH")
TAG = b"feda2l head 1\0"  # what this key signs here cannot be taken for a signature of anything else
PATTERNS = {
    "run": NAME,
    "sender": NAME,
    "model": re.compile(r"[0-9a-f]{64}"),
    "digest": re.compile(r"([0-9a-f]{64})?"),
}
# the largest value of each count: far beyond use, and no sum of them leaves what a float holds exactly
MOST = {
    "protocol": 2**16,
    "round": 2**31,
    "step": 2**31,
    "size": 2**40,
    "samples": 2**40,
    "steps": 2**40,
    "degree": 2**20,
    "receivers": 2**20,
}


@dataclass(frozen=True)
class Head:
    """What a message is: of which run, round and exchange, from whom, and what its payload must be."""

    protocol: int
    run: str
    round: int
    step: int  # exchanges within the round, from 0
    sender: str
    model: str  # the fingerprint of model and algorithm: of the payload's template
    digest: str  # of the payload; "" if there is none
    size: int  # bytes of the payload
    samples: int  # of the sender's shard
    steps: int  # local steps of the round
    degree: int  # neighbours it hears
    receivers: int  # neighbours that hear it

    def __post_init__(self) -> None:
        if wrong := _wrong(asdict(self)):
            raise ValueError(f"a head's {wrong} cannot be {getattr(self, wrong)!r}")

    def expect(self, *, run: str, round: int, step: int, sender: str, model: str) -> None:
        """Refuse what was not asked for: of another run, sender or model, or older than the question ("replay").

        A newer round is no fault: whoever lags is told so.
        """
        for field, wanted in (("run", run), ("sender", sender), ("model", model)):
            if getattr(self, field) != wanted:
                raise RejectedMessage(field, "the head is of another one")
        if (self.round, self.step) < (round, step):
            raise RejectedMessage("replay", f"round {self.round}.{self.step} for {round}.{step}")


FIELDS = tuple(field.name for field in fields(Head))


def seal(head: Head, identity: Identity | None) -> bytes:
    """The head with its sender's certificate and signature; with no identity, unsigned."""
    text = _text(head)
    certificate, signature = (identity.certificate, identity.sign(TAG + text)) if identity else (b"", b"")
    sealed = LENGTHS.pack(len(text), len(certificate), len(signature)) + text + certificate + signature
    if len(sealed) > HEAD_LIMIT:
        raise ValueError(f"a sealed head of {len(sealed)} bytes: the certificate names too many hosts")
    return sealed


def unseal(data: bytes | bytearray | memoryview, authority: Authority | None) -> Head:
    """The head that somebody sealed, or Refused; with no authority only the unsigned are taken.

    The reasons, in the order of the checks: "head too large", "head" (cannot be read), "protocol", "field" (one is
    missing, unknown, of a wrong type or out of range), "unsigned" or "signed", those of `Authority.check`, "sender"
    (the certificate is another node's), "signature".
    """
    data = memoryview(data).cast("B")
    if len(data) > HEAD_LIMIT:
        raise RejectedMessage("head too large", f"{len(data)} bytes")
    text, certificate, signature = _parts(bytes(data))
    head = _head(text)
    if authority is None:
        if certificate or signature:
            raise RejectedMessage("signed", "the sender is secure, this node is not")
        return head
    if not certificate or not signature:
        raise RejectedMessage("unsigned")
    name, key = authority.check(certificate)
    if name != head.sender:
        raise RejectedMessage("sender", f"the certificate is of {name}")
    try:
        key.verify(signature, TAG + text)
    except InvalidSignature as error:
        raise RejectedMessage("signature") from error
    return head


def _text(head: Head) -> bytes:
    return json.dumps(asdict(head), separators=(",", ":")).encode()


def _parts(data: bytes) -> tuple[bytes, bytes, bytes]:
    if len(data) < LENGTHS.size:
        raise RejectedMessage("head", "too short")
    lengths = LENGTHS.unpack_from(data)
    if sum(lengths) != len(data) - LENGTHS.size:
        raise RejectedMessage("head", "its lengths do not add up")
    first, second = LENGTHS.size + lengths[0], LENGTHS.size + lengths[0] + lengths[1]
    return data[LENGTHS.size : first], data[first:second], data[second:]


def _head(text: bytes) -> Head:
    if b"[" in text or text.count(b"{") != 1:  # a head is flat; a deep one would exhaust the parser's stack
        raise RejectedMessage("head", "not a flat object")
    try:
        values = json.loads(text.decode("ascii"))
    except ValueError as error:  # no ASCII, no JSON, or a number of thousands of digits
        raise RejectedMessage("head", "not JSON") from error
    if not isinstance(values, dict):
        raise RejectedMessage("head", "not a flat object")
    protocol = values.get("protocol")
    if type(protocol) is int and protocol != PROTOCOL:  # before the fields: another version may have others
        raise RejectedMessage("protocol", f"not {PROTOCOL}")
    if wrong := _wrong(values):
        raise RejectedMessage("field", wrong)
    head = Head(**values)
    if _text(head) != text:
        raise RejectedMessage("head", "not in its one spelling")
    return head


def _wrong(values: dict[str, Any]) -> str:
    """The field that is missing, of a wrong type or out of range; "" if all are well."""
    if tuple(values) != FIELDS:
        return "fields"
    checks = chain(
        ((name, type(values[name]) is int and 0 <= values[name] <= most) for name, most in MOST.items()),
        ((name, type(values[name]) is str) for name in PATTERNS),
        ((name, pattern.fullmatch(values[name])) for name, pattern in PATTERNS.items()),
        [("size", bool(values["size"]) == bool(values["digest"]))],
    )
    return next((name for name, valid in checks if not valid), "")
