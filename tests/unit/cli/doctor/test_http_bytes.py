"""HTTP is read from bytes as a lenient application reads it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.cli.doctor.traffic.http_bytes import Incomplete, read_message

NAMES = st.text("abcdefgh-", min_size=1, max_size=8).filter(lambda name: name not in ("content-length",))
VALUES = st.text("abc 123;,=", max_size=12).map(str.strip)
BODIES = st.binary(max_size=200)


def _head(headers: list[tuple[str, str]], *more: str) -> bytes:
    lines = ["POST /x HTTP/1.1", *(f"{name}: {value}" for name, value in headers), *more, "", ""]
    return "\r\n".join(lines).encode()


@given(st.lists(st.tuples(NAMES, VALUES), max_size=5), BODIES, st.binary(max_size=50))
def test_a_message_with_a_length_is_read_back(headers: list[tuple[str, str]], body: bytes, rest: bytes) -> None:
    message = read_message(_head(headers, f"Content-Length: {len(body)}") + body + rest)
    assert message.first == b"POST /x HTTP/1.1"
    assert [(name.decode(), value.decode()) for name, value in message.headers[:-1]] == headers
    assert (message.body, message.rest) == (body, rest)


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=5), st.binary(max_size=50))
def test_a_message_in_chunks_is_read_back(parts: list[bytes], rest: bytes) -> None:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    trailer = b"0\r\nX-Late: 1\r\n\r\n"
    message = read_message(_head([], "Transfer-Encoding: chunked") + chunks + trailer + rest)
    assert (message.body, message.trailers, message.rest) == (b"".join(parts), ((b"X-Late", b"1"),), rest)


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=3), st.integers(0, 200))
def test_a_part_of_a_message_is_not_taken_for_all_of_it(parts: list[bytes], size: int) -> None:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    whole = _head([], "Transfer-Encoding: chunked") + chunks + b"0\r\n\r\n"
    if size < len(whole):
        with pytest.raises(Incomplete):
            read_message(whole[:size])


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_wait_for_more(data: bytes) -> None:
    with suppress(Incomplete):
        assert len(read_message(data).rest) <= len(data)


def test_who_believes_the_chunks_sees_the_request_inside() -> None:
    inner = b"GET /inner HTTP/1.1\r\nHost: x\r\n\r\n"
    lines = ("Content-Length: 99", "Transfer-Encoding: chunked")
    assert read_message(_head([], *lines) + b"0\r\n\r\n" + inner).rest == inner


@pytest.mark.parametrize("length", ["abc", "-1", "0x5", "99999999999999"])
def test_a_length_that_is_none_is_taken_for_no_body(length: str) -> None:
    assert read_message(_head([], f"Content-Length: {length}") + b"rest").rest == b"rest"


def test_lines_may_end_with_a_bare_line_feed() -> None:
    message = read_message(b"GET / HTTP/1.1\nHost: x\n\nrest")
    assert (message.headers, message.rest) == (((b"Host", b"x"),), b"rest")
