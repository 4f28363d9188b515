"""The manager's own CA and server certificate, made and renewed here.

`cryptography` takes its time to import, so this module is imported only by a manager that listens for TLS.
"""

import ipaddress
import os
import socket
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import psutil  # type: ignore[import-untyped, unused-ignore]
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rota.wire.auth import fingerprint, server_context
from rota.wire.home import CA, private_directory, read_private, write_private

__all__ = ["Identity", "local_names", "publish_ca", "server_identity", "withdraw_keys"]

CA_KEY, SERVER, SERVER_KEY = "ca.key", "server.pem", "server.key"
CA_LIFE = timedelta(days=3653)
SERVER_LIFE = timedelta(days=365)
RENEW_BEFORE = timedelta(days=30)
_SKEW = timedelta(days=1)
"""Nodes whose clocks are behind shall accept a new certificate."""


class Identity(NamedTuple):
    """What a TLS listener shows: its context, and the certificate's fingerprint that proofs are bound to."""

    context: ssl.SSLContext
    fingerprint: str
    renewed: bool
    """Whether the certificate was made just now."""


def server_identity(directory: str, names: Iterable[str] | None = None, now: datetime | None = None) -> Identity:
    """Load the identity kept in `directory`, making or renewing what is missing, broken, or has under 30 days left.

    The CA is kept as long as it is sound, so that runners that were given its file go on trusting the manager.
    """
    now = now or datetime.now(UTC)
    private_directory(directory)
    authority = _load(directory, CA, CA_KEY, now)
    if authority is None:
        authority = _make_ca(directory, now)
    names = set(local_names() if names is None else names)
    server = _load(directory, SERVER, SERVER_KEY, now)
    renewed = server is None or not _signed_by(server[0], authority[0]) or not names <= _names_of(server[0])
    if server is None or renewed:
        server = _make_server(directory, authority, names, now)
    certificate = server[0]
    return Identity(
        server_context(os.path.join(directory, SERVER), os.path.join(directory, SERVER_KEY)),
        fingerprint(certificate.public_bytes(serialization.Encoding.DER)),
        renewed,
    )


def publish_ca(private: str, public: str) -> None:
    """Put the CA's certificate, and nothing else of `private`, where nodes can read it."""
    certificate, path = read_private(os.path.join(private, CA)), os.path.join(public, CA)
    try:
        if read_private(path) == certificate:
            return
    except FileNotFoundError:
        pass
    private_directory(public)
    write_private(path, certificate)


def withdraw_keys(private: str, public: str) -> None:
    """Take what earlier releases kept beside the CA's certificate to where no node looks, and leave no copy."""
    private_directory(private)
    if not os.path.lexists(os.path.join(private, CA_KEY)):
        for name in (SERVER_KEY, SERVER, CA, CA_KEY):
            if os.path.lexists(os.path.join(public, name)):
                write_private(os.path.join(private, name), read_private(os.path.join(public, name)))
    for name in (CA_KEY, SERVER_KEY, SERVER):
        if os.path.lexists(os.path.join(public, name)):
            os.unlink(os.path.join(public, name))


def local_names() -> set[str]:
    """This host's names and addresses, as far as it knows them."""
    host = socket.gethostname()
    names = {host, "localhost", "127.0.0.1"}
    for addresses in psutil.net_if_addrs().values():
        for entry in addresses:
            if entry.family in (socket.AF_INET, socket.AF_INET6):
                names.add(str(entry.address).partition("%")[0])
    return {_canonical(name) for name in names if name and name.isascii()}


def _canonical(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


_Pair = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def _load(directory: str, certificate_name: str, key_name: str, now: datetime) -> _Pair | None:
    """A certificate and its key, or None if they are missing, broken, not a pair, or near their end."""
    try:
        certificate = x509.load_pem_x509_certificate(read_private(os.path.join(directory, certificate_name)))
        key = serialization.load_pem_private_key(read_private(os.path.join(directory, key_name)), None)
    except (FileNotFoundError, ValueError, TypeError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        return None
    if now < certificate.not_valid_before_utc or certificate.not_valid_after_utc - now < RENEW_BEFORE:
        return None
    return certificate, key


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _names_of(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: str, issuer: x509.Name | None, public: ec.EllipticCurvePublicKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer or name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(end)
        .add_extension(
            x509.BasicConstraints(ca=issuer is None, path_length=0 if issuer is None else None), critical=True
        )
        .add_extension(_usage(sign=issuer is not None, certify=issuer is None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, sign: bool, certify: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=sign,
        key_cert_sign=certify,
        crl_sign=certify,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _make_ca(directory: str, now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _builder(f"rota {os.urandom(4).hex()}", None, key.public_key(), now, now + CA_LIFE).sign(
        key, hashes.SHA256()
    )
    _save(directory, CA, CA_KEY, certificate, key)
    return certificate, key


def _make_server(directory: str, authority: _Pair, names: set[str], now: datetime) -> _Pair:
    ca, ca_key = authority
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(now + SERVER_LIFE, ca.not_valid_after_utc)
    certificate = (
        _builder("rota manager", ca.subject, key.public_key(), now, end)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in sorted(names)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    _save(directory, SERVER, SERVER_KEY, certificate, key)
    return certificate, key


def _save(
    directory: str, certificate_name: str, key_name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    """Key first: a crash in between leaves a pair that does not fit, which `_load` finds."""
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_private(os.path.join(directory, key_name), private)
    write_private(os.path.join(directory, certificate_name), certificate.public_bytes(serialization.Encoding.PEM))
