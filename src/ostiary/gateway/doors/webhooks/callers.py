"""Who may call the webhooks: a verified client certificate with a listed name, or the bearer of the configured token.

Called by the webhook handler for every call.
"""

from __future__ import annotations

import hmac

from ostiary.core.caching.bounded import Bounded
from ostiary.core.clock import Clock
from ostiary.core.tokens import digest
from ostiary.gateway.authenticate.presented_token import bearer
from ostiary.gateway.config.settings import Callers
from ostiary.gateway.http1.headers import NO_DIGEST, Scanned

# How long the token of the file is used before the file is read again.
CALLERS_SECONDS = 1.0
MOST_CERTIFICATES = 64


class WebhookCallers:
    """The configured callers. The names of the last certificates are kept, so that each is parsed once."""

    def __init__(self, configured: Callers, clock: Clock) -> None:
        self._configured = configured
        self._clock = clock
        self._token = NO_DIGEST
        self._token_until = float("-inf")
        self._names: Bounded[bytes, str] = Bounded(MOST_CERTIFICATES)

    def include(self, certificate: bytes | None, scanned: Scanned) -> bool:
        """Whether the sender is one of them; raises `OSError` if the token file cannot be read.

        *certificate* is the peer's, in DER, and *scanned* the headers of the call.
        """
        names = self._configured.names
        if certificate is not None and names and self._name(certificate) in names:
            return True
        if self._configured.token_file is None:
            return False
        if scanned.authorization is not None:
            token = bearer(scanned.authorization)
            scanned.digest = NO_DIGEST if token is None else digest(token)
        # Without the header the head is a remembered one, of which only the digest is kept.
        return hmac.compare_digest(scanned.digest, self._token_digest())

    def _name(self, certificate: bytes) -> str:
        if certificate not in self._names:
            self._names.keep(certificate, common_name(certificate))
        return self._names[certificate]

    def _token_digest(self) -> bytes:
        """The digest of the token in the file; raises `OSError` if the file cannot be read or is empty."""
        now = self._clock.monotonic()
        if now >= self._token_until:
            assert self._configured.token_file is not None
            token = self._configured.token_file.read_bytes().strip()
            if not token:
                raise OSError(0, "the file holds no token")
            self._token = digest(token)
            self._token_until = now + CALLERS_SECONDS
        return self._token


def common_name(der: bytes) -> str:
    """The one common name of a certificate that the listener has verified; empty if it has none, or several.

    Empty, too, for a certificate that is not for clients.
    """
    # Imported where it is needed: most gateways ask for no certificates.
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
