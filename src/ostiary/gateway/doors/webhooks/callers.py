"""Who may call the webhooks: a verified client certificate with a listed name, or the bearer of the configured token.

Called by the webhook handler for every call.
"""

from __future__ import annotations

import hmac

from ostiary.core.clock import Clock
from ostiary.core.tokens import digest
from ostiary.gateway.authenticate.presented_token import bearer
from ostiary.gateway.config.settings import Callers
from ostiary.gateway.doors.known_callers import CallerToken, CertificateNames
from ostiary.gateway.http1.headers import NO_DIGEST, Scanned


class WebhookCallers:
    """The configured callers."""

    def __init__(self, configured: Callers, clock: Clock) -> None:
        self._names = CertificateNames(configured.names)
        self._token = None if configured.token_file is None else CallerToken(configured.token_file, clock)

    def include(self, certificate: bytes | None, scanned: Scanned) -> bool:
        """Whether the sender is one of them; raises `OSError` if the token file cannot be read.

        *certificate* is the peer's, in DER, and *scanned* the headers of the call.
        """
        if self._names.include(certificate):
            return True
        if self._token is None:
            return False
        if scanned.authorization is not None:
            token = bearer(scanned.authorization)
            scanned.digest = NO_DIGEST if token is None else digest(token)
        # Without the header the head is a remembered one, of which only the digest is kept.
        return hmac.compare_digest(scanned.digest, self._token.digest())
