"""Whether a question comes from the proxy of the door: by the secret in its header, or by its client certificate.

Called by the handler for every question. Without this check the door would tell anybody what anybody may do.
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


# Questions at doors that say nothing about a request: each is counted, and logged once in a while.
#
# Used by the handlers of all kinds of doors. What was asked is not logged: it may be anything.

log = logging.getLogger("ostiary.gateway")


class InvalidRequestLog:
    """Those of one handler."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._log = RepeatedLog(log, clock)

    def record(self, door: str, result: str, cause: str, address: str) -> None:
        """*result* is the label of the metric, and *cause* for the operator; *address* is who asks."""
        self._metrics.door_questions.inc(door, result)
        fields = {"door": door, "cause": cause, "address": address}
        self._log.write(logging.WARNING, "a door was asked in vain", fields)
