"""Client certificates for tests, as a listener hands them on: verified, and DER."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

_KEY = ec.generate_private_key(ec.SECP256R1())
DAY = datetime.timedelta(days=1)


def certificate(
    *names: str,
    organizations: tuple[str, ...] = (),
    now: datetime.datetime,
    usage: ObjectIdentifier | None = ExtendedKeyUsageOID.CLIENT_AUTH,
    alternative: Sequence[x509.GeneralName] = (),
    extensions: Sequence[x509.ExtensionType] = (),
) -> bytes:
    """Valid for a day before and after *now*; with a common name for each of *names*."""
    subject = x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, text) for text in organizations]
        + [x509.NameAttribute(NameOID.COMMON_NAME, text) for text in names]
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(_KEY.public_key())
        .serial_number(7)
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
    )
    if usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    for extension in (*([x509.SubjectAlternativeName(alternative)] if alternative else ()), *extensions):
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(_KEY, SHA256()).public_bytes(Encoding.DER)
