"""Any bytes at all at both parsers: nothing escapes, and nothing is handled that a strict reader would not accept.

`one_input` takes bytes and raises if something is wrong; see README.md here for how to drive it with a fuzzer. The
first byte says what to do with the rest: which parser, how the bytes are cut, when a request is answered.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary_gateway.http1.client_connection import UpstreamConnection
from ostiary_gateway.http1.exchange import Exchange
from ostiary_gateway.http1.fast_response_parser import WholeAnswers
from ostiary_gateway.http1.request_head import UPGRADES, KnownHeads, ServerLimits
from ostiary_gateway.http1.response import AnswerHeaders, Framing, UpstreamLost
from ostiary_gateway.http1.server_connection import Server
from ostiary_gateway.http1.write_coalescer import Outbox
from tests.support.http1 import Headers, Malformed, parse_head

CORPUS = Path(__file__).parent / "corpus" / "http1"

# --- a strict reader, of one whole text and without a state machine ---

# llhttp takes several blanks, and two more names of protocols. What goes on is written anew, so neither matters there.
_REQUEST_LINE = re.compile(rb"([A-Z-]+) +([\x21-\x7e]+) +(?:HTTP|RTSP|ICE)/(1\.[01])")
_STATUS_LINE = re.compile(rb"(?:HTTP|RTSP|ICE)/1\.([01]) ([1-9]\d\d)(?: [^\r\n]*)?")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]+)(?:;[^\r\n]*)?")


class Incomplete(Exception):
    """More bytes would be needed."""


@dataclass
class Strict:
    """One message."""

    method: bytes
    target: bytes
    headers: Headers
    status: int = 0
    body: bytes = b""
    whole: bool = True

    def tokens(self, name: bytes) -> list[bytes]:
        lists = [value for key, value in self.headers if key.lower() == name]
        return [part.strip().lower() for line in lists for part in line.split(b",")]

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]


def _head(data: bytes) -> tuple[bytes, Headers, bytes]:
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end:
        raise Incomplete
    message = parse_head(head)
    return message.start, message.headers, rest


def _length(message: Strict) -> int | None:
    lengths, codings = message.values(b"content-length"), message.values(b"transfer-encoding")
    if len(lengths) + len(codings) > 1:
        raise Malformed("two ways to find the end")
    if codings and codings[0].lower() != b"chunked":
        raise Malformed("unknown coding")
    if lengths and not re.fullmatch(rb"[0-9]+", lengths[0]):
        raise Malformed("no length")
    return -1 if codings else int(lengths[0]) if lengths else None


def _sized(data: bytes, size: int) -> tuple[bytes, bytes]:
    if len(data) < size:
        raise Incomplete
    return data[:size], data[size:]


def _line(data: bytes) -> tuple[bytes, bytes]:
    line, end, rest = data.partition(b"\r\n")
    if not end:
        raise Incomplete
    return line, rest


def _chunks(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        line, data = _line(data)
        size = _CHUNK_LINE.fullmatch(line)
        if size is None:
            raise Malformed("no size")
        part, data = _sized(data, int(size[1], 16))
        body += part
        if not part:
            break
        empty, data = _line(data)
        if empty:
            raise Malformed("a chunk is longer than it says")
    trailers, end, rest = (b"\r\n" + data).partition(b"\r\n\r\n")
    if not end:
        raise Incomplete
    if trailers:
        parse_head(b"GET / HTTP/1.1" + trailers)
    return body, rest


def strict_requests(data: bytes) -> Iterator[Strict]:
    """The requests in *data*, as far as they can be read in only one way. The last one may lack some of its body."""
    while True:
        data = data.lstrip(b"\r\n")
        try:
            start, headers, data = _head(data)
            line = _REQUEST_LINE.fullmatch(start)
            if line is None:
                return
            message = Strict(line[1], line[2], headers)
            length = _length(message)
            hosts = message.values(b"host")
            old = line[3] == b"1.0"
            if not all(hosts) or len(hosts) > 1 or (not hosts and not old) or (old and length == -1):
                return
            upgrade = b"upgrade" in message.tokens(b"connection") and message.values(b"upgrade") != []
            if upgrade and length and any(message.values(b"upgrade")):
                return
        except (Malformed, Incomplete):
            return
        try:
            if length is not None:
                message.body, data = _chunks(data) if length == -1 else _sized(data, length)
        except (Malformed, Incomplete):
            message.whole = False
        yield message
        closes = b"close" in message.tokens(b"connection")
        switches = upgrade and not old and not UPGRADES.isdisjoint(message.tokens(b"upgrade"))
        if not message.whole or closes or switches:
            return
        if old and b"keep-alive" not in message.tokens(b"connection"):
            return


def strict_answer(data: bytes) -> tuple[Strict, bytes]:
    """The one answer in *data* and what follows it; raises `Malformed` or `Incomplete`."""
    while True:
        # llhttp does not look at the words of a status line, and they are not passed on.
        words, end, rest = data.lstrip(b"\r\n").partition(b"\r\n")
        start, headers, data = _head(words.replace(b"\0", b"?") + end + rest)
        line = _STATUS_LINE.fullmatch(start)
        if line is None:
            raise Malformed("no status line")
        message = Strict(b"", b"", headers, int(line[2]))
        length = _length(message)
        if message.status >= 200:
            break
    if message.status in (204, 304):
        return message, data
    if length is None:
        raise Incomplete
    message.body, data = _chunks(data) if length == -1 else _sized(data, length)
    return message, data


# --- both parsers, in memory ---


class Transport:
    """What a socket would do, at once."""

    def __init__(self) -> None:
        self.written = b""
        self.closing = False
        self.reading = True

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def write(self, data: bytes) -> None:
        if not self.closing:
            self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Taker:
    """Takes the body of a request and answers when it is whole, or when the test says so."""

    def __init__(self, exchange: Exchange, *, at_once: bool) -> None:
        self.exchange, self.at_once = exchange, at_once
        self.parts: list[bytes] = []
        self.ends = self.lost = 0
        exchange.accept_body(self)

    def body(self, data: bytes) -> None:
        assert not self.ends or self.exchange.request.upgrade
        self.parts.append(data)

    def body_end(self) -> None:
        self.ends += 1
        if self.at_once:
            self.answer()

    def answer(self) -> None:
        if not self.exchange.head_sent and not self.exchange.gone:
            self.exchange.respond(200, [], b"ok")

    def client_lost(self) -> None:
        self.lost += 1

    def client_full(self) -> None: ...

    def client_ready(self) -> None: ...


# A loop that does at once what is to be done soon.
_NOW = {"time": staticmethod(lambda: 0.0), "call_soon": staticmethod(lambda work: work())}
LOOP = cast("asyncio.AbstractEventLoop", type("Loop", (), _NOW)())
KNOWN = KnownHeads()
LIMITS = ServerLimits(head_bytes=2000, headers=20, pipelined=3)


def server_input(data: bytes, *, cut: int, manner: int) -> None:
    handled: list[Exchange] = []
    takers: list[Taker] = []

    def handle(exchange: Exchange) -> None:
        handled.append(exchange)
        # Wanted again: whatever comes twice must be understood alike when it is not parsed.
        exchange.request.known = True
        if manner == 0:
            exchange.respond(401, [], b"no")
        else:
            takers.append(Taker(exchange, at_once=manner == 1))

    server = Server(handle, LIMITS, LOOP)
    server.known = KNOWN
    connection = server.connection()
    transport = Transport()
    connection.connection_made(cast("asyncio.Transport", transport))
    for start in range(0, len(data), cut):
        for taker in takers if manner == 2 or not transport.reading else ():
            if taker.ends or manner == 3:
                taker.answer()
        if transport.closing or not transport.reading:
            break
        connection.data_received(data[start : start + cut])
    connection.time_out()
    connection.connection_lost(None)
    assert not server.connections
    assert all(taker.ends <= 1 and taker.lost <= 1 for taker in takers)
    _compare(handled, takers, list(strict_requests(data)))
    _check_answers(transport.written, handled)


def _compare(handled: list[Exchange], takers: list[Taker], accepted: list[Strict]) -> None:
    assert len(handled) <= len(accepted)
    for exchange, strict in zip(handled, accepted, strict=False):
        assert (exchange.request.method, exchange.request.target) == (strict.method, strict.target)
        assert [(name, value.strip(b" \t")) for name, value in exchange.request.headers] == strict.headers
    for taker, strict in zip(takers, accepted, strict=False):
        body = b"".join(taker.parts)
        if not taker.exchange.request.upgrade:
            assert strict.body == body if taker.ends else strict.body.startswith(body) or not strict.whole


def _check_answers(written: bytes, handled: list[Exchange]) -> None:
    """Whole answers, no more than there were requests and one refusal, and none after the last word."""
    count, closed = 0, False
    while written:
        assert not closed
        start, headers, written = _head(written)
        if start.startswith(b"HTTP/1.1 100 "):
            continue
        answer = Strict(b"", b"", headers)
        closed = answer.values(b"connection") == [b"close"]
        if count >= len(handled) or handled[count].request.method != b"HEAD":
            _, written = _sized(written, _length(answer) or 0)
        elif closed:
            # A refusal says why, whatever the method.
            written = b""
        count += 1
    assert count <= len(handled) + 1


@dataclass
class FakePool:
    """Keeps what it is given."""

    given_back: list[UpstreamConnection] = field(default_factory=list)
    outbox: Outbox = field(default_factory=lambda: Outbox(LOOP))
    now: Callable[[], float] = lambda: 0.0
    answer_headers: AnswerHeaders = field(default_factory=AnswerHeaders)

    def __post_init__(self) -> None:
        self.whole_answers = WholeAnswers(self.answer_headers)

    def give_back(self, connection: UpstreamConnection) -> None:
        self.given_back.append(connection)

    def forget(self, connection: UpstreamConnection) -> None: ...


class Heard:
    """A receiver that must be told things in order, and one end."""

    def __init__(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        self.status, self.body, self.ends, self.interim = 0, b"", 0, 0
        self.framing: Framing | None = None

    def response_whole(self, status: int, lines: bytes, body: bytes) -> None:
        assert not self.status
        assert not self.ends
        self.status, self.body = status, body
        self.ends += 1

    def response_head(self, status: int, headers: Headers, framing: Framing) -> None:
        assert not self.status
        assert not self.ends
        self.status, self.framing = status, framing

    def response_informational(self, status: int, headers: Headers) -> None:
        assert not self.status
        self.interim += 1

    def response_body(self, data: bytes) -> None:
        assert self.status
        assert not self.ends
        self.body += data

    def response_flush(self) -> None:
        assert not self.ends

    def response_end(self, trailers: Headers) -> None:
        assert self.status
        self.ends += 1
        if self.framing is not None and self.framing.kind == Framing.LENGTH:
            assert len(self.body) == self.framing.length
        if self.framing is not None and self.framing.kind == Framing.NONE:
            assert self.body == b""

    def response_switched(self, rest: bytes) -> None:
        assert not self.status
        self.ends += 1
        self._connection.detach()

    def upstream_lost(self, error: UpstreamLost) -> None:
        self.ends += 1

    def upstream_full(self) -> None: ...

    def upstream_ready(self) -> None: ...


def client_input(data: bytes, *, cut: int, is_head: bool) -> None:
    pool = FakePool()
    connection = UpstreamConnection(pool)
    transport = Transport()
    connection.connection_made(cast("asyncio.Transport", transport))
    heard = Heard(connection)
    connection.send(b"", heard, is_head=is_head)
    fed = 0
    while fed < len(data) and not transport.closing and not heard.ends:
        connection.data_received(data[fed : fed + cut])
        fed += cut
    if pool.given_back:
        # Used again: then there was one answer, whole, and not a byte more.
        assert pool.given_back == [connection]
        if not is_head:
            answer, rest = strict_answer(data[:fed])
            assert (answer.status, answer.body, rest.strip(b"\r\n")) == (heard.status, heard.body, b"")
        connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        assert transport.closing
    connection.connection_lost(None)
    assert heard.ends == 1


def one_input(data: bytes) -> None:
    if len(data) < 2:
        return
    choice, rest = data[0], data[1:]
    cut = (1, 7, 64, 1 << 20)[choice >> 1 & 3]
    if choice & 1:
        client_input(rest, cut=cut, is_head=bool(choice & 8))
    else:
        server_input(rest, cut=cut, manner=choice >> 3 & 3)


# --- in the test run ---

REQUEST_PIECES = (
    *(b"GET / HTTP/1.1\r\n", b"POST /a HTTP/1.1\r\n", b"PUT /b?c HTTP/1.0\r\n", b"GET /  RTSP/1.1\r\n"),
    *(b"\r\n", b"\n", b"\r", b" ", b"\0", b":", b"Content-Length: 4\r\n", b"Transfer-Encoding: chunked\r\n"),
    *(b"body", b"4\r\nbody\r\n", b"0\r\n\r\n", b"0\r\n", b"Connection: close\r\n", b"X: y\r\n", b"Host: a\r\n"),
    *(b"Connection: upgrade\r\n", b"Upgrade: websocket\r\n", b"Upgrade: h2c\r\n", b"Expect: 100-continue\r\n"),
    *(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"HEAD / HTTP/1.1\r\nHost: a\r\n"),
)
ANSWER_PIECES = (
    *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 103 Early\r\n", b"HTTP/1.1 204 No\r\n", b"HTTP/1.1 101 Switch\r\n"),
    *(b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 304 Not\r\n", b"HTTP/1.1 199 X\r\n", b"HTTP/1.1 000 X\r\n"),
    *(b"HTTP/2.0 200\r\n", b"\r\n", b"\n", b"\0", b"Content-Length: 4\r\n", b"Content-Length: 0\r\n", b"X: y\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"body", b"4\r\nbody\r\n", b"0\r\n\r\n", b"Connection: close\r\n"),
    b"Connection: upgrade\r\nUpgrade: websocket\r\n",
)


def corpus() -> list[bytes]:
    return [path.read_bytes() for path in sorted(CORPUS.iterdir())]


def test_the_saved_inputs() -> None:
    """P6."""
    saved = corpus()
    assert len(saved) > 50
    for data in saved:
        for choice in range(32):
            one_input(bytes([choice & ~1 | data[0] & 1]) + data[1:])


@given(st.integers(0, 255), st.lists(st.sampled_from(REQUEST_PIECES), max_size=10).map(b"".join))
@settings(max_examples=250, deadline=None)
def test_requests_out_of_pieces(choice: int, data: bytes) -> None:
    """P6."""
    one_input(bytes([choice & ~1]) + data)


@given(st.integers(0, 255), st.lists(st.sampled_from(ANSWER_PIECES), max_size=10).map(b"".join))
@settings(max_examples=250, deadline=None)
def test_answers_out_of_pieces(choice: int, data: bytes) -> None:
    """P6."""
    one_input(bytes([choice | 1]) + data)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_saved_inputs_with_a_few_bytes_changed(data: st.DataObject) -> None:
    """P6."""
    saved = bytearray(data.draw(st.sampled_from(corpus())))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(saved)))
        saved[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    one_input(bytes(saved))
