"""When a request is sent once more, and which status tells the client that there is no answer."""

from __future__ import annotations

import pytest

from ostiary_gateway.http1.request_head import RequestHead
from ostiary_gateway.http1.response import FailureKind, UpstreamLost
from ostiary_gateway.proxy.failures import SAFE_METHODS, failure_status, may_repeat


def request(method: bytes = b"GET", upgrade: bytes = b"") -> RequestHead:
    head = RequestHead()
    head.method, head.upgrade = method, upgrade
    return head


def lost(*, answered: bool = False, kind: FailureKind = FailureKind.LOST) -> UpstreamLost:
    return UpstreamLost("it closed the connection", answered=answered, kind=kind)


@pytest.mark.parametrize("method", sorted(SAFE_METHODS))
def test_a_safe_request_that_was_not_answered_may_be_repeated(method: bytes) -> None:
    assert may_repeat(request(method), lost(), sent_body=False)


def test_a_request_that_may_change_something_is_not_repeated(subtests: pytest.Subtests) -> None:
    for method in [b"POST", b"PUT", b"PATCH", b"DELETE", b"get", b"PROPFIND"]:
        with subtests.test(method=method):
            assert not may_repeat(request(method), lost(), sent_body=False)


def test_nothing_is_repeated_that_the_upstream_may_have_begun() -> None:
    assert not may_repeat(request(), lost(answered=True), sent_body=False)
    assert not may_repeat(request(), lost(kind=FailureKind.TIMEOUT), sent_body=False)
    assert not may_repeat(request(), lost(), sent_body=True)
    assert not may_repeat(request(upgrade=b"websocket"), lost(), sent_body=False)


def test_the_status_tells_whether_asking_again_can_do_harm(subtests: pytest.Subtests) -> None:
    cases = [
        (lost(), False, 503),
        (lost(), True, 502),
        (lost(answered=True), False, 502),
        (lost(kind=FailureKind.TIMEOUT), False, 504),
        (lost(kind=FailureKind.TIMEOUT, answered=True), True, 504),
        (lost(kind=FailureKind.CREDENTIAL, answered=True), True, 503),
    ]
    for error, sent_body, status in cases:
        with subtests.test(error=error, sent_body=sent_body, status=status):
            assert failure_status(error, sent_body=sent_body) == status
