"""Heads of messages: one encoding, one sender, and a reason for every rejection."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from feda2l.wire.certificates import Authority, Identity, issue, make_authority
from feda2l.wire.message import FIELDS, HEAD_LIMIT, LENGTHS, MOST, TAG, Head, seal, unseal
from feda2l.wire.rejected_message import RejectedMessage

HEAD = Head(
    protocol=1,
    run="digits",
    round=7,
    step=0,
    sender="alice",
    model="0123456789abcdef" * 4,
    digest="fedcba9876543210" * 4,
    size=1000,
    samples=500,
    steps=50,
    degree=2,
    receivers=3,
)
SPELLING = (
    b'{"protocol":1,"run":"digits","round":7,"step":0,"sender":"alice","model":"'
    + b"0123456789abcdef" * 4
    + b'","digest":"'
    + b"fedcba9876543210" * 4
    + b'","size":1000,"samples":500,"steps":50,"degree":2,"receivers":3}'
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    make_authority(folder)
    for name in ("alice", "bob"):
        issue(folder, name)
    return folder


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority.load(folder / "ca.pem")


def identity(folder: Path, name: str) -> Identity:
    return Identity.load(folder / f"{name}.pem", folder / f"{name}.key")


def reason(data: bytes, authority: Authority | None) -> str:
    with pytest.raises(RejectedMessage) as refused:
        unseal(data, authority)
    return refused.value.reason


def join(text: bytes, certificate: bytes = b"", signature: bytes = b"") -> bytes:
    return LENGTHS.pack(len(text), len(certificate), len(signature)) + text + certificate + signature


def parts(sealed: bytes) -> tuple[bytes, bytes, bytes]:
    text, certificate, _ = LENGTHS.unpack_from(sealed)
    body = sealed[LENGTHS.size :]
    return body[:text], body[text : text + certificate], body[text + certificate :]


def test_the_format_of_an_unsigned_head_does_not_change() -> None:
    assert seal(HEAD, None) == b"\x01\x16\x00\x00\x00\x00" + SPELLING


def test_unsealing_a_sealed_head_returns_it(folder: Path, authority: Authority) -> None:
    sealed = seal(HEAD, identity(folder, "alice"))
    assert len(sealed) < HEAD_LIMIT / 8
    assert unseal(sealed, authority) == HEAD
    assert unseal(memoryview(bytearray(sealed)), authority) == HEAD
    assert unseal(seal(HEAD, None), None) == HEAD
    none = replace(HEAD, digest="", size=0)
    assert unseal(seal(none, None), None) == none


def test_the_signature_covers_the_tag_and_the_whole_head(folder: Path, authority: Authority) -> None:
    alice = identity(folder, "alice")
    text, certificate, signature = parts(seal(HEAD, alice))
    assert text == SPELLING
    assert signature == alice.sign(TAG + SPELLING)
    assert reason(join(text, certificate, alice.sign(SPELLING)), authority) == "signature"


@pytest.mark.parametrize("field", [name for name in FIELDS if name not in ("protocol", "sender")])
def test_no_field_can_be_changed_under_a_signature(field: str, folder: Path, authority: Authority) -> None:
    value = getattr(HEAD, field)
    other = value + 1 if isinstance(value, int) else value[::-1]
    _, certificate, signature = parts(seal(HEAD, identity(folder, "alice")))
    text, _, _ = parts(seal(replace(HEAD, **{field: other}), None))
    assert reason(join(text, certificate, signature), authority) == "signature"


def test_a_member_cannot_sign_as_another(folder: Path, authority: Authority) -> None:
    assert reason(seal(HEAD, identity(folder, "bob")), authority) == "sender"
    # neither with the certificate of the other member, which is public
    text, certificate, _ = parts(seal(HEAD, identity(folder, "alice")))
    forged = identity(folder, "bob").sign(TAG + text)
    assert reason(join(text, certificate, forged), authority) == "signature"


def test_secure_nodes_reject_unsigned_heads_and_insecure_nodes_reject_signed_heads(
    folder: Path, authority: Authority
) -> None:
    sealed = seal(HEAD, identity(folder, "alice"))
    text, certificate, signature = parts(sealed)
    assert reason(seal(HEAD, None), authority) == "unsigned"
    assert reason(join(text, certificate), authority) == "unsigned"
    assert reason(join(text, b"", signature), authority) == "unsigned"
    assert reason(sealed, None) == "signed"


def test_certificates_of_another_authority_or_time_are_rejected(
    folder: Path, authority: Authority, tmp_path: Path
) -> None:
    make_authority(tmp_path)
    issue(tmp_path, "alice")
    assert reason(seal(HEAD, identity(tmp_path, "alice")), authority) == "authority"
    key = identity(folder, "alice")
    for since, wanted in ((-400, "certificate expired"), (+2, "certificate not yet valid")):
        # the same key, so that only the time is wrong
        start = datetime.now(UTC) + timedelta(days=since)
        out = tmp_path / str(since)
        out.mkdir()
        (out / "alice.pem").write_bytes((folder / "alice.pem").read_bytes())
        issue(folder, "alice", out=out, renew=True, since=start, days=30)
        der = x509.load_pem_x509_certificate((out / "alice.pem").read_bytes()).public_bytes(Encoding.DER)
        assert reason(join(SPELLING, der, key.sign(TAG + SPELLING)), authority) == wanted


def test_the_authority_itself_cannot_be_a_sender(folder: Path, authority: Authority) -> None:
    der = authority.certificates[0].public_bytes(Encoding.DER)
    assert reason(join(SPELLING, der, bytes(64)), authority) == "certificate"
    assert reason(join(SPELLING, b"\x30\x03abc", bytes(64)), authority) == "certificate"


def test_an_answer_is_compared_with_its_request() -> None:
    asked = {"run": "digits", "round": 7, "step": 0, "sender": "alice", "model": HEAD.model}
    HEAD.expect(**asked)
    HEAD.expect(**asked | {"round": 5, "step": 3})  # the answer is newer
    for field, other in {"run": "cifar", "sender": "bob", "model": "0" * 64}.items():
        with pytest.raises(RejectedMessage) as refused:
            HEAD.expect(**asked | {field: other})
        assert refused.value.reason == field
    for later in ({"round": 8}, {"step": 1}):
        with pytest.raises(RejectedMessage) as refused:
            HEAD.expect(**asked | later)
        assert refused.value.reason == "replay"


def test_another_protocol_version_has_its_own_reason() -> None:
    assert reason(join(SPELLING.replace(b'"protocol":1', b'"protocol":2')), None) == "protocol"
    assert reason(join(b'{"protocol":2,"new":"field"}'), None) == "protocol"


def test_heads_of_a_wrong_length_are_rejected() -> None:
    assert reason(bytes(HEAD_LIMIT + 1), None) == "head too large"
    assert reason(join(b"[" * (HEAD_LIMIT - 6)), None) == "head"
    assert reason(b"", None) == "head"
    assert reason(seal(HEAD, None) + b"\0", None) == "head"
    assert reason(seal(HEAD, None)[:-1], None) == "head"


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        (b'"round":7', b'"round":7.0', "field"),
        (b'"round":7', b'"round":-7', "field"),
        (b'"round":7', b'"round":true', "field"),
        (b'"round":7', b'"round":null', "field"),
        (b'"round":7', b'"round":"7"', "field"),
        (b'"round":7', b'"round":NaN', "field"),
        (b'"round":7', b'"round":1e3', "field"),
        (b'"round":7', b'"round":' + b"9" * 30, "field"),
        (b'"round":7', b'"round":' + b"9" * 5000, "head"),
        (b'"round":7', b'"round":07', "head"),
        (b'"round":7', b'"round": 7', "head"),
        (b'"round":7', b'"round":7,"round":7', "head"),
        (b'"round":7', b'"round":[7]', "head"),
        (b'"round":7', b'"round":{}', "head"),
        (b'"round":7,', b"", "field"),
        (b'"round":7', b'"more":1,"round":7', "field"),
        (b'"round":7,"step":0', b'"step":0,"round":7', "field"),
        (b'"alice"', b'"al\\u0069ce"', "head"),
        (b'"alice"', '"alic\u00e9"'.encode(), "head"),
        (b'"alice"', b'"\xff"', "head"),
        (b'"alice"', b'"../alice"', "field"),
        (b'"alice"', b'"' + b"a" * 65 + b'"', "field"),
        (b'"alice"', b'"alice\\n"', "field"),
        (b'"alice"', b"7", "field"),
        (b'"model":"0', b'"model":"G', "field"),
        (b'"digest":"f', b'"digest":"', "field"),
        (b'"size":1000', b'"size":0', "field"),
        (SPELLING, b"", "head"),
        (SPELLING, b'"{"', "head"),
        (SPELLING, b"{}", "field"),
        (SPELLING, b" " + SPELLING, "head"),
        (SPELLING, b"\xef\xbb\xbf" + SPELLING, "head"),
    ],
)
def test_only_the_canonical_encoding_is_accepted(old: bytes, new: bytes, wanted: str) -> None:
    assert SPELLING.count(old) == 1
    assert reason(join(SPELLING.replace(old, new)), None) == wanted


@pytest.mark.parametrize("field", MOST)
def test_counts_have_an_upper_bound(field: str) -> None:
    most = 1 if field == "protocol" else MOST[field]
    wanted = replace(HEAD, **{field: most})
    assert unseal(seal(wanted, None), None) == wanted
    values = json.loads(SPELLING) | {field: MOST[field] + 1}
    if field != "protocol":
        assert reason(join(json.dumps(values, separators=(",", ":")).encode()), None) == "field"
    with pytest.raises(ValueError, match=field):
        replace(HEAD, **{field: MOST[field] + 1})
