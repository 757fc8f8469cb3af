"""Which headers of an upstream's answer pass: neither framing, nor what only the gateway may set."""

from __future__ import annotations

import pytest

from ostiary_gateway.http1.response import ENCODING_HEADER, LENGTH_HEADER, MOST_ACTIONS, NOT_FRAMING, AnswerHeaders


@pytest.mark.parametrize("cookie", [b"__Host-ostiary=x", b"__Host-ostiary-login=x; Path=/", b"ostiary-login=x"])
def test_an_upstream_cannot_set_our_cookies(cookie: bytes) -> None:
    """H8."""
    assert AnswerHeaders().lines([(b"Set-Cookie", cookie), (b"set-cookie", b"a=b")]) == [b"set-cookie: a=b\r\n"]


def test_of_an_answer_the_framing_and_our_own_headers_are_left_out() -> None:
    dropped = [b"Connection", b"Transfer-Encoding", b"content-length", b"Keep-Alive", b"Upgrade", b"AUDIT-ID"]
    headers = [*((name, b"x") for name in dropped), (b"ETag", b"1"), (b"X-Remote-User", b"theirs")]
    assert AnswerHeaders().lines(headers) == [b"ETag: 1\r\n", b"X-Remote-User: theirs\r\n"]


def test_an_upstream_sets_neither_our_cookies_nor_one_without_a_name(subtests: pytest.Subtests) -> None:
    cases = [
        (b"a=b", True),
        (b"a=; Path=/", True),
        (b"=__Host-ostiary=stolen", False),
        (b" =__Host-ostiary=stolen; Path=/", False),
        (b"__Host-ostiary", False),
        (b"nameless", False),
        (b"; Path=/", False),
        (b"", False),
        (b" __Host-ostiary-session=x", False),
        (b"__host-OSTIARY=x", False),
        (b"ostiary-session=x", False),
    ]
    for cookie, passes in cases:
        with subtests.test(cookie=cookie, passes=passes):
            assert bool(AnswerHeaders().lines([(b"Set-Cookie", cookie)])) is passes


def test_framing_is_recognised_in_every_spelling() -> None:
    """H1."""
    headers = AnswerHeaders()
    for spelling in (b"Content-Length", b"content-length", b"CONTENT-LENGTH", b"cOnTeNt-LeNgTh"):
        assert headers.learn_framing(spelling) == headers.framing[spelling] == LENGTH_HEADER
    for spelling in (b"Transfer-Encoding", b"TRANSFER-encoding"):
        assert headers.learn_framing(spelling) == ENCODING_HEADER
    assert headers.learn_framing(b"Content_Length") == NOT_FRAMING


def test_many_names_neither_fill_the_memory_nor_change_what_is_dropped() -> None:
    """T2."""
    headers = AnswerHeaders()
    headers.lines([(b"X-%d" % number, b"") for number in range(2 * MOST_ACTIONS)])
    assert len(headers._actions) == MOST_ACTIONS
    assert headers.lines([(b"Audit-Id", b"theirs"), (b"Set-Cookie", b"__Host-ostiary=x"), (b"ETag", b"1")]) == [
        b"ETag: 1\r\n"
    ]
