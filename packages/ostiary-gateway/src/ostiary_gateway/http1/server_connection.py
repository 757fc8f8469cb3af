"""The client side: parses bytes into exchanges and sends their responses in order.

    connection --- exchange 1 (active) --- responder
               `-- exchange 2 (pipelined: waits, its body is buffered, and reading pauses)

`ServerConnection` schedules requests and enforces timeouts; `request_reader` parses. Neither knows about tokens or
upstreams. The next exchange begins only after the client has read the previous response. A connection starts one
request per read. Further requests start when it is the connection's turn (`fair_queue`), so that no connection
monopolizes the worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from hashlib import sha256
from typing import cast

from ostiary_gateway.http1.body import IncomingBody
from ostiary_gateway.http1.exchange import Account, ActiveExchange, Exchange, PassOn, Tunnel, status_line
from ostiary_gateway.http1.fair_queue import FREE_STARTS, MOST_HELD_BYTES, FairQueue
from ostiary_gateway.http1.fast_head_parser import WholeHeads
from ostiary_gateway.http1.request_head import RequestHead, RequestRefused, ServerLimits
from ostiary_gateway.http1.request_reader import RequestReader
from ostiary_gateway.http1.write_coalescer import LINGER_SECONDS, Outbox, OutgoingTransport
from ostiary_gateway.networks import network

# Maximum size of the rest of a request body that is discarded after the response.
DISCARD_LIMIT = 256 * 1024


class DiscardedBody:
    """The responder of an exchange whose response was sent before the request was complete: discards the rest.

    Closing the connection while the client still sends would reset it, and the client would lose the response.
    """

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def body(self, data: bytes) -> None:
        exchange = self._exchange
        exchange.discarded += len(data)
        if exchange.discarded > DISCARD_LIMIT:
            exchange.connection.close_soon()

    def body_end(self) -> None:
        self._exchange.responder = None
        self._exchange.connection.finish(self._exchange)

    def client_lost(self) -> None:
        pass

    def client_full(self) -> None:
        pass

    def client_ready(self) -> None:
        pass


class PendingUpgrade:
    """The tunnel of a connection between the upgrade request and the 101.

    Data that the client sends ahead is buffered in the exchange, and a disconnect is noticed.
    """

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
        # The connection notifies the responder of the active exchange.
        pass


log = logging.getLogger("ostiary.gateway")

# Maximum number of waiting requests before reading pauses. At least one read must stay pending, or the connection would
# not notice that the client closes.
READ_AHEAD = 4
# Parts of one read that are parsed per turn if no request starts: trailers, empty lines.
PARTS_PER_TURN = 64
# Reading pauses above this many unparsed bytes. One read may return a quarter of a megabyte.
UNPARSED_HIGH_WATER = 16 * 1024
# Above this many unsent bytes we stop reading from the upstream and charge the buffer to the user.
UNREAD_HIGH_WATER = 32 * 1024
_NEVER = float("inf")

Handle = Callable[[Exchange], None]


def _no_lines(connection: ServerConnection, exchange: Exchange | None, refusal: RequestRefused) -> bytes:
    return b""


class ServerConnection(asyncio.Protocol):
    """A connection of a client. The server's ticker closes it at `deadline`, in the loop's time."""

    __slots__ = (
        "_active",
        "_begun",
        "_find_known",
        "_input_held",
        "_limits",
        "_parsed",
        "_queue",
        "_queued",
        "_reader",
        "_reading_paused",
        "_server",
        "_shortcuts",
        "_unparsed",
        "_unread",
        "_waiting",
        "_write_paused",
        "account",
        "deadline",
        "draining",
        "failed",
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
        self._shortcuts = server.shortcuts
        self._find_known = server.find_known
        self._queue = server.queue
        self.loop = server.loop
        # Set by the event loop first.
        self.transport: OutgoingTransport
        self.remote_address = ""
        # The header lines that report the origin of the request to the upstream. Built once per connection.
        self.forwarded_lines = b""
        self.peer_certificate: bytes | None = None
        self.draining = False
        self.tunnel: Tunnel | None = None
        # The user of the latest requests, if known, and the number of unsent bytes charged to them.
        self.account: Account | None = None
        self._unread = 0
        self.deadline = 0.0
        self._reader: RequestReader = RequestReader(self, server.limits, server.now)
        self._active: ActiveExchange | None = None
        self._waiting: deque[Exchange] = deque()
        # Failed: nothing more is read, and the connection is closed after the current response.
        self.failed: bool = False
        self._reading_paused = False
        self._write_paused = False
        # Data that waits for a turn of this connection, and the length of its parsed part.
        self._unparsed = b""
        self._parsed = 0
        # Whether the connection waits for a turn, and whether reading is paused because of unparsed data.
        self._queued = self._input_held = False
        # Whether a request was started in this turn.
        self._begun = False

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = OutgoingTransport(cast("asyncio.Transport", transport), self._server.outbox)
        peer = transport.get_extra_info("peername")
        self.remote_address = peer[0] if isinstance(peer, tuple) and peer else "unix"
        self.peer_certificate = self.transport.peer_certificate()
        scheme = b"https" if self.transport.is_tls else b"http"
        address = self.remote_address.encode("ascii", "replace")
        self.forwarded_lines = b"X-Forwarded-For: " + address + b"\r\nX-Forwarded-Proto: " + scheme + b"\r\n"
        self.deadline = self.loop.time() + self._limits.head_timeout
        connections = self._server.connections
        if len(connections) >= self._limits.connections:
            self.refuse(RequestRefused(503, "too many connections are open"))
        connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._queued or self._unparsed:
            self._hold(data)
            return
        if self._active is None and not self.failed and not self._write_paused:
            # Inlined `FairQueue.may_start`: this runs for every request.
            queue = self._queue
            queue.starts += 1
            if queue.starts > FREE_STARTS and not queue.has_time():
                self._hold(data)
                self._wait_for_turn(has_backlog=False)
                return
            if self._shortcuts and self._reader.exchange is None and self._begin_whole(data):
                return
        elif self.tunnel is not None:
            self.tunnel.from_client(data)
            return
        if not self.failed:
            self._read(data, 0)

    def _read(self, data: bytes, start: int) -> None:
        """Parse *data* from *start* until a request was served synchronously; the rest waits for the next turn."""
        reader, at, size = self._reader, start, len(data)
        self._begun = False
        for _ in range(PARTS_PER_TURN):
            end = reader.part_end(data, at)
            part = data[at:end]
            request = reader.read(part)
            if request is not None and request.known is not None and self._shortcuts and len(part) == size:
                self._remember(request, part)
            at = end
            if self.failed or at == size:
                break
            if self.tunnel is not None:
                self.tunnel.from_client(data[at:])
                at = size
                break
            if self._active is None and (self._begun or self._write_paused):
                # The next request would start now. If one is in flight, the following ones wait for it, up to a limit.
                break
        if at < size and not self.failed:
            self._unparsed, self._parsed = data, at
            self._queue.held += size - at
            self._hold_input()
            self._wait_for_turn(has_backlog=True)
        elif self._waiting and self._active is None:
            self._wait_for_turn(has_backlog=True)

    def _begin_whole(self, data: bytes) -> bool:
        """Begin a complete request without the parser, if its head is cached or plain (`fast_head_parser`)."""
        # If the data ends with an empty line and is a valid head, there is no body. Searching takes longer.
        rest, head = 0, data
        if data.endswith(b"\r\n\r\n"):
            if len(data) > self._limits.head_bytes:
                return False
        else:
            end = data.find(b"\r\n\r\n") + 4
            rest, head = len(data) - end, data[:end]
        digest = sha256(head).digest()
        own_lines, request = b"", self._find_known(digest)
        if request is None:
            plain = self._server.heads.read_new(head, digest, self._limits)
            if plain is None:
                return False
            request, own_lines = plain
        if (request.content_length or 0) != rest or rest > self._limits.body_bytes:
            return False
        pass_on = self._server.pass_on
        if pass_on is not None and request.bare and not self.draining:
            active = pass_on(self, request, own_lines)
            if active is not None:
                self._active, self.deadline = active, _NEVER
                return True
        body = data[-rest:] if rest else b""
        if request.known is not None:
            self._begin_known(request, body, own_lines)
            return True
        self._begin_complete(request, body, own_lines)
        self._server.heads.keep(head, request)
        return True

    def _begin_known(self, request: RequestHead, body: bytes, own_lines: bytes) -> None:
        answer_known = self._server.answer_known
        if answer_known is not None and not body and not self.draining and (answer := answer_known(self, request)):
            self.transport.write(answer)
            self.deadline = self.loop.time() + self._limits.idle_timeout
        else:
            self._begin_complete(request, body, own_lines)

    def _begin_complete(self, request: RequestHead, body: bytes, own_lines: bytes) -> None:
        exchange = Exchange(self, request)
        exchange.own_lines = own_lines
        if body:
            exchange.receive(body)
        exchange.body_complete = True
        self._begin(exchange)

    def _remember(self, request: RequestHead, data: bytes) -> None:
        """Cache the head of a complete request for which the handler has set `RequestHead.known`."""
        head, _, body = data.partition(b"\r\n\r\n")
        # Not if it begins with empty lines, which the parser skips.
        if head.startswith(request.method + b" ") and len(body) == (request.content_length or 0):
            self._server.heads.keep(head + b"\r\n\r\n", request)

    def charge(self, account: Account) -> None:
        """Charge the connection to *account*, its first user."""
        self.account = account
        account.connections += 1
        self.transport.limit_write_buffer(UNREAD_HIGH_WATER)

    def pause_writing(self) -> None:
        self._write_paused = True
        if self.account is not None:
            self._unread = self.transport.get_write_buffer_size()
            if not self.account.hold_unread(self._unread):
                # The user exceeds the limit of unsent bytes: reset the connection.
                self.loop.call_soon(self.reset)
        if self.tunnel is not None:
            self.tunnel.client_full()
        elif self._active is None:
            # The client has not read the last response yet.
            self.deadline = self.loop.time() + self._limits.body_timeout
        elif (responder := self._active.responder) is not None:
            responder.client_full()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._release_unread()
        if self.tunnel is not None:
            self.tunnel.client_ready()
        elif self._active is not None:
            if (responder := self._active.responder) is not None:
                responder.client_ready()
            if self._unparsed:
                self._wait_for_turn(has_backlog=True)
        else:
            self._next()

    def eof_received(self) -> bool:
        # Half-closed clients are rare and cannot be distinguished from vanished ones; waiting for them would hold up an
        # upstream. Tunnels handle their end themselves. Responses that are complete are still delivered.
        if self._queued:
            # The request arrived before the end; it only waits for its turn.
            self.run_turn()
        self.transport.flush()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._reader.close()
        self._release_unread()
        if self.account is not None:
            self.account.connections -= 1
            self.account = None
        self.failed = True
        self._waiting.clear()
        self._drop_unparsed()
        tunnel, self.tunnel = self.tunnel, None
        if tunnel is not None:
            tunnel.client_lost()
        active, self._active = self._active, None
        responder = None if active is None else active.take_responder()
        if responder is not None:
            responder.client_lost()

    # --- called by the request reader ---

    def note_request_begins(self) -> None:
        if self.failed:
            # The connection failed while these bytes were parsed, so the next request would get no response.
            raise RequestRefused(400, "the connection is closing")
        if self._active is None:
            self.deadline = self.loop.time() + self._limits.head_timeout

    def enqueue(self, exchange: Exchange) -> None:
        if self._active is None and not self._write_paused and not self._begun and not self._waiting:
            self._begun = True
            self._begin(exchange)
            return
        self._waiting.append(exchange)
        if self._active is None:
            self.deadline = self.loop.time() + self._limits.body_timeout
        if len(self._waiting) > self._limits.pipelined:
            raise RequestRefused(400, "too many requests are pipelined")
        if len(self._waiting) >= READ_AHEAD:
            self.hold_reading()

    def note_body_read(self, exchange: Exchange, body: IncomingBody, now: float) -> None:
        if exchange is self._active and not self._reading_paused and not self.failed:
            self.deadline = body.deadline(now)

    def note_request_complete(self, exchange: Exchange) -> None:
        if exchange is self._active:
            self.deadline = _NEVER

    def begin_upgrade(self, exchange: Exchange, rest: bytes) -> bool:
        if exchange is not self._active:
            return False
        if not self.failed:
            self.deadline = _NEVER
            self.tunnel = PendingUpgrade(exchange)
            if rest:
                exchange.receive(rest)
            exchange.complete_body()
        return True

    def refuse_unreadable(self) -> None:
        last = self._waiting[-1] if self._waiting else self._active
        if last is not None and last.close_after and self._reader.exchange is None:
            # The client announced the end of the connection and kept sending: ignore it.
            self.failed = True
            return
        self.refuse(RequestRefused(400, "the request cannot be understood"))

    def refuse(self, refusal: RequestRefused) -> None:
        """Send an error response if none is in progress, and close: the start of the next request is unknown."""
        if self.failed:
            return
        self.failed = True
        if self._waiting and self._waiting[-1] is self._reader.exchange:
            self._waiting.pop()
        active = self._active
        if active is not None and active is not self._reader.exchange:
            # Earlier requests get their responses; then the connection is closed.
            last = self._waiting[-1] if self._waiting else active
            last.close_after = True
            return
        if self._waiting:
            # The client has not read the previous response yet.
            self._waiting[-1].close_after = True
            return
        self._active = None
        responder = None if active is None else active.take_responder()
        if responder is not None:
            if isinstance(responder, DiscardedBody):
                # The response was already sent.
                self.close_soon()
                return
            responder.client_lost()
        if active is not None and active.head_sent:
            self.reset()
            return
        self._answer_refusal(self._reader.exchange, refusal)

    def _answer_refusal(self, exchange: Exchange | None, refusal: RequestRefused) -> None:
        lines = self._server.on_refused(self, exchange, refusal)
        body = refusal.message.encode() + b"\n"
        head = b"%s%sContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        self.transport.write(head % (status_line(refusal.status), lines, len(body)) + body)
        self.close_soon()

    # --- called by an exchange ---

    def replace(self, short: ActiveExchange, exchange: Exchange) -> None:
        """Replace *short* by *exchange*, which was created from it."""
        if self._active is short:
            self._active = exchange

    def finish(self, exchange: ActiveExchange) -> None:
        """The response was written: continue with the next request, or close the connection."""
        if exchange is not self._active:
            return
        if not exchange.body_complete and not exchange.awaits_continue and not exchange.request.upgrade:
            assert isinstance(exchange, Exchange), "what stands for one has no body"
            # The response was sent before the request was complete. Discard the rest: closing the connection while the
            # client still sends would reset it, and the client would lose the response.
            self.deadline = self.loop.time() + self._limits.body_timeout
            exchange.accept_body(DiscardedBody(exchange))
            return
        self._active = None
        if exchange.close_after or self.draining:
            self.close_soon()
        elif (
            self._waiting
            or self._reader.exchange is not None
            or self._write_paused
            or self._reading_paused
            or self._unparsed
        ):
            self._next()
        else:
            self.deadline = self.loop.time() + self._limits.idle_timeout

    def expect_body(self, exchange: Exchange) -> None:
        """Start the body timeout of this request."""
        self.deadline = self._reader.restart_body(exchange, self.loop.time())

    def hold_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            if self._active is not None:
                # Reading is paused, so the client is not late.
                self.deadline = _NEVER
            self._reader.pause()
            if not self._input_held:
                self.transport.pause_reading()

    def read_on(self) -> None:
        if self._reading_paused and len(self._waiting) < READ_AHEAD:
            self._reading_paused = False
            self._reader.resume()
            active = self._active
            if isinstance(active, Exchange) and not active.body_complete and self.tunnel is None:
                self.deadline = self._reader.body_deadline(active, self.loop.time())
            if not self._input_held:
                self.transport.resume_reading()

    def must_read_within(self, seconds: float) -> None:
        """The client does not keep up: close the connection unless it continues within *seconds* (may be infinite)."""
        if self._active is not None and self._active.body_complete:
            self.deadline = self.loop.time() + seconds

    def time_out(self) -> None:
        """Handle an expired `deadline`: a slow client must not hold a connection. Called by the ticker."""
        self.deadline = _NEVER
        active = self._active
        if self.failed or self.tunnel is not None:
            self.reset()
        elif active is None:
            if self._reader.exchange is not None:
                self.refuse(RequestRefused(408, "the request took too long to arrive"))
            else:
                self.close_soon()
        elif active.head_sent or active.body_complete:
            self.reset()
        elif active.responder is not None:
            self.refuse(RequestRefused(408, "the request took too long to arrive"))
        # Otherwise the request is being authorized, which has its own timeout.

    def drain(self) -> None:
        """Finish in-flight requests and accept no more on this connection."""
        self.draining = True
        active = self._active
        # Do not wait for a client that has its response and still sends its request.
        has_its_answer = (active is None and not self._queued) or (
            active is not None and isinstance(active.responder, DiscardedBody)
        )
        if has_its_answer and self.tunnel is None and not self.transport.is_closing():
            self.close_soon()

    def reset(self) -> None:
        """Close with RST, so that the client notices that the response is incomplete."""
        self.transport.reset()

    def close_soon(self) -> None:
        """Close when the data was delivered, or after a timeout."""
        self.failed = True
        self.deadline = self.loop.time() + LINGER_SECONDS
        self.transport.close()

    @property
    def busy(self) -> bool:
        return self._active is not None or self.tunnel is not None or self._queued

    @property
    def write_paused(self) -> bool:
        return self._write_paused

    # --- called by the queue ---

    def run_turn(self) -> bool:
        """Start the next waiting request. Return whether another one could start."""
        # Still marked as queued, so that nothing in this turn queues the connection again.
        if not self._write_paused:
            if self._active is None and self._waiting:
                self._begin(self._waiting.popleft())
            elif self._unparsed and not self.failed:
                self._read_unparsed()
        if self.failed:
            self._drop_unparsed()
        has_more = bool(self._unparsed) or (self._active is None and bool(self._waiting))
        self._queued = has_more and not self._write_paused and not self.transport.is_closing()
        if not self._unparsed:
            self._release_input()
        if self._active is None and not self._queued and not self.failed:
            # The deadline was suspended while it waited for its turn.
            self._next()
        return self._queued

    def abort(self) -> None:
        self.transport.abort()

    # --- inside ---

    def _wait_for_turn(self, *, has_backlog: bool) -> None:
        # If the client does not keep up, `resume_writing` queues the connection.
        if not self._queued and not self._write_paused:
            self._queued = True
            if self._active is None:
                self.deadline = _NEVER
            self._queue.add(self, network(self.remote_address), has_backlog=has_backlog)

    def _read_unparsed(self) -> None:
        data, start = self._unparsed, self._parsed
        self._unparsed, self._parsed = b"", 0
        self._queue.held -= len(data) - start
        is_idle = self._active is None and self._reader.exchange is None
        if start or not is_idle or not self._shortcuts or not self._begin_whole(data):
            self._read(data, start)

    def _hold(self, data: bytes) -> None:
        """Buffer *data* until a turn of this connection."""
        if self.failed:
            return
        queue = self._queue
        self._unparsed, self._parsed = self._unparsed[self._parsed :] + data, 0
        queue.held += len(data)
        if len(self._unparsed) > UNPARSED_HIGH_WATER:
            self._hold_input()

    def _drop_unparsed(self) -> None:
        self._queue.held -= len(self._unparsed) - self._parsed
        self._unparsed, self._parsed = b"", 0

    def _hold_input(self) -> None:
        if not self._input_held:
            self._input_held = True
            if not self._reading_paused:
                self.transport.pause_reading()
        if self._queue.held > MOST_HELD_BYTES:
            self.refuse(RequestRefused(400, "too many requests are pipelined"))
            self._drop_unparsed()

    def _release_input(self) -> None:
        if self._input_held:
            self._input_held = False
            if not self._reading_paused and not self.transport.is_closing():
                self.transport.resume_reading()

    def _next(self) -> None:
        """Queue the oldest waiting request, if there is one and the client keeps up."""
        if self._write_paused:
            self.deadline = self.loop.time() + self._limits.body_timeout
            return
        if self._waiting or self._unparsed:
            self._wait_for_turn(has_backlog=True)
        elif self._reader.exchange is None:
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
            # Looked up for every request: a connection may outlive a configuration.
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

    def _release_unread(self) -> None:
        unread, self._unread = self._unread, 0
        if unread and self.account is not None:
            self.account.release_unread(unread)


OnRefused = Callable[[ServerConnection, Exchange | None, RequestRefused], bytes]
AnswerKnown = Callable[[ServerConnection, RequestHead], bytes]


class Server:
    """State shared by the connections of one listener.

    A reload replaces `handle`, `answer_known`, `pass_on` and `limits`. Without *shortcuts* all data goes through the
    parser, and no head is cached.
    """

    __slots__ = (
        "answer_known",
        "connections",
        "find_known",
        "handle",
        "heads",
        "known",
        "limits",
        "loop",
        "now",
        "on_refused",
        "outbox",
        "pass_on",
        "queue",
        "shortcuts",
    )

    def __init__(
        self,
        handle: Handle,
        limits: ServerLimits,
        loop: asyncio.AbstractEventLoop,
        *,
        shortcuts: bool = True,
        queue: FairQueue | None = None,
    ) -> None:
        self.handle = handle
        self.shortcuts = shortcuts
        # Called with a request without a body whose head is cached. Returns the complete response if it needs no
        # exchange, or empty: then `handle` gets the request.
        self.answer_known: AnswerKnown | None = None
        # Called with a request without a body whose head or header lines are cached, and with the header lines of this
        # request only. Returns what serves it instead of an exchange, or None: then `handle` gets the request.
        self.pass_on: PassOn | None = None
        self.limits = limits
        self.loop = loop
        self.connections: set[ServerConnection] = set()
        self.heads = WholeHeads()
        self.known = self.heads.known
        # Bound once: otherwise each connection would hold its own method objects.
        self.find_known, self.now = self.heads.find, loop.time
        self.outbox = Outbox(loop)
        # Shared by the listeners of a worker.
        self.queue = queue or FairQueue(loop)
        # Called with each unreadable request, as far as it was read. Returns more header lines for the response.
        self.on_refused: OnRefused = _no_lines

    def connection(self) -> ServerConnection:
        """Return the protocol for a new connection."""
        return ServerConnection(self)
