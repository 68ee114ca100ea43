"""The head of a message: a few signed bytes before the payload that name the sender, the round and the payload.

    sealed = lengths (3 x uint16, big-endian) | head (JSON) | certificate (DER) | signature
    signature = Ed25519("feda2l head 1" | 0 | head)

A head has exactly one valid encoding: keys in the order below, no spaces, ASCII. The receiver encodes what it read
and compares the bytes. So it rejects everything that JSON readers may understand differently: duplicate keys, 1.0
for 1, escapes.
"""

import json
import re
import struct
from dataclasses import asdict, dataclass, fields
from itertools import chain

from cryptography.exceptions import InvalidSignature

from feda2l.plain_values import PlainDict
from feda2l.wire.certificates import NAME, Authority, Identity
from feda2l.wire.rejected_message import RejectedMessage

PROTOCOL = 1
HEAD_LIMIT = 8192  # bytes of a sealed head
LENGTHS = struct.Struct(">HHH")
TAG = b"feda2l head 1\0"  # a signature with this tag is not valid for anything else
PATTERNS = {
    "run": NAME,
    "sender": NAME,
    "model": re.compile(r"[0-9a-f]{64}"),
    "digest": re.compile(r"([0-9a-f]{64})?"),
}
# The largest value of each count: far more than any run needs, and every sum of them is exact in a float.
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
    """Describes a message: its run, round, exchange and sender, and what its payload must be."""

    protocol: int
    run: str
    round: int
    step: int  # the exchange within the round, from 0
    sender: str
    model: str  # the fingerprint of the payload's template, which covers model and algorithm
    digest: str  # of the payload; "" without a payload
    size: int  # bytes of the payload
    samples: int  # training samples of the sender
    steps: int  # local steps of the round
    degree: int  # neighbours from which the sender receives
    receivers: int  # neighbours that receive from the sender

    def __post_init__(self) -> None:
        if wrong := _wrong(asdict(self)):
            raise ValueError(f"{wrong} of a head cannot be {getattr(self, wrong)!r}")

    def expect(self, *, run: str, round: int, step: int, sender: str, model: str) -> None:
        """Reject a head that was not requested: another run, sender or model, or an older round ("replay").

        A newer round is allowed: it tells a node that lags how far the network is.
        """
        for field, wanted in (("run", run), ("sender", sender), ("model", model)):
            if getattr(self, field) != wanted:
                raise RejectedMessage(field, f"the head belongs to another {field}")
        if (self.round, self.step) < (round, step):
            raise RejectedMessage("replay", f"round {self.round}.{self.step} instead of {round}.{step}")


FIELDS = tuple(field.name for field in fields(Head))


def seal(head: Head, identity: Identity | None) -> bytes:
    """The head with the certificate and the signature of its sender; unsigned without an identity."""
    text = _text(head)
    certificate, signature = (identity.certificate, identity.sign(TAG + text)) if identity else (b"", b"")
    sealed = LENGTHS.pack(len(text), len(certificate), len(signature)) + text + certificate + signature
    if len(sealed) > HEAD_LIMIT:
        raise ValueError(
            f"the sealed head has {len(sealed)} bytes and at most {HEAD_LIMIT} are allowed: the certificate names too "
            "many hosts"
        )
    return sealed


def unseal(data: bytes | bytearray | memoryview, authority: Authority | None) -> Head:
    """Read and verify a sealed head. Without an authority, only unsigned heads are accepted.

    Raises:
        RejectedMessage: with one of these reasons, in the order of the checks: "head too large", "head" (unreadable),
            "protocol", "field" (missing, unknown, of a wrong type or out of range), "unsigned" or "signed", the
            reasons of `Authority.check`, "sender" (the certificate belongs to another node), "signature".
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
        raise RejectedMessage("sender", f"the certificate belongs to {name}")
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
    if b"[" in text or text.count(b"{") != 1:  # a nested head would exhaust the stack of the parser
        raise RejectedMessage("head", "not a flat object")
    try:
        values = json.loads(text.decode("ascii"))
    except ValueError as error:  # not ASCII, not JSON, or a number with thousands of digits
        raise RejectedMessage("head", "not JSON") from error
    if not isinstance(values, dict):
        raise RejectedMessage("head", "not a flat object")
    protocol = values.get("protocol")
    if type(protocol) is int and protocol != PROTOCOL:  # checked before the fields, which may differ in another version
        raise RejectedMessage("protocol", f"not {PROTOCOL}")
    if wrong := _wrong(values):
        raise RejectedMessage("field", wrong)
    head = Head(**values)
    if _text(head) != text:
        raise RejectedMessage("head", "not in its canonical encoding")
    return head


def _wrong(values: PlainDict) -> str:
    """The first field that is missing, of a wrong type or out of range; "" if all fields are valid."""
    if tuple(values) != FIELDS:
        return "fields"
    checks = chain(
        ((name, type(values[name]) is int and 0 <= values[name] <= most) for name, most in MOST.items()),
        ((name, type(values[name]) is str) for name in PATTERNS),
        ((name, pattern.fullmatch(values[name])) for name, pattern in PATTERNS.items()),
        [("size", bool(values["size"]) == bool(values["digest"]))],
    )
    return next((name for name, valid in checks if not valid), "")
