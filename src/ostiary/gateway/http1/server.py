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
from collections import deque
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Protocol

import httptools

from ostiary.gateway.http1.exchange import Exchange, status_line
from ostiary.gateway.http1.incoming_body import IncomingBody
from ostiary.gateway.http1.outbox import Outbox, OutgoingTransport
from ostiary.gateway.http1.request_head import KnownHeads, Refusal, RequestHead, ServerLimits

log = logging.getLogger("ostiary.gateway")

# So many requests may wait for their turn before reading pauses. Keep at least one pending read: otherwise we never
# see the peer close.
READ_AHEAD = 4
# A refused request's body is read and dropped up to here, so that the client gets to read the answer.
DISCARD_LIMIT = 256 * 1024
# Above this, what a client has not read counts for its user, and no more is read for it.
UNREAD_HIGH_WATER = 32 * 1024
# How long a connection that is being closed may take to deliver what was written, in seconds.
LINGER_SECONDS = 10.0

Handle = Callable[[Exchange], None]


def _no_lines(connection: ServerConnection, exchange: Exchange | None, refusal: Refusal) -> bytes:
    return b""


class Account(Protocol):
    """Whoever a connection is used by, as the connection sees it.

    The account of a connection changes only while nothing waits to be read: before that, no request is begun.
    """

    connections: int

    def hold_unread(self, size: int) -> bool:
        """So many bytes wait for the client to read them; False if they are too many."""

    def release_unread(self, size: int) -> None: ...


class Server:
    """What the connections of one listener share. A reload changes `handle` and `limits` for those that come."""

    __slots__ = ("connections", "handle", "known", "limits", "loop", "on_refused", "outbox")

    def __init__(self, handle: Handle, limits: ServerLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.handle = handle
        self.limits = limits
        self.loop = loop
        self.connections: set[ServerConnection] = set()
        self.known = KnownHeads()
        self.outbox = Outbox(loop)
        # Told of each request that could not be read, as far as it came; returns the lines that its answer has besides.
        self.on_refused: OnRefused = _no_lines

    def connection(self) -> ServerConnection:
        """The protocol of a new connection."""
        return ServerConnection(self)


class ServerConnection(asyncio.Protocol):
    """One client's connection. `deadline` is when the server's ticker ends it, by the loop's clock."""

    __slots__ = (
        "_active",
        "_begun",
        "_body",
        "_exchange",
        "_failed",
        "_fed_body",
        "_find_known",
        "_in_trailers",
        "_limits",
        "_newest",
        "_parser",
        "_read_size",
        "_reading_paused",
        "_server",
        "_trailers",
        "_unfinished_bytes",
        "_unread",
        "_waiting",
        "_write_paused",
        "account",
        "deadline",
        "draining",
        "forwarded_lines",
        "loop",
        "peer_certificate",
        "remote_address",
        "transport",
        "tunnel",
    )

    def __init__(self, server: Server) -> None:
        self._server = server
        self._limits = server.limits
        self._find_known = server.known.find
        self.loop = server.loop
        self.transport: Any = None
        self.remote_address = ""
        # What the upstream is told about where its request came from; made once per connection.
        self.forwarded_lines = b""
        self.peer_certificate: bytes | None = None
        self.draining = False
        self.tunnel: Tunnel | None = None
        # Whose requests came last, if anybody knows; and how many unread bytes count for them.
        self.account: Account | None = None
        self._unread = 0
        self.deadline = 0.0
        self._parser = httptools.HttpRequestParser(self)
        self._exchange: Exchange | None = None
        self._active: Exchange | None = None
        # The head that was begun last, and how many were begun in the bytes being read.
        self._newest: RequestHead | None = None
        self._begun = 0
        self._waiting: deque[Exchange] = deque()
        self._unfinished_bytes = 0
        self._read_size = 0
        self._in_trailers = False
        self._trailers = 0
        # Of the request that is being read, if it has one.
        self._body: IncomingBody | None = None
        self._fed_body = False
        self._failed = False
        self._reading_paused = False
        self._write_paused = False

    # --- the event loop calls these ---

    def connection_made(self, transport: Any) -> None:
        self.transport = OutgoingTransport(transport, self._server.outbox)
        peer = transport.get_extra_info("peername")
        self.remote_address = peer[0] if isinstance(peer, tuple) and peer else "unix"
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self.peer_certificate = tls.getpeercert(binary_form=True)
        scheme = b"http" if tls is None else b"https"
        address = self.remote_address.encode("ascii", "replace")
        self.forwarded_lines = b"X-Forwarded-For: " + address + b"\r\nX-Forwarded-Proto: " + scheme + b"\r\n"
        self.deadline = self.loop.time() + self._limits.head_timeout
        connections = self._server.connections
        if len(connections) >= self._limits.connections:
            self._refuse(Refusal(503, "too many connections are open"))
        connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._active is None and self._exchange is None and not self._failed and not self._write_paused:
            if self._came_before(data):
                return
        elif self.tunnel is not None:
            self.tunnel.from_client(data)
            return
        if not self._failed:
            self._parse(data)

    def _came_before(self, data: bytes) -> bool:
        """Begin the request without parsing it, if it is a whole one whose head is known."""
        end = data.find(b"\r\n\r\n") + 4
        rest = len(data) - end
        request = self._find_known(sha256(data[:end] if rest else data).digest())
        if request is None or (request.content_length or 0) != rest or rest > self._limits.body_bytes:
            return False
        exchange = Exchange(self, request)
        if rest:
            exchange.receive(data[end:])
        exchange.body_complete = True
        self._begin(exchange)
        return True

    def _parse(self, data: bytes) -> None:
        while data:
            before = self._exchange
            self._begun = 0
            self._fed_body = False
            self._read_size = len(data)
            try:
                self._parser.feed_data(data)
                if self._body is not None:
                    self._read_body(len(data))
            except Refusal as refusal:
                self._refuse(refusal)
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
                if self._exchange is None:
                    if before is None and self._begun == 1:
                        self._keep(data)
                elif not self._fed_body:
                    self._count_unfinished(len(data), begun=self._exchange is before)
            return

    def _keep(self, data: bytes) -> None:
        """These bytes were one whole request: remember its head if whoever handled it wants to know it again."""
        request = self._newest
        if request is None or request.known is None:
            return
        head, _, body = data.partition(b"\r\n\r\n")
        # Not what begins with empty lines, which a parser skips.
        if head.startswith(request.method + b" ") and len(body) == (request.content_length or 0):
            self._server.known.keep(head + b"\r\n\r\n", request)

    def charge(self, account: Account) -> None:
        """From here on the connection is used by *account*; nobody has used it before."""
        self.account = account
        account.connections += 1
        self.transport.limit_write_buffer(UNREAD_HIGH_WATER)

    def pause_writing(self) -> None:
        self._write_paused = True
        if self.account is not None:
            self._unread = self.transport.get_write_buffer_size()
            if not self.account.hold_unread(self._unread):
                # Nobody who reads so little of so much gets the rest.
                self.loop.call_soon(self.reset)
        if self.tunnel is not None:
            self.tunnel.client_full()
        elif self._active is None:
            # The last answer has not been read yet.
            self.deadline = self.loop.time() + self._limits.body_timeout
        elif self._active.responder is not None:
            self._active.responder.client_full()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._release_unread()
        if self.tunnel is not None:
            self.tunnel.client_ready()
        elif self._active is not None:
            if self._active.responder is not None:
                self._active.responder.client_ready()
        else:
            self._next()

    def eof_received(self) -> bool:
        # Half-closed clients are rare, and telling them from vanished ones is not worth holding an upstream for;
        # a tunnel has ends of its own. What is answered already was answered in time.
        self.transport.flush()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._release_unread()
        if self.account is not None:
            self.account.connections -= 1
            self.account = None
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
        self._newest = request = RequestHead()
        self._exchange = Exchange(self, request)
        self._begun += 1
        self._trailers = 0
        self._unfinished_bytes = 0
        if self._active is None:
            self.deadline = self.loop.time() + self._limits.head_timeout

    def on_url(self, url: bytes) -> None:
        exchange = self._exchange
        assert exchange is not None
        exchange.request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        exchange = self._exchange
        assert exchange is not None
        if self._in_trailers:
            self._count_trailer()
        else:
            exchange.request.add(name, value)

    def on_headers_complete(self) -> None:
        exchange = self._exchange
        assert exchange is not None
        request, limits = exchange.request, self._limits
        request.complete(self._parser, limits)
        # A head that came with one short read cannot be too large, and nearly all do.
        if (self._unfinished_bytes or self._read_size > limits.head_bytes) and request.size > limits.head_bytes:
            raise Refusal(431, "the request's head is too large")
        exchange.head_complete()
        self._in_trailers = True
        self._body = None
        if request.has_body:
            self._body = IncomingBody(limits, self.loop.time(), chunked=request.chunked)
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
        body = self._body
        assert body is not None
        body.add(data)
        if not self._fed_body:
            self._fed_body = True
            self._unfinished_bytes = 0

    def on_message_complete(self) -> None:
        exchange = self._exchange
        assert exchange is not None
        self._in_trailers = False
        if exchange.request.upgrade:
            # What follows belongs to the new protocol; `_upgrade` gets it.
            return
        body, self._body = self._body, None
        if body is not None and (data := body.take()):
            exchange.receive(data)
        self._exchange = None
        if exchange is self._active:
            self.deadline = _NEVER
        exchange.received_all()

    # --- an exchange calls these ---

    def finished(self, exchange: Exchange) -> None:
        """The answer is written: go on with the next request, or end the connection."""
        if exchange is not self._active:
            return
        if not exchange.body_complete and not exchange.awaits_continue and not exchange.request.upgrade:
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

    def expect_body(self, exchange: Exchange) -> None:
        """The body of this request is the client's turn from now on."""
        now = self.loop.time()
        if self._body is None or exchange is not self._exchange:
            self.deadline = now + self._limits.body_timeout
        else:
            self._body.restart(now)
            self.deadline = self._body.deadline(now)

    def hold_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            if self._active is not None:
                # It is not the client who takes so long.
                self.deadline = _NEVER
            if self._body is not None:
                self._body.pause(self.loop.time())
            self.transport.pause_reading()

    def read_on(self) -> None:
        if self._reading_paused and len(self._waiting) < READ_AHEAD:
            self._reading_paused = False
            if self._body is not None:
                self._body.resume(self.loop.time())
            active = self._active
            if active is not None and not active.body_complete and self.tunnel is None:
                self.deadline = self._body_deadline(active)
            self.transport.resume_reading()

    def must_read_within(self, seconds: float) -> None:
        """The client has not read what was written; give it *seconds* to go on, or any time if infinite."""
        if self._active is not None and self._active.body_complete:
            self.deadline = self.loop.time() + seconds

    def time_out(self) -> None:
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
        active = self._active
        answered = active is None or isinstance(active.responder, _Discard)
        # Who has its answer and still sends its request is not waited for.
        if answered and self.tunnel is None and not self.transport.is_closing():
            self.close_soon()

    def reset(self) -> None:
        """End the connection so that nobody takes what was written for the whole of it."""
        self.transport.reset()

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
        elif exchange.request.has_body:
            self.expect_body(exchange)
        try:
            # Looked up for every request: a connection may live longer than a configuration.
            self._server.handle(exchange)
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

    def _read_body(self, size: int) -> None:
        """One read of a body is over: all that came with it is handed on."""
        exchange, body = self._exchange, self._body
        assert exchange is not None
        assert body is not None
        data = body.take()
        if data:
            exchange.receive(data)
        now = self.loop.time()
        body.after_read(size, now)
        if exchange is self._active and not self._reading_paused and not self._failed:
            self.deadline = body.deadline(now)

    def _body_deadline(self, exchange: Exchange) -> float:
        now = self.loop.time()
        if self._body is None or exchange is not self._exchange:
            return now + self._limits.body_timeout
        return self._body.deadline(now)

    def _release_unread(self) -> None:
        unread, self._unread = self._unread, 0
        if unread and self.account is not None:
            self.account.release_unread(unread)

    def _count_trailer(self) -> None:
        # They are dropped: nothing that comes after the decision may reach the upstream.
        self._trailers += 1
        if self._trailers > self._limits.headers:
            raise Refusal(431, "the request has too many trailers")

    def _count_unfinished(self, size: int, *, begun: bool) -> None:
        """Bytes of a head, or of trailers, whose lines are not complete yet: no callback has told them."""
        # How much of its first read belongs to a head is unknown; 1 stands for it, and says that there was one.
        self._unfinished_bytes += size if begun else 1
        if self._unfinished_bytes > self._limits.head_bytes:
            self._refuse(Refusal(431, "the request's head is too large"))

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
        lines = self._server.on_refused(self, self._exchange or active, refusal)
        body = refusal.message.encode() + b"\n"
        head = b"%s%sContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        self.transport.write(head % (status_line(refusal.status), lines, len(body)) + body)
        self.close_soon()


OnRefused = Callable[[ServerConnection, Exchange | None, Refusal], bytes]


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
