"""The binding to a server's certificate, as RFC 5929 computes it."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from ostiary.core.channel_binding import server_end_point

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def certificate(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, algorithm: hashes.SHA256 | None) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + timedelta(days=1))
    return builder.sign(key, algorithm).public_bytes(Encoding.DER)


@pytest.mark.parametrize("algorithm", [hashes.SHA256(), hashes.SHA384(), hashes.SHA512()], ids=lambda each: each.name)
def test_the_certificate_is_hashed_as_its_signature_is(algorithm: hashes.SHA256) -> None:
    der = certificate(ec.generate_private_key(ec.SECP256R1()), algorithm)
    expected = hashlib.new(algorithm.name, der).digest()
    assert server_end_point(der) == b"tls-server-end-point:" + expected


def test_a_signature_without_a_hash_of_its_own_has_no_binding() -> None:
    assert server_end_point(certificate(ed25519.Ed25519PrivateKey.generate(), None)) is None


def test_what_is_no_certificate_has_no_binding() -> None:
    assert server_end_point(b"not DER") is None
