"""Authentication of the proxies that use external authorization, and the log of invalid requests.

Without it an endpoint would disclose to anyone what any user may do.
"""

from __future__ import annotations

import hmac
import logging

from ostiary.core.clock import Clock
from ostiary_gateway.authentication.callers import CallerToken, CertificateNames
from ostiary_gateway.config.extauth import Callers
from ostiary_gateway.extauth.dialects import SECRET_HEADER
from ostiary_gateway.http1.headers import NO_DIGEST, Headers
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.observability.repeated_log import RepeatedLog
from ostiary_gateway.sessions import digest


class DoorCallers:
    """The proxies of one endpoint, authenticated by a shared secret or a client certificate."""

    def __init__(self, configured: Callers, clock: Clock) -> None:
        self._names = CertificateNames(configured.names)
        self._secret = None if configured.token_file is None else CallerToken(configured.token_file, clock)

    def include(self, certificate: bytes | None, presented: bytes, at: float | None = None) -> bool:
        """Report whether the sender is one of them. Raises `OSError` if the file of the secret cannot be read.

        *certificate* is the peer's, in DER, and *presented* the result of `presented_secret`. *at* is the time of the
        monotonic clock, if the caller has it.
        """
        if certificate is not None and self._names.include(certificate):
            return True
        return self._secret is not None and hmac.compare_digest(presented, self._secret.digest(at))


def presented_secret(headers: Headers) -> bytes:
    """Return the digest of the secret in *headers*; `NO_DIGEST` if there is none or more than one."""
    secrets = [value.strip(b" \t") for name, value in headers if name.lower() == SECRET_HEADER]
    return digest(secrets[0]) if len(secrets) == 1 and secrets[0] else NO_DIGEST


log = logging.getLogger("ostiary.gateway")


class InvalidRequestLog:
    """Count invalid requests at external authorization endpoints, and log them with a rate limit.

    The content of a request is not logged: it may be anything.
    """

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._log = RepeatedLog(log, clock)

    def record(self, door: str, result: str, cause: str, address: str) -> None:
        """Record a request.

        *result* is the label of the metric, *cause* is for the operator, *address* is the sender's.
        """
        self._metrics.door_questions.inc(door, result)
        fields = {"door": door, "cause": cause, "address": address}
        self._log.write(logging.WARNING, "a door was asked in vain", fields)
