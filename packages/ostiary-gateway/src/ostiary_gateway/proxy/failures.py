"""What a failure of an upstream means for the request: whether it is sent once more, and else which status it gets.

Called by `upstream.proxied`. Pure.
"""

from __future__ import annotations

from ostiary_gateway.http1.request_head import RequestHead
from ostiary_gateway.http1.response import FailureKind, UpstreamLost

REJECTED = "it rejects the gateway's own credential"
# Asking again changes nothing, so a connection that turned out to be dead costs the client nothing.
SAFE_METHODS = frozenset((b"GET", b"HEAD", b"OPTIONS"))


def may_repeat(request: RequestHead, error: UpstreamLost, *, sent_body: bool) -> bool:
    """Whether a request may be sent again after a pooled connection died under it: it is safe, and was not answered."""
    return (
        not error.answered
        and not error.timeout
        and not sent_body
        and not request.upgrade
        and request.method in SAFE_METHODS
    )


def failure_status(error: UpstreamLost, *, sent_body: bool) -> int:
    """The status of the answer that the client gets instead of the upstream's."""
    if error.kind is FailureKind.TIMEOUT:
        return 504
    if error.kind is FailureKind.CREDENTIAL:
        # Nothing was done: a client that asks again later does no harm.
        return 503
    return 502 if error.answered or sent_body else 503
