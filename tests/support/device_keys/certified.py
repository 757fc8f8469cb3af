"""Certificates for public keys whose private half is elsewhere."""

from __future__ import annotations

import datetime
import ipaddress

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


def certify(ca: trustme.CA, public_key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey, name: str) -> bytes:
    """A PEM certificate for *public_key*, of a client or of a server on this machine."""
    authority = x509.load_pem_x509_certificate(ca.cert_pem.bytes())
    signer = serialization.load_pem_private_key(ca.private_key_pem.bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(authority.subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(signer, SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)
