"""Which requests may go on: they name the listener, come from no page, and have the token. All three, always."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.core.clock import SYSTEM_CLOCK
from ostiary_gateway.http1.request_head import RequestHead
from ostiary_gateway.local_proxy.forwarding import (
    BROWSER,
    NOT_A_PATH,
    UNAUTHORIZED,
    WRONG_HOST,
    RequestRefusal,
    refusal_for,
)
from ostiary_gateway.local_proxy.loopback_tokens import LoopbackTokens

HOST = b"127.0.0.1:23456"
TOKENS = LoopbackTokens(SYSTEM_CLOCK)


def good() -> bytes:
    return b"Bearer " + TOKENS.current().token.reveal().encode()


def head(*headers: tuple[bytes, bytes], host: bytes = HOST, target: bytes = b"/api") -> RequestHead:
    request = RequestHead()
    request.host, request.target, request.headers = host, target, list(headers)
    return request


def judge(request: RequestHead, authorization: bytes | None) -> RequestRefusal | None:
    return refusal_for(request, authorization, host=HOST, tokens=TOKENS)


def test_a_program_with_the_token_passes() -> None:
    assert judge(head(), good()) is None
    assert judge(head(), good().replace(b"Bearer", b"bearer")) is None
    # Some WebSocket libraries send the server's own.
    assert judge(head((b"Origin", b"https://127.0.0.1:23456")), good()) is None
    # Node's fetch says how it asks, but not from where.
    assert judge(head((b"Sec-Fetch-Mode", b"cors")), good()) is None


@pytest.mark.parametrize("host", [b"", b"127.0.0.1", b"localhost:23456", b"127.0.0.1:23457", b"evil.example:23456"])
def test_another_host_is_refused_whatever_it_has(host: bytes) -> None:
    assert judge(head(host=host), good()) is WRONG_HOST


def test_a_page_is_refused_whatever_it_has(subtests: pytest.Subtests) -> None:
    cases: list[tuple[bytes, bytes]] = [
        (b"Origin", b"https://evil.example"),
        (b"origin", b"null"),
        (b"ORIGIN", b"http://127.0.0.1:23456"),
        (b"Origin", b""),
        (b"Sec-Fetch-Site", b"same-origin"),
        (b"sec-fetch-site", b"cross-site"),
    ]
    for header in cases:
        with subtests.test(header=header):
            assert judge(head(header), good()) is BROWSER
            assert judge(head((b"Origin", b"https://127.0.0.1:23456"), header), good()) is BROWSER


def test_without_the_token_it_is_refused(subtests: pytest.Subtests) -> None:
    for authorization in [None, b"", b"Bearer", b"Bearer ", b"Basic QTpC", b"Token x", b"bearer\tx"]:
        with subtests.test(authorization=authorization):
            assert judge(head(), authorization) is UNAUTHORIZED


@pytest.mark.parametrize("target", [b"*", b"http://metadata.internal/", b"127.0.0.1:80", b""])
def test_what_is_no_path_is_refused(target: bytes) -> None:
    assert judge(head(target=target), good()) is NOT_A_PATH


@given(
    authorization=st.none() | st.binary(max_size=80),
    host=st.just(HOST) | st.binary(max_size=30),
    headers=st.lists(st.tuples(st.sampled_from([b"Origin", b"Accept"]), st.binary(max_size=20)), max_size=3),
)
def test_nothing_but_the_token_opens(
    authorization: bytes | None, host: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    assert judge(head(*headers, host=host), authorization) is not None
