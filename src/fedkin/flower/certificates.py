"""Identities in a federation: a certificate authority, the server's certificate, a key pair per node.

Nodes recognize the server by its certificate, which the authority has signed. The server recognizes
nodes by their public keys. Only its owner can read a private key, and it is never overwritten.
"""

import datetime
import importlib.util
import ipaddress
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkin.errors import InputError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

AUTHORITY_DAYS = 3650
SERVER_DAYS = 397
"""The longest validity of a server's certificate that common clients accept."""
CLOCK_SKEW = datetime.timedelta(hours=1)
"""Certificates are valid from a little before they are made, because the clocks of machines differ."""

TOKEN_BYTES = 32


@dataclass(frozen=True)
class Certificate:
    """What a certificate says."""

    subject: str
    hosts: tuple[str, ...]
    """The names and addresses that it is valid for; empty for an authority."""
    expires: datetime.datetime


REQUIRED_PACKAGES = ("cryptography", "flwr", "httpx", "psutil", "tomli_w", "uvicorn")


def require_flower() -> None:
    """Say in one line how to install what a real federation needs.

    The packages are looked for, not imported: loading Flower takes half a second.
    """
    for name in REQUIRED_PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise InputError(
                f"a real federation needs the package {name}: pip install 'fedkin[flower]'"
            )


def make_authority(certificate_path: Path, key_path: Path) -> None:
    """Make a certificate authority: a certificate for everybody, and a key for the server's owner."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    key = _new_key()
    name = _name("fedkin certificate authority")
    builder = _builder(name, name, key.public_key(), AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
    _write_private(key_path, _pem_key(key))
    _write_public(certificate_path, _pem(builder.sign(key, hashes.SHA384())))


def make_server_certificate(
    authority: Path,
    authority_key: Path,
    hosts: Sequence[str],
    certificate_path: Path,
    key_path: Path,
    days: int = SERVER_DAYS,
) -> None:
    """Make the server's key and certificate, signed by the authority.

    Args:
        authority: The certificate of the authority.
        authority_key: Its private key.
        hosts: The names and addresses that nodes may reach the server by.
        certificate_path: Where the certificate is written; an older one is replaced.
        key_path: The same for the private key.
        days: How long it is valid.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import ExtendedKeyUsageOID

    names = [_host(host) for host in dict.fromkeys(hosts)]
    if not names:
        raise InputError("a server certificate needs at least one host name or address: --host")
    issuer = _load_certificate(authority)
    written = _read(authority_key)
    try:
        signing_key: Any = serialization.load_pem_private_key(written, None)
    except (ValueError, TypeError) as error:
        raise InputError(f"{authority_key} is not a private key without password") from error
    if signing_key.public_key() != issuer.public_key():
        raise InputError(f"{authority_key} is not the key of {authority}: use the two together")
    key = _new_key()
    builder = _builder(_name(hosts[0]), issuer.subject, key.public_key(), days)
    builder = (
        builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()),
            critical=False,
        )
    )
    _write_private(key_path, _pem_key(key), replace=True)
    _write_public(certificate_path, _pem(builder.sign(signing_key, hashes.SHA384())))


def make_node_key(path: Path) -> None:
    """Make a node's key pair: the private key at `path`, the public one at `path` with `.pub` added.

    Both are in OpenSSH's format, which Flower reads. A SuperNode signs with the private key; the public
    key is registered at the SuperLink.
    """
    from cryptography.hazmat.primitives import serialization

    key = _new_key()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write_private(path, private)
    _write_public(public_key_path(path), public + b"\n")


def public_key_path(private: Path) -> Path:
    """Return the path of the public key that belongs to a private key."""
    return private.with_name(f"{private.name}.pub")


def read_public_key(path: Path) -> bytes:
    """Read a node's public key and return it as Flower's SuperLink stores it."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    written = _read(path)
    try:
        key = serialization.load_ssh_public_key(written)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(
            f"{path} is not a node's public key: give the file ending in .pub that "
            "fedkin federation key made"
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InputError(
            f"{path} is not a key of an elliptic curve: make one with fedkin federation key"
        )
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def check_private_key(path: Path) -> None:
    """Refuse a file that is not a node's private key, or that others can read."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    written = _read(path)
    try:
        key = serialization.load_ssh_private_key(written, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(
            f"{path} is not a node's private key: make one with fedkin federation key"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(
            f"{path} is not a key of an elliptic curve: make one with fedkin federation key"
        )
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise InputError(f"others can read the private key {path}: chmod 600 {path}")


def make_token(path: Path) -> None:
    """Write a new random token that only this user can read; an older one is replaced."""
    _write_private(path, f"{secrets.token_hex(TOKEN_BYTES)}\n".encode(), replace=True)


def describe(path: Path) -> Certificate:
    """Read which hosts a certificate is for, and how long it is valid."""
    from cryptography import x509

    certificate = _load_certificate(path)
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        hosts = tuple(str(name.value) for name in extension.value)
    except x509.ExtensionNotFound:
        hosts = ()
    subject = certificate.subject.rfc4514_string().removeprefix("CN=")
    return Certificate(subject, hosts, certificate.not_valid_after_utc)


def _new_key() -> "ec.EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _name(common_name: str) -> "x509.Name":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _host(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.split(".")
    if not host.isascii() or not all(_is_label(label) for label in labels) or len(host) > 253:
        raise InputError(f"'{host}' is not the name or address of a host, such as link.example.org")
    return x509.DNSName(host)


def _is_label(label: str) -> bool:
    return 0 < len(label) <= 63 and label.strip("-") == label and label.replace("-", "").isalnum()


def _builder(
    subject: "x509.Name", issuer: "x509.Name", key: "ec.EllipticCurvePublicKey", days: int
) -> "x509.CertificateBuilder":
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(**allowed: bool) -> "x509.KeyUsage":
    from cryptography import x509

    names = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{name: allowed.get(name, False) for name in names})


def _pem(certificate: "x509.Certificate") -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: "ec.EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _load_certificate(path: Path) -> "x509.Certificate":
    from cryptography import x509

    written = _read(path)
    try:
        return x509.load_pem_x509_certificate(written)
    except ValueError as error:
        raise InputError(
            f"{path} is not a certificate in PEM format: give the ca.pem that fedkin federation init made"
        ) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}: check the path") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _write_private(path: Path, content: bytes, replace: bool = False) -> None:
    """Write a file that at no moment anybody but its owner can read."""
    make_private_directory(path.parent)
    scratch = path.with_name(f".{path.name}.new")
    scratch.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        if replace:
            scratch.replace(path)
        else:
            os.link(scratch, path)
    except FileExistsError as error:
        raise InputError(f"{path} exists: a key is never overwritten; remove it first") from error
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    finally:
        scratch.unlink(missing_ok=True)


def _write_public(path: Path, content: bytes) -> None:
    scratch = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_bytes(content)
        scratch.chmod(0o644)
        scratch.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def make_private_directory(path: Path) -> None:
    """Make a directory and its parents, where missing, for their owner only."""
    if path.is_dir():
        return
    make_private_directory(path.parent)
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the directory {path}: {error.strerror}") from error
