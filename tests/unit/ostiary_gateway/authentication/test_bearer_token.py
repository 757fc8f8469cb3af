"""Where a request may present its token."""

from __future__ import annotations

import base64

import pytest

from ostiary_gateway.authentication.bearer_token import bearer, presented_token
from ostiary_gateway.http1.headers import BadHeader, FilteredHeaders
from ostiary_gateway.http1.request_head import RequestHead

TOKEN = b"ost_secret-of-alice"
ENCODED = base64.urlsafe_b64encode(TOKEN).rstrip(b"=")


def scanned(authorization: bytes | None = None) -> FilteredHeaders:
    result = FilteredHeaders()
    result.authorization = authorization
    return result


def websocket(*protocols: bytes, upgrade: bytes = b"websocket") -> RequestHead:
    request = RequestHead()
    request.upgrade = upgrade
    request.headers = [(b"Sec-WebSocket-Protocol", b", ".join(protocols))]
    return request


def in_protocol(encoded: bytes) -> bytes:
    return b"base64url.bearer.authorization.k8s.io." + encoded


@pytest.mark.parametrize("value", [b"Bearer t", b"bearer t", b" BEARER t\t", b"Bearer t and more"])
def test_the_token_of_a_bearer_header_is_read_as_kubernetes_reads_it(value: bytes) -> None:
    assert bearer(value) == b"t"


def test_other_forms_of_the_header_present_no_token(subtests: pytest.Subtests) -> None:
    for value in [b"", b"Bearer", b"Bearer ", b"Bearer  t", b"Basic t", b"t", b"Bearer\tt"]:
        with subtests.test(value=value):
            assert bearer(value) is None


def test_a_request_without_a_header_presents_no_token() -> None:
    assert presented_token(scanned(), RequestHead()) is None


def test_a_websocket_presents_its_token_among_its_protocols() -> None:
    assert presented_token(scanned(), websocket(in_protocol(ENCODED), b"v5.channel.k8s.io")) == TOKEN


def test_the_header_counts_before_the_protocols() -> None:
    assert presented_token(scanned(b"Bearer t"), websocket(in_protocol(ENCODED), b"v5.channel.k8s.io")) == b"t"


def test_the_protocols_count_only_for_a_websocket() -> None:
    request = websocket(in_protocol(ENCODED), b"v5.channel.k8s.io", upgrade=b"")
    assert presented_token(scanned(), request) is None


def test_a_websocket_token_that_cannot_be_decoded_is_none() -> None:
    assert presented_token(scanned(), websocket(in_protocol(b"!"), b"v5.channel.k8s.io")) is None


def test_two_tokens_are_refused() -> None:
    with pytest.raises(BadHeader):
        presented_token(scanned(), websocket(in_protocol(ENCODED), in_protocol(ENCODED), b"v5.channel.k8s.io"))
