"""Parse client certificates. The listener has already verified that a trusted authority issued them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

FOR_CLIENTS = frozenset((ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE))


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """A client certificate. `common_name` is empty if there is none, or several; `digest` is its SHA-256.

    `uris` are those of the subject alternative names. `may_sign`: it is a CA, or its key may sign certificates or CRLs.
    """

    common_name: str
    organizations: tuple[str, ...]
    digest: str
    not_before: datetime
    not_after: datetime
    is_for_clients: bool
    uris: tuple[str, ...] = ()
    may_sign: bool = False

    def is_valid(self, now: datetime) -> bool:
        """Whether the certificate is valid now. The listener checked it when the connection began, maybe long ago."""
        return self.is_for_clients and self.not_before <= now <= self.not_after


def read_certificate(der: bytes) -> PeerCertificate | None:
    """Parse a DER certificate. Return None if it is invalid."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        names = _texts(certificate, NameOID.COMMON_NAME)
        return PeerCertificate(
            common_name=names[0] if len(names) == 1 else "",
            organizations=_texts(certificate, NameOID.ORGANIZATION_NAME),
            digest=hashlib.sha256(der).hexdigest(),
            not_before=certificate.not_valid_before_utc,
            not_after=certificate.not_valid_after_utc,
            is_for_clients=_is_for_clients(certificate),
            uris=_uris(certificate),
            may_sign=_may_sign(certificate),
        )
    except (ValueError, TypeError, x509.DuplicateExtension):
        return None


def _texts(certificate: x509.Certificate, name: ObjectIdentifier) -> tuple[str, ...]:
    values = (attribute.value for attribute in certificate.subject.get_attributes_for_oid(name))
    return tuple(value for value in values if isinstance(value, str))


def _uris(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(names.get_values_for_type(x509.UniformResourceIdentifier))


def _may_sign(certificate: x509.Certificate) -> bool:
    extensions = certificate.extensions
    try:
        if extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return True
    except x509.ExtensionNotFound:
        pass
    try:
        usage = extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return usage.key_cert_sign or usage.crl_sign


def _is_for_clients(certificate: x509.Certificate) -> bool:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        # By RFC 5280 it is valid for every purpose. But an authority that does not restrict it to clients may have
        # issued it for a server, whose common name is a host name.
        return False
    return any(purpose in FOR_CLIENTS for purpose in usage)
