"""The TLS certificate of the proxy: for 127.0.0.1 only, one per context, issued by an authority of its own.

The authority's key signs once and is never stored, so a kubeconfig trusts this one certificate only.
"""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ostiary.core.clock import Clock
from ostiary.core.platform.memory_files import in_memory_file
from ostiary.model import Secret

ADDRESS = "127.0.0.1"
# The longest lifetime that all clients accept.
LIFETIME = timedelta(days=825)
# `ostiary connect` replaces a certificate with less than this left.
RENEWED_BEFORE = timedelta(days=60)


@dataclass(frozen=True, slots=True)
class LoopbackCertificate:
    """`authority_pem` goes into the kubeconfig; the other two stay with the proxy. `expires_at` is in Unix time."""

    authority_pem: str
    certificate_pem: str
    key_pem: Secret = field(repr=False)
    expires_at: int

    def is_expired(self, now: datetime) -> bool:
        return now.timestamp() >= self.expires_at

    def should_be_renewed(self, now: datetime) -> bool:
        return now.timestamp() >= self.expires_at - RENEWED_BEFORE.total_seconds()


def make_certificate(clock: Clock) -> LoopbackCertificate:
    """Generate a key and a certificate."""
    # Imported lazily: needed only when a context is created.
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = clock.now().replace(microsecond=0)
    expires_at = now + LIFETIME
    own_address = x509.IPAddress(ipaddress.IPv4Address(ADDRESS))

    def builder(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            # Tolerate clocks that are slightly behind.
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(expires_at)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
        )

    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ostiary connect, authority")])
    authority = (
        builder(issuer, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(
            x509.NameConstraints([x509.IPAddress(ipaddress.IPv4Network(ADDRESS))], None),
            critical=True,
        )
        .sign(authority_key, SHA256())
    )
    certificate = (
        builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ostiary connect")]), key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([own_address]), critical=False)
        .sign(authority_key, SHA256())
    )
    return LoopbackCertificate(
        authority.public_bytes(Encoding.PEM).decode(),
        certificate.public_bytes(Encoding.PEM).decode(),
        Secret(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()),
        int(expires_at.timestamp()),
    )


def _usage(*, signs_certificates: bool):  # type: ignore[no-untyped-def]  # its type is imported above, and late
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def load_into(context: ssl.SSLContext, certificate: LoopbackCertificate) -> None:
    """Load *certificate* into the *context* of a listener."""
    chain, key = certificate.certificate_pem.encode(), certificate.key_pem.reveal().encode()
    with in_memory_file(chain) as chain_path, in_memory_file(key) as key_path:
        context.load_cert_chain(chain_path, key_path)
