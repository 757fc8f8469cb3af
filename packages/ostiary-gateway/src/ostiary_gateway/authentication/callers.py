"""Authenticate the callers of webhooks and external authorization: by a token from a file, or a client certificate."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ostiary.core.bounded_cache import Bounded
from ostiary.core.clock import Clock
from ostiary_gateway.http1.headers import NO_DIGEST
from ostiary_gateway.sessions import digest

# How long the file's token is cached.
CALLERS_SECONDS = 1.0
MOST_CERTIFICATES = 64


class CallerToken:
    """The token in a file. Only its digest is stored."""

    def __init__(self, file: Path, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._digest = NO_DIGEST
        self._until = float("-inf")

    def digest(self, at: float | None = None) -> bytes:
        """Return the digest of the token in the file; raises `OSError` if the file is unreadable or empty.

        *at* is the monotonic time, if the caller has it.
        """
        now = self._clock.monotonic() if at is None else at
        if now >= self._until:
            token = self._file.read_bytes().strip()
            if not token:
                raise OSError(0, "the file holds no token")
            self._digest = digest(token)
            self._until = now + CALLERS_SECONDS
        return self._digest


class CertificateNames:
    """Accepted common names of client certificates. Recent certificates are cached, so that each is parsed once."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._known: Bounded[bytes, str] = Bounded(MOST_CERTIFICATES)

    def include(self, certificate: bytes | None) -> bool:
        """Whether the peer's DER *certificate* has one of the names."""
        if certificate is None or not self._names:
            return False
        if certificate not in self._known:
            self._known.keep(certificate, common_name(certificate))
        return self._known[certificate] in self._names


def common_name(der: bytes) -> str:
    """Return the common name of a verified certificate; empty if it has none or several, or is not for clients."""
    # Imported lazily: most gateways request no client certificates.
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    certificate = x509.load_der_x509_certificate(der)
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return ""
    if not {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & set(usage):
        return ""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""
