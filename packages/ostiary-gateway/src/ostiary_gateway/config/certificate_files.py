"""Properties of configured certificates, read before any client connects.

A file that cannot be read was already reported, and counts as empty here.
"""

from __future__ import annotations

import ssl
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

# cryptography takes 50 ms to import, which a gateway without TLS does not need.
if TYPE_CHECKING:
    from cryptography.x509 import Certificate


def certificates(path: Path) -> list[Certificate]:
    """Return the certificates of a PEM file, leaf first; an empty list if it cannot be read."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):
        return []


def own_authorities(path: Path) -> str | None:
    """Return the self-signed certificates of a listener's chain: clients that trust one trust the listener."""
    roots = [certificate for certificate in certificates(path) if certificate.issuer == certificate.subject]
    return "".join(map(certificate_pem, roots)) or None


def certificate_pem(certificate: Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode()


def certificate_der(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.DER)


def is_from_a_known_authority(path: Path) -> bool:
    """Report whether a CA of this system has the name of the chain's issuer, so that clients need no other CA."""
    issuers = {certificate.issuer.public_bytes() for certificate in certificates(path)}
    return any(_subject(der) in issuers for der in ssl.create_default_context().get_ca_certs(binary_form=True))


def _subject(der: bytes) -> bytes | None:
    from cryptography import x509

    with warnings.catch_warnings():
        # Serial numbers of some old CAs violate current rules.
        warnings.simplefilter("ignore")
        try:
            return x509.load_der_x509_certificate(der).subject.public_bytes()
        except ValueError:
            return None
