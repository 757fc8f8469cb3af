"""What can be told of the certificates that a configuration names before anybody connects.

Called by `gateway.config`: by the loader for the authority that kubeconfigs of the sign-in page need, and by the
checks. Files that cannot be read have been told of by then, and say nothing here.
"""

from __future__ import annotations

import ssl
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

# cryptography takes 50 ms to import, and a gateway without TLS does without it.
if TYPE_CHECKING:
    from cryptography.x509 import Certificate


def certificates(path: Path) -> list[Certificate]:
    """Those of a PEM file, the leaf first; none if it cannot be read."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):
        return []


def own_authorities(path: Path) -> str | None:
    """The self-signed certificates of a listener's chain: whoever trusts one of them trusts the listener."""
    roots = [certificate for certificate in certificates(path) if certificate.issuer == certificate.subject]
    return "".join(map(certificate_pem, roots)) or None


def certificate_pem(certificate: Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode()


def certificate_der(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.DER)


def is_from_a_known_authority(path: Path) -> bool:
    """Whether an authority of this system has the name of the chain's issuer, and so clients need no other."""
    issuers = {certificate.issuer.public_bytes() for certificate in certificates(path)}
    return any(_subject(der) in issuers for der in ssl.create_default_context().get_ca_certs(binary_form=True))


def _subject(der: bytes) -> bytes | None:
    from cryptography import x509

    with warnings.catch_warnings():
        # Some of the oldest authorities have serial numbers that today's rules forbid.
        warnings.simplefilter("ignore")
        try:
            return x509.load_der_x509_certificate(der).subject.public_bytes()
        except ValueError:
            return None
