"""Answers that came in one piece: read without a parser, and only where a parser would read the same."""

from __future__ import annotations

from typing import Any

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary_gateway.http1.fast_response_parser import MOST_LINES, WholeAnswers
from ostiary_gateway.http1.response import MOST_FRAMING, AnswerHeaders

HEADERS = AnswerHeaders()
for spelling in (b"Server", b"Date", b"Content-Type", b"Content-Length", b"Connection", b"Keep-Alive", b"Audit-Id"):
    HEADERS.learn_framing(spelling)
for spelling in (b"X-Own", b"Set-Cookie", b"Transfer-Encoding", b"Upgrade", b"Trailer", b"content-length", b"TE"):
    HEADERS.learn_framing(spelling)

whole_answer = WholeAnswers(HEADERS).read

OK = b"HTTP/1.1 200 OK\r\n"


def test_a_plain_answer_is_read() -> None:
    data = OK + b"Server: nginx\r\nContent-Type: text/plain\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nhi"
    lines = OK + b"Server: nginx\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n"
    assert whole_answer(data) == (200, lines, b"hi")
    assert whole_answer(data) == (200, lines, b"hi"), "the second time it is remembered"


def test_what_is_meant_for_us_does_not_go_on() -> None:
    data = OK + b"Audit-Id: theirs\r\nKeep-Alive: timeout=5\r\nContent-Length: 0\r\n\r\n"
    assert whole_answer(data) == (200, OK + b"Content-Length: 0\r\n", b"")


NOT_MINE = {
    "nothing": b"",
    "no end": OK + b"Content-Length: 2\r\n",
    "a part of the body": OK + b"Content-Length: 3\r\n\r\nhi",
    "more than the body": OK + b"Content-Length: 1\r\n\r\nhi",
    "no length": OK + b"Server: nginx\r\n\r\n",
    "two lengths": OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi",
    "two spellings of a length": OK + b"Content-Length: 2\r\ncontent-length: 2\r\n\r\nhi",
    "a length with zeros before it": OK + b"Content-Length: 02\r\n\r\nhi",
    "a length with a sign": OK + b"Content-Length: +2\r\n\r\nhi",
    "a length with a blank": OK + b"Content-Length:  2\r\n\r\nhi",
    "chunks": OK + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "the end of the connection": OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n",
    "another protocol": OK + b"Upgrade: websocket\r\nContent-Length: 0\r\n\r\n",
    "trailers": OK + b"Trailer: X\r\nContent-Length: 0\r\n\r\n",
    "a cookie": OK + b"Set-Cookie: ostiary-session=x\r\nContent-Length: 0\r\n\r\n",
    "a name that nobody has seen": OK + b"X-Never-Seen-Before: 1\r\nContent-Length: 0\r\n\r\n",
    "a name with a blank": OK + b"Server : nginx\r\nContent-Length: 0\r\n\r\n",
    "a folded line": OK + b"Server: nginx\r\n more: x\r\nContent-Length: 0\r\n\r\n",
    "no colon": OK + b"Server\r\nContent-Length: 0\r\n\r\n",
    "a bare line feed": OK + b"Server: a\nX-Own: b\r\nContent-Length: 0\r\n\r\n",
    "a bare carriage return": OK + b"Server: a\rX-Own: b\r\nContent-Length: 0\r\n\r\n",
    "a zero": OK + b"Server: a\0\r\nContent-Length: 0\r\n\r\n",
    "an interim answer": b"HTTP/1.1 100 Continue\r\nContent-Length: 0\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
    "not modified": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 0\r\n\r\n",
    "other words": b"HTTP/1.1 200 Fine\r\nContent-Length: 0\r\n\r\n",
    "an old version": b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "an empty line first": b"\r\n" + OK + b"Content-Length: 0\r\n\r\n",
    "too many lines": OK + b"Server: a\r\n" * 80 + b"Content-Length: 0\r\n\r\n",
}


def test_anything_else_is_left_to_the_parser(subtests: pytest.Subtests) -> None:
    for case, data in NOT_MINE.items():
        with subtests.test(case):
            assert whole_answer(data) is None
            assert whole_answer(data) is None


class Parsed:
    """The same answer, as httptools reads it."""

    def __init__(self, data: bytes) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.body, self.ends = b"", 0
        parser: Any = httptools.HttpResponseParser(self)
        parser.feed_data(data)
        self.status = parser.get_status_code()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.ends += 1


PIECES = (
    *(
        b"Server: nginx\r\n",
        b"Date: today\r\n",
        b"X-Own: \xfc\t1\r\n",
        b"X-Own: 1 \r\n",
        b"X-Own:1\r\n",
        b"X-Own: \r\n",
    ),
    *(b"Content-Length: 2\r\n", b"Content-Length: 0\r\n", b"content-length: 2\r\n", b"Content-Length: 2 \r\n"),
    *(b"Connection: keep-alive\r\n", b"Connection: Keep-Alive\r\n", b"Connection: close\r\n", b"Audit-Id: 1\r\n"),
    *(
        b"Transfer-Encoding: chunked\r\n",
        b"TE: x\r\n",
        b"X-Own: \r\n",
        b"\r\n",
        b"\n",
        b"hi",
        b" x\r\n",
        b"Set-Cookie: a=b\r\n",
    ),
)


@given(
    st.sampled_from((OK, b"HTTP/1.1 404 Not Found\r\n", b"HTTP/1.1 500 Oh\r\n")),
    st.lists(st.sampled_from(PIECES), max_size=7).map(b"".join),
    st.sampled_from((b"", b"hi", b"hi!")),
)
@settings(max_examples=400, deadline=None)
def test_what_it_reads_a_parser_reads_alike(status: bytes, lines: bytes, body: bytes) -> None:
    """H1."""
    answer = whole_answer(status + lines + b"\r\n" + body)
    if answer is None:
        return
    parsed = Parsed(status + lines + b"\r\n" + body)
    assert parsed.ends == 1
    assert (answer[0], answer[2]) == (parsed.status, parsed.body)
    lines_read = answer[1].removesuffix(b"\r\n").split(b"\r\n")[1:]
    passed = [line.partition(b": ")[::2] for line in lines_read if not line.lower().startswith(b"content-length")]
    kept = [line.removesuffix(b"\r\n").partition(b": ")[::2] for line in HEADERS.lines(parsed.headers)]
    assert [(name, value.strip(b" \t")) for name, value in passed] == [(n, v.strip(b" \t")) for n, v in kept]


def test_what_is_remembered_is_bounded_and_does_not_change_what_is_read() -> None:
    """T2."""
    headers = AnswerHeaders()
    for number in range(2 * MOST_FRAMING):
        headers.learn_framing(b"X-%d" % number)
    assert len(headers.framing) == MOST_FRAMING
    headers = AnswerHeaders()
    headers.learn_framing(b"Content-Length")
    headers.learn_framing(b"X-Own")
    answers = WholeAnswers(headers)
    for number in range(2 * MOST_LINES + 1):
        line = b"X-Own: %d" % number
        read = answers.read(OK + line + b"\r\nContent-Length: 0\r\n\r\n")
        assert read == (200, OK + line + b"\r\nContent-Length: 0\r\n", b"")
