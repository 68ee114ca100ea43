"""The certificate authority: its certificates work for links and signatures, and file errors are explained."""

import json
import os
import socket
import stat
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from feda2l.cli import network as commands
from feda2l.errors import FedA2LError, RunFailed
from feda2l.wire import certificates
from feda2l.wire.certificates import Authority, Identity, describe, issue, make_authority
from feda2l.wire.rejected_message import RejectedMessage


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_authority(tmp_path)
    issue(tmp_path, "alice", hosts=["localhost", "127.0.0.1", "::1"])
    return tmp_path


def load(folder: Path, name: str = "alice") -> Identity:
    return Identity.load(folder / f"{name}.pem", folder / f"{name}.key", Authority.load(folder / "ca.pem"))


def der(path: Path) -> bytes:
    return x509.load_pem_x509_certificate(path.read_bytes()).public_bytes(Encoding.DER)


def test_an_identity_proves_its_name(folder: Path) -> None:
    alice = load(folder)
    name, key = Authority.load(folder / "ca.pem").check(alice.certificate)
    assert name == alice.name == "alice"
    key.verify(alice.sign(b"words"), b"words")


def test_certificates_state_their_purpose(folder: Path) -> None:
    ca, node = (x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes()) for name in ("ca", "alice"))
    rights = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert rights.critical
    assert (rights.value.ca, rights.value.path_length) == (True, 0)
    assert not node.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert set(node.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == set(certificates.BOTH_SIDES)
    assert ca.serial_number != node.serial_number
    assert node.issuer == ca.subject
    told = describe(folder / "alice.pem")
    assert told["subject"] == "alice"
    assert told["issuer"] == describe(folder / "ca.pem")["subject"]
    assert told["hosts"] == ["alice", "localhost", "127.0.0.1", "::1"]
    assert (told["role"], told["key"], told["state"], told["days_left"]) == ("node", "Ed25519", "valid", 364)
    assert describe(folder / "ca.pem")["role"] == "CA"
    assert len(told["fingerprint"]) == 3 * 32 - 1


def test_only_the_owner_can_read_keys_and_no_other_file_is_left(folder: Path) -> None:
    for name in ("ca", "alice"):
        assert stat.S_IMODE((folder / f"{name}.key").stat().st_mode) == 0o600
    assert sorted(file.name for file in folder.iterdir()) == ["alice.key", "alice.pem", "ca.key", "ca.pem"]


def test_existing_files_are_not_overwritten(folder: Path) -> None:
    before = {file: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(FedA2LError, match="not overwritten"):
        make_authority(folder)
    with pytest.raises(FedA2LError, match="not overwritten"):
        issue(folder, "alice")
    (folder / "alice.pem").unlink()
    with pytest.raises(FedA2LError, match="not overwritten"):
        issue(folder, "alice")
    assert all(file.read_bytes() == content for file, content in before.items() if file.name != "alice.pem")


def test_renewing_keeps_name_key_and_hosts(folder: Path) -> None:
    old = describe(folder / "alice.pem")
    key = (folder / "alice.key").read_bytes()
    (folder / "alice.key").rename(folder / "elsewhere")  # the key is on the node, not next to the CA
    issue(folder, "alice", renew=True, days=700)
    new = describe(folder / "alice.pem")
    (folder / "elsewhere").rename(folder / "alice.key")
    assert (folder / "alice.key").read_bytes() == key
    assert load(folder).name == "alice"
    assert (new["subject"], new["hosts"]) == (old["subject"], old["hosts"])
    assert new["days_left"] == 699
    assert new["fingerprint"] != old["fingerprint"]
    issue(folder, "alice", renew=True, hosts=["example.org"])
    assert describe(folder / "alice.pem")["hosts"] == ["alice", "example.org"]
    with pytest.raises(FedA2LError, match=r"bob\.pem: no such file"):
        issue(folder, "bob", renew=True)
    (folder / "bob.pem").write_bytes((folder / "alice.pem").read_bytes())
    with pytest.raises(FedA2LError, match="belongs to alice, not to bob"):
        issue(folder, "bob", renew=True)


def test_no_certificate_is_valid_longer_than_its_authority(tmp_path: Path) -> None:
    make_authority(tmp_path, days=10)
    issue(tmp_path, "alice")
    assert describe(tmp_path / "alice.pem")["until"] == describe(tmp_path / "ca.pem")["until"]


@pytest.mark.parametrize("name", ["", "../alice", "a/b", "-a", ".a", "a b", "é", "a" * 65, "ca", "a\n"])
def test_invalid_names_are_rejected(name: str, folder: Path) -> None:
    with pytest.raises(FedA2LError, match="the name"):
        issue(folder, name)


@pytest.mark.parametrize("name", ["0", "node_1", "node-", "a..b", "a" * 64, "1.2.3.4", "Node.7"])
def test_unusual_names_work(name: str, folder: Path) -> None:
    issue(folder, name)
    assert load(folder, name).name == name


def test_hosts_and_days_are_checked(folder: Path) -> None:
    for host in ("localhost:7447", "tcp/a", "", "a b", "*.org"):
        with pytest.raises(FedA2LError, match="--host"):
            issue(folder, "bob", hosts=[host])
    for days in (0, -1, 10**9):
        with pytest.raises(FedA2LError, match="--days"):
            issue(folder, "bob", days=days)
    assert not (folder / "bob.key").exists()


def test_the_error_names_the_file_and_its_fault(folder: Path) -> None:
    pem, key = folder / "alice.pem", folder / "alice.key"
    with pytest.raises(FedA2LError, match=r"none\.pem: no such file"):
        Identity.load(folder / "none.pem", key)
    with pytest.raises(FedA2LError, match=r"none\.key: no such file"):
        Identity.load(pem, folder / "none.key")
    with pytest.raises(FedA2LError, match="cannot be read: Is a directory"):
        Identity.load(folder, key)
    with pytest.raises(FedA2LError, match="not a certificate in PEM"):
        Identity.load(key, key)
    with pytest.raises(FedA2LError, match="not a private key in PEM"):
        Identity.load(pem, pem)
    (folder / "empty").touch()
    with pytest.raises(FedA2LError, match="not a certificate in PEM"):
        Authority.load(folder / "empty")
    with pytest.raises(FedA2LError, match="not a private key in PEM"):
        Identity.load(pem, folder / "empty")
    issue(folder, "bob")
    with pytest.raises(FedA2LError, match=r"bob\.key: is not the key of .*alice\.pem"):
        Identity.load(pem, folder / "bob.key")
    with pytest.raises(FedA2LError, match="not the certificate of a CA"):
        Authority.load(pem)
    other = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "other").write_bytes(other)
    with pytest.raises(FedA2LError, match="not an Ed25519 key"):
        Identity.load(pem, folder / "other")
    plain = load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(plain.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password")))
    with pytest.raises(FedA2LError, match="encrypted"):
        Identity.load(pem, key)


@pytest.mark.skipif(os.getuid() == 0, reason="root can read every file")
def test_an_unreadable_file_is_named(folder: Path) -> None:
    (folder / "alice.key").chmod(0)
    with pytest.raises(FedA2LError, match=r"alice\.key: cannot be read: Permission denied"):
        load(folder)


def test_a_permission_error_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(FedA2LError, match=r"alice\.pem: cannot be read: Permission denied"):
        Identity.load(folder / "alice.pem", folder / "alice.key")


def test_a_full_disk_leaves_no_partial_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = sorted(folder.iterdir())
    with pytest.raises(RunFailed, match="No space left"):
        issue(folder, "bob")
    assert sorted(folder.iterdir()) == before


def test_time_and_authority_are_checked(folder: Path, tmp_path: Path) -> None:
    authority = Authority.load(folder / "ca.pem")
    now = datetime.now(UTC)
    for name, since, words, reason in (
        ("late", -400, "expired on .* --renew", "certificate expired"),
        ("soon", +2, "valid only from", "certificate not yet valid"),
    ):
        issue(folder, name, since=now + timedelta(days=since), days=30)
        with pytest.raises(FedA2LError, match=words):
            load(folder, name)
        with pytest.raises(RejectedMessage) as refused:
            authority.check(der(folder / f"{name}.pem"))
        assert refused.value.reason == reason
        assert describe(folder / f"{name}.pem")["state"] == reason.removeprefix("certificate ")
    elsewhere = tmp_path / "elsewhere"
    make_authority(elsewhere)
    issue(elsewhere, "alice")
    with pytest.raises(RejectedMessage) as refused:
        authority.check(der(elsewhere / "alice.pem"))
    assert refused.value.reason == "authority"
    with pytest.raises(FedA2LError, match="was not issued by"):
        Identity.load(elsewhere / "alice.pem", elsewhere / "alice.key", authority)


def test_a_node_cannot_act_as_an_authority(folder: Path) -> None:
    """A certificate that a node signs with its own key is not trusted."""
    (folder / "sub").mkdir()
    for ending in ("pem", "key"):
        (folder / "sub" / f"ca.{ending}").write_bytes((folder / f"alice.{ending}").read_bytes())
    issue(folder / "sub", "bob")
    with pytest.raises(RejectedMessage) as refused:
        Authority.load(folder / "ca.pem").check(der(folder / "sub" / "bob.pem"))
    assert refused.value.reason == "authority"


def test_a_second_authority_can_replace_the_first(folder: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    make_authority(new)
    issue(new, "bob")
    both = tmp_path / "both.pem"
    both.write_bytes((folder / "ca.pem").read_bytes() + (new / "ca.pem").read_bytes())
    authority = Authority.load(both)
    assert [authority.check(der(path))[0] for path in (folder / "alice.pem", new / "bob.pem")] == ["alice", "bob"]


def test_a_forged_authority_with_the_same_name_is_rejected(folder: Path) -> None:
    ca = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    node = x509.load_pem_x509_certificate((folder / "alice.pem").read_bytes())
    forged = (
        x509.CertificateBuilder(extensions=list(node.extensions))
        .subject_name(node.subject)
        .issuer_name(ca.subject)
        .public_key(node.public_key())
        .serial_number(7)
        .not_valid_before(node.not_valid_before_utc)
        .not_valid_after(node.not_valid_after_utc)
        .sign(Ed25519PrivateKey.generate(), None)
    )
    with pytest.raises(RejectedMessage) as refused:
        Authority.load(folder / "ca.pem").check(forged.public_bytes(Encoding.DER))
    assert refused.value.reason == "authority"


def test_the_commands_print_the_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "certs"
    commands.init(folder)
    commands.issue("node.1", folder=folder, host=["localhost"])
    printed = capsys.readouterr().out
    assert "Copy ca.pem to every node" in printed
    assert f"and {folder / 'node.1.key'}" in printed
    commands.issue("node.1", folder=folder, renew=True)
    assert "node.1.key" not in capsys.readouterr().out
    commands.show(folder)
    printed = capsys.readouterr().out
    assert "node.1 (node)" in printed
    assert "hosts      node.1, localhost" in printed
    assert "valid, 364 days left" in printed
    with pytest.raises(FedA2LError, match="no certificate"):
        commands.show(tmp_path)


def test_zenoh_accepts_certificates_of_its_own_authority_only(folder: Path) -> None:
    """Mutual TLS with the same Ed25519 keys that sign messages."""
    zenoh = pytest.importorskip("zenoh")
    make_authority(folder / "evil")
    for place, name in ((folder, "bob"), (folder / "evil", "mallory")):
        issue(place, name, hosts=["127.0.0.1"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tls/127.0.0.1:{free.getsockname()[1]}"

    def open_session(place: Path, name: str, **endpoints: list[str]) -> "zenoh.Session":
        config = zenoh.Config()
        pair = {"private_key": str(place / f"{name}.key"), "certificate": str(place / f"{name}.pem")}
        tls = {f"{side}_{what}": path for side in ("listen", "connect") for what, path in pair.items()}
        tls |= {"root_ca_certificate": str(folder / "ca.pem"), "enable_mtls": True, "verify_name_on_connect": True}
        settings = {"mode": "peer", "scouting/multicast/enabled": False, "connect/exit_on_failure": False}
        settings |= {"transport/link/tls": tls, "listen/endpoints": [], "connect/endpoints": []}
        for key, value in (settings | {f"{side}/endpoints": ends for side, ends in endpoints.items()}).items():
            config.insert_json5(key, json.dumps(value))
        return zenoh.open(config)

    def connects(place: Path, name: str, seconds: float) -> bool:
        with open_session(place, name, connect=[address]) as session:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                if session.info.peers_zid():
                    return True
                time.sleep(0.02)
        return False

    with open_session(folder, "alice", listen=[address]):
        assert connects(folder, "bob", 10)
        assert not connects(folder / "evil", "mallory", 1)
