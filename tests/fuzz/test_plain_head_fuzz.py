"""Heads that are read without a parser: whatever is taken for plain must be what httptools reads in it, and no more."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary_gateway.http1.fast_head_parser import PlainHeads, cut_traces, read_line
from ostiary_gateway.http1.headers import TRACES, HeaderFilter
from ostiary_gateway.http1.request_head import RequestHead, RequestRefused, ServerLimits

LIMITS = ServerLimits(headers=8)
PLAIN = PlainHeads()
FILTER = HeaderFilter()
PIECES = (
    *(
        b"GET",
        b"PUT",
        b"TRACE",
        b"PRI",
        b" ",
        b"  ",
        b"/",
        b"/a?b=c",
        b"#",
        b"*",
        b"HTTP/1.1",
        b"HTTP/1.0",
        b"HTTP/1.1 ",
    ),
    *(
        b"\r\n",
        b"\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b": ",
        b":",
        b":  ",
        b"Host",
        b"host",
        b"x",
        b"gateway.test",
        b"\t",
        b"\0",
    ),
    *(b"Content-Length", b"2", b"02", b"+2", b"2,2", b"0", b"Transfer-Encoding", b"chunked", b"Connection", b"close"),
    *(b"keep-alive", b"Keep-Alive", b"Upgrade", b"websocket", b"Expect", b"100-continue", b"Proxy-Connection", b"\xe9"),
    *(
        b"Traceparent",
        b"traceparent",
        b"TraceParent",
        b"X-Request-Id",
        b"X-Own",
        b"X Own",
        b"X-Own:",
        b"(",
        b'"',
        b"\x7f",
    ),
)
HEAD = b"GET /x HTTP/1.1\r\nHost: gateway.test\r\n"
TAIL = b"\r\nX-Request-Id: 7\r\n\r\n"


class Parsed:
    """What httptools makes of a head, by the rules of `RequestHead`."""

    def __init__(self, data: bytes) -> None:
        self.head = RequestHead()
        self.is_complete = False
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.head.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.head.add(name, value)

    def on_headers_complete(self) -> None:
        self.head.complete(self._parser, LIMITS)
        self.is_complete = True


def meaning(head: RequestHead) -> tuple[object, ...]:
    framing = (head.chunked, head.content_length, head.expects_continue, head.keep_alive, head.upgrade, head.bare)
    return (head.method, head.target, head.host, head.http10, head.headers, *framing)


def one_input(data: bytes) -> None:
    plain = PLAIN.read(data, LIMITS)
    if plain is None:
        return
    assert data.endswith(b"\r\n\r\n")
    assert data.count(b"\r\n\r\n") == 1, "nothing follows the head"
    # Were it refused, or went on after this, this would raise.
    body = b"x" * (plain.content_length or 0)
    parsed = Parsed(data + body)
    assert parsed.is_complete
    assert meaning(plain) == meaning(parsed.head)
    assert read_line(data.partition(b"\r\n")[0]) == (plain.method, plain.target)
    _check_cut(data, plain)


def _check_cut(data: bytes, plain: RequestHead) -> None:
    """Without its trace ids a head is the same head but for these, and what is forwarded is the same in the end."""
    core, lines = cut_traces(data)
    rest = PLAIN.read(core, LIMITS)
    if rest is None:
        assert lines == [] or plain.headers == []
        return
    traces = [(name, value) for name, value in plain.headers if name.lower() in TRACES]
    assert [b"%b: %b" % each for each in traces] == lines
    assert [each for each in plain.headers if each not in traces] == rest.headers
    whole, part = FILTER.scan(plain.headers), FILTER.scan(rest.headers)
    assert whole.lines == part.lines + b"".join(line + b"\r\n" for line in lines)
    assert (plain.host, plain.content_length, plain.bare) == (rest.host, rest.content_length, rest.bare)


@given(st.lists(st.sampled_from(PIECES), max_size=24).map(b"".join), st.booleans(), st.booleans())
@settings(max_examples=400, deadline=None)
def test_heads_out_of_pieces(middle: bytes, begins_well: bool, ends_well: bool) -> None:
    one_input((HEAD if begins_well else b"") + middle + (TAIL if ends_well else b""))


_names = st.sampled_from(
    (b"Host", b"Accept", b"X-Own", b"Content-Length", b"Connection", b"Traceparent", b"X-Request-ID")
)
_values = st.sampled_from(
    (b"a", b"a b", b"2", b"02", b"keep-alive", b"close", b"a  b", b" a", b"a ", b"", b"a: b", b"\xe9")
)


@given(
    st.lists(
        st.tuples(_names, st.sampled_from((b": ", b": ", b": ", b":", b" : ")), _values).map(b"".join), max_size=10
    )
)
@settings(max_examples=400, deadline=None)
def test_lines_in_any_order(lines: list[bytes]) -> None:
    one_input(b"\r\n".join((b"POST /x?y HTTP/1.1", b"Host: gateway.test", *lines, b"", b"")))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_usual_head_with_a_few_bytes_changed(data: st.DataObject) -> None:
    head = bytearray(HEAD + b"Accept: */*\r\nContent-Length: 5\r\nTraceparent: 00-ab" + TAIL)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(head)))
        head[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    one_input(bytes(head))


def test_a_usual_head_is_plain() -> None:
    head = HEAD + b"Accept: */*\r\nConnection: keep-alive\r\nContent-Length: 5\r\nTraceparent: 00-ab" + TAIL
    read = PLAIN.read(head, LIMITS)
    assert read is not None
    assert read.content_length == 5
    assert cut_traces(head)[1] == [b"Traceparent: 00-ab", b"X-Request-Id: 7"]
    one_input(head)


def test_what_is_refused_is_not_plain() -> None:
    many = HEAD + b"".join(b"X-%d: y\r\n" % number for number in range(8)) + b"\r\n"
    assert PLAIN.read(many, LIMITS) is None
    with pytest.raises(httptools.HttpParserCallbackError) as error:
        Parsed(many)
    assert isinstance(error.value.__context__, RequestRefused)
