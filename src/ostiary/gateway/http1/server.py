"""The client's side of a connection: bytes in, exchanges out, answers back in order.

Called by the event loop; calls `handle(exchange)` when a request's head is complete and its turn has come. Knows
HTTP/1.1 framing and nothing of tokens or upstreams. httptools parses, strictly: what it refuses (two lengths, folded
headers, bare line feeds) is answered 400 and the connection closed, because nobody can say where the next request
begins.

    connection --- exchange 1 (active) --- responder: whoever answers it
               `-- exchange 2 (pipelined, waits; its body is kept, and reading pauses)

A client that does not read its answers gets no further ones: the next exchange begins when it has caught up.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

import httptools

log = logging.getLogger("ostiary.gateway")

# Reading pauses while more of a body than this waits for whoever consumes it.
BODY_HIGH_WATER = 128 * 1024
# So many requests may wait for their turn before reading pauses. Not none: who does not read learns of no hang-up.
READ_AHEAD = 4
# A refused request's body is read and dropped up to here, so that the client gets to read the answer.
DISCARD_LIMIT = 256 * 1024
# Protocols that a connection may switch to. Others, h2c above all, would open a door behind the decision.
UPGRADES = frozenset({b"websocket", b"spdy/3.1"})
# How long a connection that is being closed may take to deliver what was written, in seconds.
LINGER_SECONDS = 10.0
# CONNECT would open a tunnel; TRACE would show the client the head that we sent, with our own credential in it.
_NOT_SERVED = frozenset((b"CONNECT", b"TRACE"))
# Closing with this tells the other side that the end is no good one: RST, not FIN.
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds on what a client may send, and on how long it may take (seconds)."""

    head_bytes: int = 64 * 1024
    headers: int = 100
    pipelined: int = 16
    body_bytes: float = float("inf")
    connections: float = float("inf")
    head_timeout: float = 10.0
    body_timeout: float = 60.0
    idle_timeout: float = 120.0


class Responder(Protocol):
    """Whoever answers an exchange, as its connection sees it."""

    def body(self, data: bytes) -> None:
        """A part of the request's body."""

    def body_end(self) -> None:
        """The request is complete; `Exchange.trailers` is set."""

    def client_lost(self) -> None:
        """The client went away: nothing can be answered any more."""

    def client_full(self) -> None:
        """The client does not keep up: stop producing."""

    def client_ready(self) -> None:
        """The client keeps up again."""


class Refusal(Exception):
    """The bytes are no request that can be served; the connection ends with this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Exchange:
    """One request and its answer. Header names are as the client wrote them; what is forwarded is built from them."""

    __slots__ = (
        "_waiting",
        "_waiting_size",
        "accepting",
        "body_complete",
        "chunked",
        "close_after",
        "connection",
        "content_length",
        "discarded",
        "expects_continue",
        "head_sent",
        "headers",
        "host",
        "http10",
        "method",
        "received",
        "responder",
        "target",
        "trailers",
        "upgrade",
    )

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self.method = b""
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.host = b""
        self.http10 = False
        self.chunked = False
        self.content_length: int | None = None
        self.expects_continue = False
        self.upgrade = b""
        self.trailers: list[tuple[bytes, bytes]] = []
        self.body_complete = False
        self.close_after = False
        self.head_sent = False
        self.received = 0
        self.discarded = 0
        # Who is told what becomes of the client; and whether they take the body, or it waits here.
        self.responder: Responder | None = None
        self.accepting = False
        self._waiting: list[bytes] | None = None
        self._waiting_size = 0

    @property
    def gone(self) -> bool:
        """Whether nobody is there any more to read an answer."""
        return bool(self.connection.transport.is_closing())

    # --- the request's body ---

    def accept_body(self, responder: Responder) -> None:
        """Deliver the body to *responder* from here on: what came already at once, the rest as it comes."""
        self.responder = responder
        self.accepting = True
        waiting, self._waiting, self._waiting_size = self._waiting, None, 0
        if not self.body_complete:
            if self.expects_continue and not self.head_sent:
                self.expects_continue = False
                self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            # Before the parts are delivered: they may be more than the responder can take, and it pauses again.
            self.connection.read_on()
        if waiting:
            for part in waiting:
                responder.body(part)
        if self.body_complete:
            responder.body_end()

    def pause_body(self) -> None:
        self.connection.hold_reading()

    def resume_body(self) -> None:
        self.connection.read_on()

    def receive(self, data: bytes) -> None:
        self.received += len(data)
        if self.accepting:
            if self.responder is not None:
                self.responder.body(data)
        else:
            if self._waiting is None:
                self._waiting = []
            self._waiting.append(data)
            self._waiting_size += len(data)
            if self._waiting_size > BODY_HIGH_WATER:
                self.connection.hold_reading()

    def received_all(self) -> None:
        self.body_complete = True
        if self.accepting and self.responder is not None:
            self.responder.body_end()

    # --- the answer ---

    def write(self, data: bytes) -> None:
        """Send bytes of the answer, head included, exactly as given."""
        self.head_sent = True
        self.connection.transport.write(data)

    def inform(self, data: bytes) -> None:
        """Send an interim answer (1xx) ahead of the answer itself."""
        self.connection.transport.write(data)

    def end(self) -> None:
        """The answer is complete."""
        self.responder = None
        self._waiting = None
        self.connection.finished(self)

    def abort(self) -> None:
        """Cut the connection: the answer cannot be completed, and the client must notice."""
        self.responder = None
        self.connection.reset()

    def respond(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """A whole answer of our own."""
        if self.expects_continue:
            # The client was not told to go on, so whether a body follows is unknown.
            self.close_after = True
        parts = [STATUS_LINES.get(status) or status_line(status)]
        for name, value in headers:
            parts.append(name + b": " + value + b"\r\n")
        parts.append(b"Content-Length: %d\r\n" % len(body))
        parts.append(self.connection_header())
        parts.append(b"\r\n")
        if self.method != b"HEAD":
            parts.append(body)
        self.write(b"".join(parts))
        self.end()

    def connection_header(self) -> bytes:
        """What must be said about the connection's fate; nothing where HTTP/1.1 keeps it open anyhow."""
        if self.close_after or self.connection.draining:
            self.close_after = True
            return b"Connection: close\r\n"
        return b"Connection: keep-alive\r\n" if self.http10 else b""


Handle = Callable[[Exchange], None]


class ServerConnection(asyncio.Protocol):
    """One client's connection. `deadline` is when the server's ticker ends it, by the loop's clock."""

    __slots__ = (
        "_active",
        "_exchange",
        "_failed",
        "_fed_body",
        "_handle",
        "_in_trailers",
        "_limits",
        "_parser",
        "_read_size",
        "_reading_paused",
        "_registry",
        "_unfinished_bytes",
        "_waiting",
        "_write_paused",
        "deadline",
        "draining",
        "forwarded_lines",
        "loop",
        "peer_certificate",
        "remote_address",
        "transport",
        "tunnel",
    )

    def __init__(
        self,
        handle: Handle,
        limits: ServerLimits,
        registry: set[ServerConnection],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._handle = handle
        self._limits = limits
        self._registry = registry
        self.loop = loop
        self.transport: Any = None
        self.remote_address = ""
        # What the upstream is told about where its request came from; made once per connection.
        self.forwarded_lines = b""
        self.peer_certificate: bytes | None = None
        self.draining = False
        self.tunnel: Tunnel | None = None
        self.deadline = 0.0
        self._parser = httptools.HttpRequestParser(self)
        self._exchange: Exchange | None = None
        self._active: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._unfinished_bytes = 0
        self._read_size = 0
        self._in_trailers = False
        self._fed_body = False
        self._failed = False
        self._reading_paused = False
        self._write_paused = False

    # --- the event loop calls these ---

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.remote_address = peer[0] if isinstance(peer, tuple) and peer else "unix"
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self.peer_certificate = tls.getpeercert(binary_form=True)
        scheme = b"http" if tls is None else b"https"
        address = self.remote_address.encode("ascii", "replace")
        self.forwarded_lines = b"X-Forwarded-For: " + address + b"\r\nX-Forwarded-Proto: " + scheme + b"\r\n"
        self.deadline = self.loop.time() + self._limits.head_timeout
        if len(self._registry) >= self._limits.connections:
            self._refuse(Refusal(503, "too many connections are open"))
        self._registry.add(self)

    def data_received(self, data: bytes) -> None:
        if self.tunnel is not None:
            self.tunnel.from_client(data)
            return
        if self._failed:
            return
        while data:
            before = self._exchange
            self._fed_body = False
            self._read_size = len(data)
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._upgrade(data[upgrade.args[0] :])
                continue
            except httptools.HttpParserCallbackError as error:
                # httptools wraps what a callback of ours raises.
                cause = error.__context__
                if not isinstance(cause, Refusal):
                    raise
                self._refuse(cause)
            except httptools.HttpParserError:
                self._parse_failed()
            else:
                if self._exchange is not None and not self._fed_body:
                    self._count_unfinished(len(data), begun=self._exchange is before)
            return

    def pause_writing(self) -> None:
        self._write_paused = True
        if self.tunnel is not None:
            self.tunnel.client_full()
        elif self._active is not None and self._active.responder is not None:
            self._active.responder.client_full()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self.tunnel is not None:
            self.tunnel.client_ready()
        elif self._active is not None:
            if self._active.responder is not None:
                self._active.responder.client_ready()
        else:
            self._next()

    def eof_received(self) -> bool:
        # Half-closed clients are rare, and telling them from vanished ones is not worth holding an upstream for;
        # a tunnel has ends of its own.
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._registry.discard(self)
        self._failed = True
        self._waiting.clear()
        tunnel, self.tunnel = self.tunnel, None
        if tunnel is not None:
            tunnel.client_lost()
        active, self._active = self._active, None
        if active is not None and active.responder is not None:
            responder, active.responder = active.responder, None
            responder.client_lost()

    # --- httptools calls these ---

    def on_message_begin(self) -> None:
        if self._failed:
            # The connection was given up in the midst of these bytes: what follows would get no answer.
            raise Refusal(400, "the connection is closing")
        self._exchange = Exchange(self)
        self._unfinished_bytes = 0
        if self._active is None:
            self.deadline = self.loop.time() + self._limits.head_timeout

    def on_url(self, url: bytes) -> None:
        exchange = self._exchange
        assert exchange is not None
        exchange.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        exchange = self._exchange
        assert exchange is not None
        if self._in_trailers:
            self._trailer(exchange, name, value)
            return
        exchange.headers.append((name, value))
        special = _SPECIAL.get(name)
        if special is None:
            special = _special(name)
        if special:
            self._note(exchange, special, value)

    def on_headers_complete(self) -> None:
        exchange = self._exchange
        assert exchange is not None
        version = self._parser.get_http_version()
        exchange.http10 = version == "1.0"
        exchange.method = self._parser.get_method()
        if version != "1.1":
            self._check_old_version(exchange, version)
        elif not exchange.host:
            raise Refusal(400, "the request has no Host")
        if len(exchange.headers) > self._limits.headers:
            raise Refusal(431, "the request has too many headers")
        if self._unfinished_bytes or self._read_size > self._limits.head_bytes:
            # A head that came with one short read cannot be too large, and nearly all do.
            self._check_size(exchange)
        if not self._parser.should_keep_alive():
            exchange.close_after = True
        if exchange.method in _NOT_SERVED:
            raise Refusal(405, "this method is not served")
        if exchange.upgrade:
            self._settle_upgrade(exchange)
        if exchange.content_length and exchange.content_length > self._limits.body_bytes:
            raise Refusal(413, "the request's body is too large")
        self._in_trailers = True
        if self._active is None and not self._write_paused:
            self._begin(exchange)
        else:
            self._waiting.append(exchange)
            if self._active is None:
                self.deadline = self.loop.time() + self._limits.body_timeout
            if len(self._waiting) > self._limits.pipelined:
                raise Refusal(400, "too many requests are pipelined")
            if len(self._waiting) >= READ_AHEAD:
                self.hold_reading()

    def on_body(self, data: bytes) -> None:
        exchange = self._exchange
        assert exchange is not None
        self._fed_body = True
        self._unfinished_bytes = 0
        if exchange is self._active and not self._reading_paused:
            self.deadline = self.loop.time() + self._limits.body_timeout
        exchange.receive(data)
        if exchange.received > self._limits.body_bytes:
            raise Refusal(413, "the request's body is too large")

    def on_message_complete(self) -> None:
        exchange = self._exchange
        assert exchange is not None
        self._in_trailers = False
        if exchange.upgrade:
            # What follows belongs to the new protocol; `_upgrade` gets it.
            return
        self._exchange = None
        if exchange is self._active:
            self.deadline = _NEVER
        exchange.received_all()

    # --- an exchange calls these ---

    def finished(self, exchange: Exchange) -> None:
        """The answer is written: go on with the next request, or end the connection."""
        if exchange is not self._active:
            return
        if not exchange.body_complete and not exchange.expects_continue and not exchange.upgrade:
            # Answered before the whole request was read. The rest is dropped as it comes: a connection that is closed
            # while the client still writes is reset, and the answer lost with it.
            self.deadline = self.loop.time() + self._limits.body_timeout
            exchange.accept_body(_Discard(self, exchange))
            return
        self._active = None
        if exchange.close_after or self.draining:
            self.close_soon()
        elif self._waiting or self._exchange is not None or self._write_paused or self._reading_paused:
            self._next()
        else:
            self.deadline = self.loop.time() + self._limits.idle_timeout

    def hold_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            if self._active is not None:
                # It is not the client who takes so long.
                self.deadline = _NEVER
            self.transport.pause_reading()

    def read_on(self) -> None:
        if self._reading_paused and len(self._waiting) < READ_AHEAD:
            self._reading_paused = False
            active = self._active
            if active is not None and not active.body_complete and self.tunnel is None:
                self.deadline = self.loop.time() + self._limits.body_timeout
            self.transport.resume_reading()

    def must_read_within(self, seconds: float) -> None:
        """The client has not read what was written; give it *seconds* to go on, or any time if infinite."""
        if self._active is not None and self._active.body_complete:
            self.deadline = self.loop.time() + seconds

    def timed_out(self) -> None:
        """The ticker found that `deadline` has passed: a slow client must not hold a connection."""
        self.deadline = _NEVER
        active = self._active
        if self._failed or self.tunnel is not None:
            self.reset()
        elif active is None:
            if self._exchange is not None:
                self._refuse(Refusal(408, "the request took too long to arrive"))
            else:
                self.close_soon()
        elif active.head_sent or active.body_complete:
            self.reset()
        elif active.responder is not None:
            self._refuse(Refusal(408, "the request took too long to arrive"))
        # Else it is being decided on; whoever decides has a time limit of their own.

    def drain(self) -> None:
        """Finish what was begun and accept nothing more on this connection."""
        self.draining = True
        if self._active is None and self.tunnel is None and not self.transport.is_closing():
            self.close_soon()

    def reset(self) -> None:
        """End the connection so that nobody takes what was written for the whole of it."""
        end = self.transport.get_extra_info("socket")
        if end is not None:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def close_soon(self) -> None:
        """End the connection when what was written has been read, or when that takes too long."""
        self._failed = True
        self.deadline = self.loop.time() + LINGER_SECONDS
        self.transport.close()

    @property
    def busy(self) -> bool:
        return self._active is not None or self.tunnel is not None

    @property
    def write_paused(self) -> bool:
        return self._write_paused

    # --- inside ---

    def _next(self) -> None:
        """Begin the request that has waited longest, if one has, and the client keeps up."""
        if self._write_paused:
            self.deadline = self.loop.time() + self._limits.body_timeout
            return
        if self._waiting:
            self._begin(self._waiting.popleft())
        elif self._exchange is None:
            self.deadline = self.loop.time() + self._limits.idle_timeout
        else:
            self.deadline = self.loop.time() + self._limits.head_timeout
        self.read_on()

    def _begin(self, exchange: Exchange) -> None:
        self._active = exchange
        if exchange.body_complete:
            self.deadline = _NEVER
        elif exchange.content_length or exchange.chunked:
            self.deadline = self.loop.time() + self._limits.body_timeout
        try:
            self._handle(exchange)
        except Exception as error:
            log.error("a request failed inside the gateway", extra={"cause": type(error).__name__}, exc_info=error)
            self._give_up(exchange)

    def _give_up(self, exchange: Exchange) -> None:
        if self._active is not exchange:
            return
        exchange.close_after = True
        if exchange.head_sent:
            exchange.abort()
        else:
            exchange.respond(500, [(b"Content-Type", b"text/plain; charset=utf-8")], b"internal error\n")

    def _trailer(self, exchange: Exchange, name: bytes, value: bytes) -> None:
        exchange.trailers.append((name, value))
        if len(exchange.trailers) > self._limits.headers:
            raise Refusal(431, "the request has too many trailers")

    def _check_size(self, exchange: Exchange) -> None:
        size = len(exchange.target) + sum(len(name) + len(value) + 4 for name, value in exchange.headers)
        if size > self._limits.head_bytes:
            raise Refusal(431, "the request's head is too large")

    def _count_unfinished(self, size: int, *, begun: bool) -> None:
        """Bytes of a head, or of trailers, whose lines are not complete yet: no callback has told them."""
        # How much of its first read belongs to a head is unknown; 1 stands for it, and says that there was one.
        self._unfinished_bytes += size if begun else 1
        if self._unfinished_bytes > self._limits.head_bytes:
            self._refuse(Refusal(431, "the request's head is too large"))

    def _note(self, exchange: Exchange, special: int, value: bytes) -> None:
        if special == _HOST:
            if exchange.host or not value:
                raise Refusal(400, "the request must have one Host")
            exchange.host = value.rstrip(b" \t")
        elif special == _LENGTH:
            exchange.content_length = int(value)
        elif special == _ENCODING:
            if exchange.chunked or value.lower() != b"chunked":
                raise Refusal(400, "only one transfer encoding is understood: chunked")
            exchange.chunked = True
        elif special == _EXPECT:
            if value.rstrip(b" \t").lower() != b"100-continue":
                raise Refusal(417, "the expectation cannot be met")
            exchange.expects_continue = True
        elif special == _UPGRADE:
            # All that is offered; `_settle_upgrade` chooses when the whole head is known.
            exchange.upgrade += value.lower() + b","

    def _check_old_version(self, exchange: Exchange, version: str) -> None:
        if version != "1.0":
            raise Refusal(505, "only HTTP/1.1 is served")
        if exchange.chunked:
            raise Refusal(400, "HTTP/1.0 has no transfer encoding")
        # It knows no interim answers (RFC 9110, 10.1.1).
        exchange.expects_continue = False

    def _settle_upgrade(self, exchange: Exchange) -> None:
        """The first protocol offered that we can switch to; an offer of others is ignored, as HTTP allows."""
        offers, exchange.upgrade = exchange.upgrade, b""
        if not self._parser.should_upgrade():
            # Connection does not name it, so nothing is offered to us.
            return
        if exchange.content_length or exchange.chunked:
            # httptools stops after the head, and would not read it.
            raise Refusal(400, "a request that switches protocols has no body")
        if exchange.http10:
            return
        for offer in map(bytes.strip, offers.split(b",")):
            if offer in UPGRADES:
                exchange.upgrade = offer
                # Whatever follows, it was meant for the new protocol: without a 101 nobody can make sense of it.
                exchange.close_after = True
                return

    def _upgrade(self, rest: bytes) -> bytes:
        """The client asks to switch protocols: httptools stopped after the head. Returns what is HTTP still."""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            # An offer that we ignored.
            return b"" if self._failed else rest
        if exchange is not self._active:
            self._exchange = exchange
            self._refuse(Refusal(400, "a protocol can only be switched when nothing else is going on"))
        elif not self._failed:
            self.deadline = _NEVER
            self.tunnel = _Ahead(exchange)
            if rest:
                exchange.receive(rest)
            exchange.received_all()
        return b""

    def _parse_failed(self) -> None:
        last = self._waiting[-1] if self._waiting else self._active
        if last is not None and last.close_after and self._exchange is None:
            # The client announced that it was done, and went on writing: what it writes is not looked at.
            self._failed = True
            return
        self._refuse(Refusal(400, "the request cannot be understood"))

    def _refuse(self, refusal: Refusal) -> None:
        """Answer, if nothing is being answered, and close: where the next request begins is unknown."""
        if self._failed:
            return
        self._failed = True
        if self._waiting and self._waiting[-1] is self._exchange:
            self._waiting.pop()
        active = self._active
        if active is not None and active is not self._exchange:
            # Earlier requests get their answers, and the connection ends with the last of them.
            last = self._waiting[-1] if self._waiting else active
            last.close_after = True
            return
        if self._waiting:
            # The client has not read the answer before them yet.
            self._waiting[-1].close_after = True
            return
        self._active = None
        if active is not None and active.responder is not None:
            responder, active.responder = active.responder, None
            if isinstance(responder, _Discard):
                # It has its answer.
                self.close_soon()
                return
            responder.client_lost()
        if active is not None and active.head_sent:
            self.reset()
            return
        body = refusal.message.encode() + b"\n"
        head = b"%sContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        self.transport.write(head % (status_line(refusal.status), len(body)) + body)
        self.close_soon()


class Tunnel(Protocol):
    """A connection that has switched protocols: bytes both ways, until one side ends."""

    def from_client(self, data: bytes) -> None: ...

    def client_full(self) -> None: ...

    def client_ready(self) -> None: ...

    def client_lost(self) -> None: ...


class _Ahead:
    """Between the request to switch protocols and its answer: what comes meanwhile waits, and a hang-up is noticed."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def from_client(self, data: bytes) -> None:
        self._exchange.receive(data)

    def client_full(self) -> None:
        if self._exchange.responder is not None:
            self._exchange.responder.client_full()

    def client_ready(self) -> None:
        if self._exchange.responder is not None:
            self._exchange.responder.client_ready()

    def client_lost(self) -> None:
        # The responder of the exchange, which is the active one, is told by the connection.
        pass


class _Discard:
    """Reads what nobody wants, so that the connection can be used again."""

    __slots__ = ("_connection", "_exchange")

    def __init__(self, connection: ServerConnection, exchange: Exchange) -> None:
        self._connection = connection
        self._exchange = exchange

    def body(self, data: bytes) -> None:
        exchange = self._exchange
        exchange.discarded += len(data)
        if exchange.discarded > DISCARD_LIMIT:
            self._connection.close_soon()

    def body_end(self) -> None:
        self._exchange.responder = None
        self._connection.finished(self._exchange)

    def client_lost(self) -> None:
        pass

    def client_full(self) -> None:
        pass

    def client_ready(self) -> None:
        pass


_NEVER = float("inf")
_HOST, _LENGTH, _ENCODING, _EXPECT, _UPGRADE = 1, 2, 3, 4, 5
_SPECIAL_NAMES = {
    b"host": _HOST,
    b"content-length": _LENGTH,
    b"transfer-encoding": _ENCODING,
    b"expect": _EXPECT,
    b"upgrade": _UPGRADE,
}
# Spellings seen so far: most clients write a name always alike, and looking it up beats lowering it each time.
_SPECIAL: dict[bytes, int] = {}


def _special(name: bytes) -> int:
    found = _SPECIAL_NAMES.get(name.lower(), 0)
    if len(_SPECIAL) < 1024:
        _SPECIAL[bytes(name)] = found
    return found


def status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return b"HTTP/1.1 %d %s\r\n" % (status, phrase.encode())


STATUS_LINES = {status.value: status_line(status.value) for status in HTTPStatus}
