"""Parse requests strictly with httptools, and report their progress to the connection.

Data that httptools rejects (two lengths, folded headers, bare line feeds) gets a 400, and the connection is closed,
because the start of the next request is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import httptools

from ostiary_gateway.http1.body import IncomingBody
from ostiary_gateway.http1.exchange import ClientConnection, Exchange
from ostiary_gateway.http1.request_head import RequestHead, RequestRefused, ServerLimits

_HEAD_END = b"\r\n\r\n"
# Up to this size, searching the data after a head for another head is cheap.
_SMALL_BODY = 16 * 1024


class Intake(ClientConnection, Protocol):
    """The connection, as seen by its request reader."""

    failed: bool

    def note_request_begins(self) -> None:
        """The first byte of a request was read; raises `RequestRefused` if the connection is closing."""

    def enqueue(self, exchange: Exchange) -> None:
        """A head is complete: begin the request, or queue it."""

    def note_body_read(self, exchange: Exchange, body: IncomingBody, now: float) -> None:
        """A part of a request's body was read."""

    def note_request_complete(self, exchange: Exchange) -> None: ...

    def begin_upgrade(self, exchange: Exchange, rest: bytes) -> bool:
        """Begin a protocol switch. *rest* is the data after the head. Return False if other requests are in flight."""

    def refuse(self, refusal: RequestRefused) -> None: ...

    def refuse_unreadable(self) -> None:
        """The data is not HTTP."""


class RequestReader:
    """The parser of one connection. `exchange` is the request being read, and `body` its body, if any."""

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
        # Created for the first head that is not cached: many connections have none.
        self._parser: httptools.HttpRequestParser | None = None
        self.exchange: Exchange | None = None
        self.body: IncomingBody | None = None
        # The latest head, and the number of heads that began in the data being read.
        self._newest: RequestHead | None = None
        self._begun = 0
        self._unfinished_bytes = 0
        self._read_size = 0
        self._in_trailers = False
        self._trailers = 0
        self._fed_body = False

    def read(self, data: bytes) -> RequestHead | None:
        """Parse *data*. Return the head if it was exactly one complete request."""
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
                # httptools wraps exceptions of callbacks.
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
        """Return where to stop parsing *data*, parsed up to *at*, so that at most one request begins.

        That is after the current body, or after a head if another one may follow.
        """
        body, exchange, size = self.body, self.exchange, len(data)
        if body is not None and exchange is not None:
            # The end of a chunked body is unknown; the connection begins no request synchronously after it.
            length = exchange.request.content_length
            return size if length is None else min(size, at + length - body.received)
        end = data.find(_HEAD_END, at) + len(_HEAD_END)
        if end < len(_HEAD_END) or end == size:
            return size
        if size - end <= _SMALL_BODY and data.find(_HEAD_END, end) < 0:
            # A head and its body are parsed, and cached, together.
            return size
        return end

    def close(self) -> None:
        """Release the connection, which is lost.

        Reader, parser and connection reference each other. Breaking the cycle frees them immediately, including the
        quarter of a megabyte that uvloop reads TLS into, instead of at the next garbage collection.
        """
        self._parser = None
        del self._connection

    # --- how long a body may take ---

    def body_deadline(self, exchange: Exchange, now: float) -> float:
        """Return when the next part of this request's body is late."""
        if self.body is None or exchange is not self.exchange:
            return now + self._limits.body_timeout
        return self.body.deadline(now)

    def restart_body(self, exchange: Exchange, now: float) -> float:
        """Like `body_deadline`, but restart the time."""
        body = self.body
        if body is None or exchange is not self.exchange:
            return now + self._limits.body_timeout
        body.restart(now)
        return body.deadline(now)

    def pause(self) -> None:
        """Suspend the body timeout: reading is paused."""
        if self.body is not None:
            self.body.pause(self._now())

    def resume(self) -> None:
        if self.body is not None:
            self.body.resume(self._now())

    # --- called by httptools ---

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
        # A head from one short read cannot be too large, and that is nearly always the case.
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
            # What follows belongs to the new protocol and goes to `_upgrade`.
            return
        body, self.body = self.body, None
        if body is not None and (data := body.take()):
            exchange.receive(data)
        self.exchange = None
        self._connection.note_request_complete(exchange)
        exchange.complete_body()

    # --- inside ---

    def _end_of_read(self, body: IncomingBody, size: int) -> None:
        """Deliver the body data of one read."""
        exchange = self.exchange
        assert exchange is not None
        data = body.take()
        if data:
            exchange.receive(data)
        now = self._now()
        body.after_read(size, now)
        self._connection.note_body_read(exchange, body, now)

    def _count_trailer(self) -> None:
        # Trailers are dropped: nothing that comes after authorization may reach the upstream.
        self._trailers += 1
        if self._trailers > self._limits.headers:
            raise RequestRefused(431, "the request has too many trailers")

    def _count_unfinished(self, size: int, *, begun: bool) -> None:
        """Count bytes of incomplete lines of a head or of trailers, which cause no callback."""
        # The part of the first read that belongs to the head is unknown; count it as 1.
        self._unfinished_bytes += size if begun else 1
        if self._unfinished_bytes > self._limits.head_bytes:
            self._connection.refuse(RequestRefused(431, "the request's head is too large"))

    def _upgrade(self, rest: bytes) -> bytes:
        """Handle an upgrade request: httptools stopped after the head. Return the data that is still HTTP."""
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            # The offer was ignored.
            return b"" if self._connection.failed else rest
        if not self._connection.begin_upgrade(exchange, rest):
            self.exchange = exchange
            message = "a protocol can only be switched when nothing else is going on"
            self._connection.refuse(RequestRefused(400, message))
        return b""
