"""Whether a question comes from the proxy of the door: by the secret in its header, or by its client certificate.

Called by the handler for every question. Without this check the door would tell anybody what anybody may do.
"""

from __future__ import annotations

import hmac

from ostiary.core.clock import Clock
from ostiary.core.tokens import digest
from ostiary.gateway.config.settings import Callers
from ostiary.gateway.doors.forward.dialects import SECRET_HEADER
from ostiary.gateway.doors.known_callers import CallerToken, CertificateNames
from ostiary.gateway.http1.headers import NO_DIGEST, Headers


class DoorCallers:
    """The proxies of one door."""

    def __init__(self, configured: Callers, clock: Clock) -> None:
        self._names = CertificateNames(configured.names)
        self._secret = None if configured.token_file is None else CallerToken(configured.token_file, clock)

    def include(self, certificate: bytes | None, presented: bytes, at: float | None = None) -> bool:
        """Whether the sender is one of them; raises `OSError` if the file of the secret cannot be read.

        *certificate* is the peer's, in DER, and *presented* what `presented_secret` says of the question.
        *at* is the time by the monotonic clock, if the caller knows it.
        """
        if certificate is not None and self._names.include(certificate):
            return True
        return self._secret is not None and hmac.compare_digest(presented, self._secret.digest(at))


def presented_secret(headers: Headers) -> bytes:
    """The digest of the secret that a question presents; of no secret if it presents none, or two."""
    secrets = [value.strip(b" \t") for name, value in headers if name.lower() == SECRET_HEADER]
    return digest(secrets[0]) if len(secrets) == 1 and secrets[0] else NO_DIGEST
