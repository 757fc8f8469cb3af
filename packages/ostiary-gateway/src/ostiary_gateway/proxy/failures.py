"""The effect of an upstream failure on a request: whether to retry it, and the status for the client."""

from __future__ import annotations

from ostiary_gateway.http1.request_head import RequestHead
from ostiary_gateway.http1.response import FailureKind, UpstreamLost

REJECTED = "it rejects the gateway's own credential"
# Read-only, so they can be sent again after a connection turned out to be dead.
SAFE_METHODS = frozenset((b"GET", b"HEAD", b"OPTIONS"))


def may_repeat(request: RequestHead, error: UpstreamLost, *, sent_body: bool) -> bool:
    """Whether to retry after a pooled connection died: the request is safe and got no response."""
    return (
        not error.answered
        and not error.timeout
        and not sent_body
        and not request.upgrade
        and request.method in SAFE_METHODS
    )


def failure_status(error: UpstreamLost, *, sent_body: bool) -> int:
    """Return the status of the response that replaces the upstream's."""
    if error.kind is FailureKind.TIMEOUT:
        return 504
    if error.kind is FailureKind.CREDENTIAL:
        # The request had no effect: a retry by the client is harmless.
        return 503
    return 502 if error.answered or sent_body else 503
