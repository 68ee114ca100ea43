"""Identities of nodes: a small certificate authority (CA), one certificate per node, and their verification.

Each node has one Ed25519 key for its links (mutual TLS 1.3) and for the signatures of its messages; rustls in zenoh
accepts such certificates. The name of a node is the common name of its certificate. The access rules of the links use
the same name.
"""

import ipaddress
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from feda2l.errors import FedA2LError, RunFailed
from feda2l.plain_values import PlainDict
from feda2l.wire.rejected_message import RejectedMessage

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # valid as a file name, as part of a key and as a common name
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
AUTHORITY = "ca"
AUTHORITY_DAYS, NODE_DAYS, MOST_DAYS = 3650, 365, 36500
SKEW = timedelta(hours=1)  # clocks differ, so a new certificate is valid from one hour ago
certificate_error = partial(FedA2LError, see="certificates")
BOTH_SIDES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)

warnings.filterwarnings(
    "ignore", category=CryptographyDeprecationWarning
)  # certificates of strangers must not write into the log


class Identity:
    """A node's name and the key that proves it."""

    def __init__(self, certificate: x509.Certificate, key: Ed25519PrivateKey) -> None:
        self.name = _common_name(certificate)
        self.certificate = certificate.public_bytes(Encoding.DER)
        self.until = certificate.not_valid_after_utc
        self._key = key

    @classmethod
    def load(cls, certificate: Path, key: Path, authority: "Authority | None" = None) -> "Identity":
        """Read and check a node's files; with an authority, also check that it issued the certificate."""
        read = _certificates(certificate)[0]
        private = _private_key(key)
        if read.public_key() != private.public_key():
            raise certificate_error(f"{key}: is not the key of {certificate}; give the two files of one node")
        _demand_valid(read, certificate, "renew it with `feda2l certs issue NAME --renew`")
        if authority is not None:
            try:
                authority.check(read.public_bytes(Encoding.DER))
            except RejectedMessage as error:
                raise certificate_error(
                    f"{certificate}: was not issued by {authority.path} ({error}); "
                    "all nodes of a run need certificates of one CA"
                ) from error
        return cls(read, private)

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)


class Authority:
    """The trusted CA certificate, or several of them while one CA replaces another."""

    def __init__(self, certificates: Sequence[x509.Certificate], path: Path) -> None:
        self.certificates, self.path = tuple(certificates), path

    @classmethod
    def load(cls, path: Path) -> "Authority":
        certificates = _certificates(path)
        for certificate in certificates:
            if not _is_authority(certificate):
                raise certificate_error(
                    f"{path}: is not the certificate of a CA; `feda2l certs init` makes one (ca.pem)"
                )
        valid = [certificate for certificate in certificates if not _when(certificate)]
        if not valid:
            _demand_valid(certificates[0], path, "make a new CA and issue every node's certificate again")
        return cls(valid, path)

    def check(self, der: bytes) -> tuple[str, Ed25519PublicKey]:
        """Verify a certificate and return its owner's name and public key.

        Raises:
            RejectedMessage: with one of these reasons: "certificate" (unreadable, or not the certificate of a node),
                "authority" (not signed by a trusted CA), "certificate expired", "certificate not yet valid",
                "authority expired".
        """
        try:
            return self._verify(x509.load_der_x509_certificate(der))
        except RejectedMessage:
            raise
        except Exception as error:  # the parser can raise anything on a stranger's bytes
            raise RejectedMessage("certificate", "cannot be read") from error

    def _verify(self, certificate: x509.Certificate) -> tuple[str, Ed25519PublicKey]:
        issuer = next((ca for ca in self.certificates if _issued(certificate, ca)), None)
        if issuer is None:
            raise RejectedMessage("authority", f"not signed by {self.path.name}")
        if when := _when(certificate):
            raise RejectedMessage(f"certificate {when}")
        if when := _when(issuer):
            raise RejectedMessage(f"authority {when}")
        name, key = _common_name(certificate), certificate.public_key()
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        if _is_authority(certificate) or not set(BOTH_SIDES) <= set(usages) or not NAME.fullmatch(name):
            raise RejectedMessage("certificate", "not the certificate of a node")
        if not isinstance(key, Ed25519PublicKey):
            raise RejectedMessage("certificate", "the key is not Ed25519")
        return name, key


def make_authority(folder: Path, *, days: int = AUTHORITY_DAYS) -> Path:
    """Make a CA: `ca.pem` for every node, and `ca.key`, which stays on the machine that issues certificates."""
    certificate, secret = _paths(folder, AUTHORITY)
    _demand_absent(certificate, secret)
    key = Ed25519PrivateKey.generate()
    # a random name distinguishes two authorities, for people and for a verifier that compares issuers
    name = f"FedA2L CA {os.urandom(4).hex()}"
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates and CRLs
    built = (
        _builder(name, _named(name), key.public_key(), *_period(None, days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, None)
    )
    _write_pair(certificate, built, secret, key)
    return certificate


def issue(
    folder: Path,
    name: str,
    *,
    hosts: Iterable[str] = (),
    days: int = NODE_DAYS,
    out: Path | None = None,
    renew: bool = False,
    since: datetime | None = None,
) -> Path:
    """Issue `NAME.pem` and `NAME.key` with the CA of a folder, for a node that others reach at these hosts.

    Renewing issues a certificate for the same name and the same key, so the key itself can stay on the node. Without
    `hosts`, the renewed certificate keeps its hosts. The days count from `since`, otherwise from now.
    """
    if not NAME.fullmatch(name) or name == AUTHORITY:
        raise FedA2LError(
            f'the name "{name}" is not valid: use up to 64 letters, digits, ".", "_" and "-", with a letter or digit '
            'first; "ca" is reserved'
        )
    authority_path, authority_secret = _paths(folder, AUTHORITY)
    authority, authority_key = _certificates(authority_path)[0], _private_key(authority_secret)
    if authority.public_key() != authority_key.public_key():
        raise certificate_error(f"{authority_secret}: is not the key of {authority_path}")
    _demand_valid(authority, authority_path, "make a new CA and issue every node's certificate again")
    certificate, secret = _paths(out or folder, name)
    key: Ed25519PrivateKey | None = None
    wanted = list(hosts)
    if renew:
        old = _certificates(certificate)[0]
        if _common_name(old) != name:
            raise certificate_error(f"{certificate}: belongs to {_common_name(old)}, not to {name}")
        public = old.public_key()
        wanted = wanted or _hosts(old)
    else:
        _demand_absent(certificate, secret)
        key = Ed25519PrivateKey.generate()
        public = key.public_key()
    if not isinstance(public, Ed25519PublicKey):
        raise certificate_error(f"{certificate}: the key is not Ed25519; delete the file and issue a new one")
    start, end = _period(since, days)
    end = min(end, authority.not_valid_after_utc)  # no certificate is valid longer than its CA
    usage = x509.KeyUsage(
        True, False, False, False, False, False, False, False, False
    )  # digital signature, as TLS 1.3 requires
    built = (
        _builder(name, authority.subject, public, start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage(BOTH_SIDES), critical=False)
        .add_extension(x509.SubjectAlternativeName(_alternatives([name, *wanted])), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, None)
    )
    _write_pair(certificate, built, secret, key)
    return certificate


def describe(path: Path) -> PlainDict:
    """The facts in a certificate, whether it is valid or not."""
    certificate = _certificates(path)[0]
    return {
        "subject": _common_name(certificate),
        "issuer": certificate.issuer.rfc4514_string().removeprefix("CN="),
        "role": "CA" if _is_authority(certificate) else "node",
        "from": certificate.not_valid_before_utc,
        "until": certificate.not_valid_after_utc,
        "days_left": (certificate.not_valid_after_utc - datetime.now(UTC)) // timedelta(days=1),
        "state": _when(certificate) or "valid",
        "hosts": _hosts(certificate),
        "key": "Ed25519" if isinstance(certificate.public_key(), Ed25519PublicKey) else "other than Ed25519",
        "fingerprint": certificate.fingerprint(SHA256()).hex(":"),
    }


def show(path: Path) -> str:
    """A certificate as text, one fact per line."""
    facts = describe(path)
    left = f", {facts['days_left']} days left" if facts["state"] == "valid" else ""
    lines = {
        "name": f"{facts['subject']} ({facts['role']})",
        "issued by": facts["issuer"],
        "valid": f"{facts['from']:%Y-%m-%d %H:%M} to {facts['until']:%Y-%m-%d %H:%M} UTC: {facts['state']}{left}",
        "hosts": ", ".join(facts["hosts"]) or "-",
        "key": facts["key"],
        "sha256": facts["fingerprint"],
    }
    return "\n".join([str(path), *(f"  {label:<10} {text}" for label, text in lines.items())])


def _builder(
    name: str, issuer: x509.Name, key: Ed25519PublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _period(since: datetime | None, days: int) -> tuple[datetime, datetime]:
    if not 1 <= days <= MOST_DAYS:
        raise FedA2LError(f"--days {days}: choose 1 to {MOST_DAYS} days")
    now = datetime.now(UTC)
    return since or now - SKEW, (since or now) + timedelta(days=days)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _common_name(certificate: x509.Certificate) -> str:
    """The common name of a certificate's subject; "" if there is none or more than one."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def _alternatives(hosts: Iterable[str]) -> list[x509.GeneralName]:
    """The hosts of a node without duplicates: IP addresses as such, the rest as DNS names."""
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(hosts):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if not HOST.fullmatch(host):
                raise FedA2LError(f'--host "{host}": is not a host name or an IP address; leave out the port') from None
            names.append(x509.DNSName(host))
    return names


def _hosts(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (
        ValueError,
        TypeError,
        InvalidSignature,
    ):  # another issuer, another signature algorithm, or a wrong signature
        return False
    return True


def _when(certificate: x509.Certificate) -> str:
    """Why a certificate is not valid now; "" if it is valid."""
    now = datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        return "expired"
    return "not yet valid" if now < certificate.not_valid_before_utc else ""


def _demand_valid(certificate: x509.Certificate, path: Path, remedy: str) -> None:
    match _when(certificate):
        case "expired":
            since = certificate.not_valid_after_utc
            raise certificate_error(f"{path}: the certificate expired on {since:%Y-%m-%d %H:%M} UTC; {remedy}")
        case "not yet valid":
            start = certificate.not_valid_before_utc
            raise certificate_error(
                f"{path}: the certificate is valid only from {start:%Y-%m-%d %H:%M} UTC on; check this machine's clock"
            )


def _paths(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.pem", folder / f"{name}.key"  # a name may have dots: no with_suffix


def _demand_absent(*paths: Path) -> None:
    for path in paths:
        if os.path.lexists(path):
            raise certificate_error(
                f"{path}: already exists and is not overwritten; to renew a node's certificate: "
                "`feda2l certs issue NAME --renew`"
            )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise certificate_error(
            f"{path}: no such file; `feda2l certs init` and `feda2l certs issue` make these files"
        ) from error
    except OSError as error:
        raise certificate_error(
            f"{path}: cannot be read: {error.strerror}; the user of the node must own it"
        ) from error


def _certificates(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(_read(path))
    except ValueError as error:
        raise certificate_error(f"{path}: is not a certificate in PEM") from error


def _private_key(path: Path) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(_read(path), None)
    except TypeError as error:
        raise certificate_error(f"{path}: the key is encrypted; give a key without a password") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise certificate_error(f"{path}: is not a private key in PEM") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise certificate_error(f"{path}: is not an Ed25519 key; `feda2l certs issue` makes one")
    return key


def _write_pair(certificate: Path, built: x509.Certificate, secret: Path, key: Ed25519PrivateKey | None) -> None:
    """Write the certificate and, if given, a new key: both or neither, and never a partial file."""
    files = {certificate: (built.public_bytes(Encoding.PEM), 0o644)}
    if key:
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        files = {secret: (pem, 0o600)} | files
    partials = {path: path.with_name(f"{path.name}.partial") for path in files}
    try:
        certificate.parent.mkdir(parents=True, exist_ok=True)
        for path, (pem, mode) in files.items():
            partials[path].unlink(missing_ok=True)
            with open(os.open(partials[path], os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(pem)
                file.flush()
                os.fsync(file.fileno())
        for path, partial in partials.items():
            os.replace(partial, path)
    except OSError as error:
        raise RunFailed(f"{certificate}: cannot be written: {error.strerror}", see="certificates") from error
    finally:
        for partial in partials.values():
            partial.unlink(missing_ok=True)
