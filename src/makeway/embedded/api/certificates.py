"""The API's own authority and certificate: made on first start, kept in the home, for loopback
only.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cryptography import x509

_VALID_DAYS = 3650
# Certificates are good from a day ago on, so that a clock that is set back does not lock anybody
# out.
_BACKDATED = datetime.timedelta(days=1)


class Certificates(NamedTuple):
    authority: Path
    certificate: Path
    key: Path


def ensure_certificates(folder: Path, now: float) -> Certificates:
    found = Certificates(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    if not all(path.exists() for path in found):
        _make(found, now)
    return found


def _make(paths: Certificates, now: float) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    start = datetime.datetime.fromtimestamp(now, datetime.UTC) - _BACKDATED
    end = start + datetime.timedelta(days=_VALID_DAYS)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    server_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "makeway")])
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "makeway API")])

    def builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
        )

    key_identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = (
        builder(authority_name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(key_identifier, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    names = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ]
    server = (
        builder(server_name, server_key)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_identifier),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    # The authority's key is not kept: nothing else is ever signed with it.
    write_private(paths.authority, authority.public_bytes(pem))
    write_private(paths.certificate, server.public_bytes(pem))
    private = server_key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_private(paths.key, private)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def write_private(path: Path, content: bytes) -> None:
    """Readable by its owner alone from the first byte on, and whole or not there."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    fresh.replace(path)
