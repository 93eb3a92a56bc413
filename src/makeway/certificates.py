"""An authority of one's own and a server's certificate signed by it: for the embedded API, and for a webhook on a cluster."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cryptography import x509

_VALID_DAYS = 3650
# Certificates are good from a day ago on, so that a clock that is set back does not lock anybody
# out.
_BACKDATED = datetime.timedelta(days=1)


class Pems(NamedTuple):
    """Each as PEM. The authority's key is not kept: nothing else is ever signed with it."""

    authority: bytes
    certificate: bytes
    key: bytes


def make_certificates(
    owner: str, now: float, names: Iterable[str], addresses: Iterable[str] = ()
) -> Pems:
    """For a server that is reached by these DNS names and IP addresses."""
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    start = datetime.datetime.fromtimestamp(now, datetime.UTC) - _BACKDATED
    end = start + datetime.timedelta(days=_VALID_DAYS)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    server_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "makeway")])
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, owner)])

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
    reached_by = [
        *(x509.DNSName(name) for name in names),
        *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses),
    ]
    server = (
        builder(server_name, server_key)
        .add_extension(x509.SubjectAlternativeName(reached_by), critical=False)
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
    private = server_key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pems(authority.public_bytes(pem), server.public_bytes(pem), private)


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
