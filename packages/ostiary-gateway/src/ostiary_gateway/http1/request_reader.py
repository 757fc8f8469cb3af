"""Reads requests from a connection's bytes, and reports to the connection how far each has come.

Owned by `server.connection`. httptools parses, strictly: what it refuses (two lengths, folded headers, bare line
feeds) is answered 400 and the connection closed, because nobody can say where the next request begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import httptools

from ostiary_gateway.http1.body import IncomingBody
from ostiary_gateway.http1.exchange import ClientConnection, Exchange
from ostiary_gateway.http1.request_head import RequestHead, RequestRefused, ServerLimits

_HEAD_END = b"\r\n\r\n"
# Up to this size it costs little to look for another head in what follows one.
_SMALL_BODY = 16 * 1024


class Intake(ClientConnection, Protocol):
    """The connection, as the reader of its requests sees it."""

    failed: bool

    def note_request_begins(self) -> None:
        """The first byte of a request has come; raises `RequestRefused` if the connection is closing."""

    def enqueue(self, exchange: Exchange) -> None:
        """A request's head is complete: begin it, or let it wait for its turn."""

    def note_body_read(self, exchange: Exchange, body: IncomingBody, now: float) -> None:
        """A part of a request's body has been read."""

    def note_request_complete(self, exchange: Exchange) -> None: ...

    def begin_upgrade(self, exchange: Exchange, rest: bytes) -> bool:
        """The request asks to switch protocols, and *rest* came after it; False if other requests are under way."""

    def refuse(self, refusal: RequestRefused) -> None: ...

    def refuse_unreadable(self) -> None:
        """What came is not HTTP."""


class RequestReader:
    """The parser of one connection. `exchange` is the request that is being read, `body` its body, if it has one."""

    __slots__ = (
        "_begun",
        "_connection",
        "_fed_body",
        "_in_trailers",
        "_limits",
        "_newest",
        "_now",
        "_parser",
        "_read_size",
        "_trailers",
        "_unfinished_bytes",
        "body",
        "exchange",
    )

    def __init__(self, connection: Intake, limits: ServerLimits, now: Callable[[], float]) -> None:
        self._connection = connection
        self._limits = limits
        self._now = now
        # Made for the first head that is not known by its bytes: many connections have none.
        self._parser: httptools.HttpRequestParser | None = None
        self.exchange: Exchange | None = None
        self.body: IncomingBody | None = None
        # The head that was begun last, and how many were begun in the bytes being read.
        self._newest: RequestHead | None = None
        self._begun = 0
        self._unfinished_bytes = 0
        self._read_size = 0
        self._in_trailers = False
        self._trailers = 0
        self._fed_body = False

    def read(self, data: bytes) -> RequestHead | None:
        """Parse *data*; returns the head if this was one whole request and nothing else."""
        parser = self._parser
        if parser is None:
            parser = self._parser = httptools.HttpRequestParser(self)
        while data:
            before = self.exchange
            self._begun = 0
            self._fed_body = False
            self._read_size = len(data)
            try:
                parser.feed_data(data)
                if self.body is not None:
                    self._end_of_read(self.body, len(data))
            except RequestRefused as refusal:
                self._connection.refuse(refusal)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._upgrade(data[upgrade.args[0] :])
                continue
            except httptools.HttpParserCallbackError as error:
                # httptools wraps what a callback of ours raises.
                cause = error.__context__
                if not isinstance(cause, RequestRefused):
                    raise
                self._connection.refuse(cause)
            except httptools.HttpParserError:
                self._connection.refuse_unreadable()
            else:
                if self.exchange is None:
                    return self._newest if before is None and self._begun == 1 else None
                if not self._fed_body:
                    self._count_unfinished(len(data), begun=self.exchange is before)
            return None
        return None

    def part_end(self, data: bytes, at: int) -> int:
        """Where to stop parsing *data*, which was parsed up to *at*, so that no more than one request is begun.

        Behind the body that is being read, or behind a head if another one may follow.
        """
        body, exchange, size = self.body, self.exchange, len(data)
        if body is not None and exchange is not None:
            # Where a chunked body ends is unknown; of what follows it, the connection begins no request at once.
            length = exchange.request.content_length
            return size if length is None else min(size, at + length - body.received)
        end = data.find(_HEAD_END, at) + len(_HEAD_END)
        if end < len(_HEAD_END) or end == size:
            return size
        if size - end <= _SMALL_BODY and data.find(_HEAD_END, end) < 0:
            # A head and its body are parsed together, and recognised together.
            return size
        return end

    def close(self) -> None:
        """The connection is lost, and nothing is read any more.

        Reader, parser and connection refer to each other. Let go of here, all that belongs to a connection is freed at
        once, with the quarter of a megabyte that uvloop reads TLS into; otherwise with the next garbage collection.
        """
        self._parser = None
        del self._connection

    # --- how long a body may take ---

    def body_deadline(self, exchange: Exchange, now: float) -> float:
        """When the next part of this request's body is too late."""
        if self.body is None or exchange is not self.exchange:
            return now + self._limits.body_timeout
        return self.body.deadline(now)

    def restart_body(self, exchange: Exchange, now: float) -> float:
        """The same, from now on: what the client took before does not count."""
        body = self.body
        if body is None or exchange is not self.exchange:
            return now + self._limits.body_timeout
        body.restart(now)
        return body.deadline(now)

    def pause(self) -> None:
        """Nothing is read from here on, and the client is not blamed for the time that takes."""
        if self.body is not None:
            self.body.pause(self._now())

    def resume(self) -> None:
        if self.body is not None:
            self.body.resume(self._now())

    # --- httptools calls these ---

    def on_message_begin(self) -> None:
        self._connection.note_request_begins()
        self._newest = request = RequestHead()
        self.exchange = Exchange(self._connection, request)
        self._begun += 1
        self._trailers = 0
        self._unfinished_bytes = 0

    def on_url(self, url: bytes) -> None:
        exchange = self.exchange
        assert exchange is not None
        exchange.request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        exchange = self.exchange
        assert exchange is not None
        if self._in_trailers:
            self._count_trailer()
        else:
            exchange.request.add(name, value)

    def on_headers_complete(self) -> None:
        exchange = self.exchange
        assert exchange is not None
        request, limits = exchange.request, self._limits
        assert self._parser is not None
        request.complete(self._parser, limits)
        # A head that came with one short read cannot be too large, and nearly all do.
        if (self._unfinished_bytes or self._read_size > limits.head_bytes) and request.size > limits.head_bytes:
            raise RequestRefused(431, "the request's head is too large")
        exchange.take_head()
        self._in_trailers = True
        self.body = IncomingBody(limits, self._now(), chunked=request.chunked) if request.has_body else None
        self._connection.enqueue(exchange)

    def on_body(self, data: bytes) -> None:
        body = self.body
        assert body is not None
        body.add(data)
        if not self._fed_body:
            self._fed_body = True
            self._unfinished_bytes = 0

    def on_message_complete(self) -> None:
        exchange = self.exchange
        assert exchange is not None
        self._in_trailers = False
        if exchange.request.upgrade:
            # What follows belongs to the new protocol; `_upgrade` gets it.
            return
        body, self.body = self.body, None
        if body is not None and (data := body.take()):
            exchange.receive(data)
        self.exchange = None
        self._connection.note_request_complete(exchange)
        exchange.complete_body()

    # --- inside ---

    def _end_of_read(self, body: IncomingBody, size: int) -> None:
        """One read of a body is over: hand on all that came with it."""
        exchange = self.exchange
        assert exchange is not None
        data = body.take()
        if data:
            exchange.receive(data)
        now = self._now()
        body.after_read(size, now)
        self._connection.note_body_read(exchange, body, now)

    def _count_trailer(self) -> None:
        # They are dropped: nothing that comes after the decision may reach the upstream.
        self._trailers += 1
        if self._trailers > self._limits.headers:
            raise RequestRefused(431, "the request has too many trailers")

    def _count_unfinished(self, size: int, *, begun: bool) -> None:
        """Count bytes of a head, or of trailers, whose lines are incomplete: no callback came for them yet."""
        # How much of its first read belongs to a head is unknown; 1 stands for it, and says that there was one.
        self._unfinished_bytes += size if begun else 1
        if self._unfinished_bytes > self._limits.head_bytes:
            self._connection.refuse(RequestRefused(431, "the request's head is too large"))

    def _upgrade(self, rest: bytes) -> bytes:
        """The client asks to switch protocols: httptools stopped after the head. Returns what is HTTP still."""
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            # An offer that we ignored.
            return b"" if self._connection.failed else rest
        if not self._connection.begin_upgrade(exchange, rest):
            self.exchange = exchange
            message = "a protocol can only be switched when nothing else is going on"
            self._connection.refuse(RequestRefused(400, message))
        return b""
