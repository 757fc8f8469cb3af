from __future__ import annotations

import pytest

from ostiary_gateway.http1.headers import FilteredHeaders
from ostiary_gateway.proxy.browsers import forward_authorization
from ostiary_gateway.sessions import API_PREFIX, new_token


def forwarded(authorization: bytes | None) -> bytes:
    scanned = FilteredHeaders()
    scanned.lines, scanned.authorization = b"A: b\r\n", authorization
    forward_authorization(scanned)
    assert scanned.authorization is None
    assert scanned.lines.startswith(b"A: b\r\n")
    return scanned.lines[len(b"A: b\r\n") :]


@pytest.mark.parametrize("value", [b"Basic YTpi", b"Bearer its-own", b"Bearer", b"Digest a=b"])
def test_the_applications_own_header_goes_on_as_it_is(value: bytes) -> None:
    assert forwarded(value) == b"Authorization: " + value + b"\r\n"


@pytest.mark.parametrize("prefix", [b"ost_", API_PREFIX])
def test_a_token_of_ours_does_not(prefix: bytes) -> None:
    token = new_token(prefix).reveal().encode()
    for value in (b"Bearer " + token, b"bearer  " + token, b"Token " + token, token):
        assert forwarded(value) == b""
    assert forwarded(None) == b""
