"""Pairs a certificate with its external key."""

from __future__ import annotations

from dataclasses import replace

from ostiary.core.tls import read_chain
from ostiary.errors import KeyUnusable
from ostiary.keys.address import kind_of, usable_public_key
from ostiary.model import ClientCertificate, DeviceKey


def pair_with_key(chain_pem: str, key: DeviceKey, *, where: object = None) -> ClientCertificate:
    """Return the pair; raises `ValueError` for an invalid certificate, `KeyUnusable` if it does not match the key."""
    certificate = read_chain(chain_pem)
    from cryptography.x509 import load_pem_x509_certificates

    public = load_pem_x509_certificates(certificate.chain_pem.encode())[0].public_key()
    if public != key.public_key:
        raise KeyUnusable(
            "the key does not belong to the certificate",
            cause=_difference(public, key),
            where=str(where or getattr(key, "name", "")) or None,
            hint="name the key that the certificate was issued for, or get a certificate for this key",
            code="key-mismatch",
        )
    return replace(certificate, device_key=key)


def _difference(certified: object, key: DeviceKey) -> str:
    try:
        wanted = kind_of(usable_public_key(certified))
    except ValueError as error:
        return f"the certificate cannot be used: {error}"
    actual = kind_of(usable_public_key(key.public_key))
    if wanted != actual:
        return f"the certificate is for a key of type {wanted}, and the key is of type {actual}"
    return f"both are of type {actual}, but the certificate was issued for another key"
