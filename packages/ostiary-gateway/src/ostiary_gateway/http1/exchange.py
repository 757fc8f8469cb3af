"""One request and its response, between a client connection and a `Responder`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from ostiary_gateway.http1.request_head import RequestHead
from ostiary_gateway.http1.write_coalescer import OutgoingTransport

# Reading pauses above this size of unconsumed body data.
BODY_HIGH_WATER = 128 * 1024


class Responder(Protocol):
    """Produces the response of an exchange. Called by the client's connection."""

    def body(self, data: bytes) -> None:
        """Receive a part of the request's body."""

    def body_end(self) -> None:
        """The request is complete."""

    def client_lost(self) -> None:
        """The client disconnected: no response can be sent."""

    def client_full(self) -> None:
        """The client does not keep up: stop producing."""

    def client_ready(self) -> None:
        """The client keeps up again."""


class Tunnel(Protocol):
    """A connection that has switched protocols: relays raw bytes until one side closes."""

    def from_client(self, data: bytes) -> None: ...

    def client_full(self) -> None: ...

    def client_ready(self) -> None: ...

    def client_lost(self) -> None: ...


class Account(Protocol):
    """The user of a connection, for limits.

    The account of a connection changes only while nothing waits to be read: no request begins before that.
    """

    connections: int

    def hold_unread(self, size: int) -> bool:
        """Charge unread bytes to the user. Return False if they have too many."""

    def release_unread(self, size: int) -> None: ...


class ClientConnection(Protocol):
    """The connection of a request, as seen by its exchange and responder."""

    transport: OutgoingTransport
    loop: asyncio.AbstractEventLoop
    remote_address: str
    # The header lines that report the origin of the request to the upstream.
    forwarded_lines: bytes
    peer_certificate: bytes | None
    draining: bool
    tunnel: Tunnel | None
    account: Account | None

    @property
    def write_paused(self) -> bool:
        """Whether the client does not keep up with the written data."""

    def charge(self, account: Account) -> None:
        """Charge the connection to *account*, its first user."""

    def finish(self, exchange: Exchange) -> None:
        """The response was written: continue with the next request, or close the connection."""

    def expect_body(self, exchange: Exchange) -> None:
        """Start the body timeout of this request."""

    def hold_reading(self) -> None: ...

    def read_on(self) -> None: ...

    def must_read_within(self, seconds: float) -> None:
        """The client does not keep up: close the connection unless it continues within *seconds* (may be infinite)."""

    def reset(self) -> None:
        """Close with RST, so that the client notices that the response is incomplete."""

    def close_soon(self) -> None:
        """Close when the data was delivered, or after a timeout."""


class PassingConnection(ClientConnection, Protocol):
    """A client connection that supports the fast path, where another object replaces the exchange."""

    def replace(self, short: ActiveExchange, exchange: Exchange) -> None:
        """Replace *short* by *exchange*, which was created from it."""

    def finish(self, exchange: ActiveExchange) -> None: ...


class ActiveExchange(Protocol):
    """The active request of a connection: an `Exchange`, or a fast-path object that can become one."""

    request: RequestHead
    close_after: bool

    @property
    def body_complete(self) -> bool: ...

    @property
    def head_sent(self) -> bool: ...

    @property
    def awaits_continue(self) -> bool: ...

    @property
    def responder(self) -> Responder | None: ...

    def take_responder(self) -> Responder | None:
        """Detach and return the responder. It gets no more calls from this exchange."""


# Connection, head and header lines of this request only -> what serves the request, or None.
PassOn = Callable[[PassingConnection, RequestHead, bytes], ActiveExchange | None]


class Exchange:
    """One request and its response."""

    __slots__ = (
        "_waiting",
        "_waiting_size",
        "accepting",
        "audit_id",
        "awaits_continue",
        "body_complete",
        "close_after",
        "connection",
        "discarded",
        "ended",
        "head_sent",
        "own_lines",
        "received",
        "request",
        "responder",
    )

    def __init__(self, connection: ClientConnection, request: RequestHead) -> None:
        self.connection = connection
        self.request = request
        self.body_complete = False
        self.close_after = False
        self.awaits_continue = False
        # Sent to the client with every response; empty until the request is handled.
        self.audit_id = ""
        self.head_sent = False
        # Header lines of this request only, forwarded to the upstream. The cached head is shared by similar requests.
        self.own_lines = b""
        # Whether the response is complete. After that, the connection is used for the next request.
        self.ended = False
        self.received = 0
        self.discarded = 0
        # The responder, and whether it receives the body or the body is buffered here.
        self.responder: Responder | None = None
        self.accepting = False
        self._waiting: list[bytes] | None = None
        self._waiting_size = 0

    def take_head(self) -> None:
        """Apply what the parsed head says about the connection."""
        self.close_after = not self.request.keep_alive
        self.awaits_continue = self.request.expects_continue

    def take_responder(self) -> Responder | None:
        """Detach and return the responder. It gets no more calls from this exchange."""
        responder, self.responder = self.responder, None
        return responder

    @property
    def gone(self) -> bool:
        """Whether the client is gone."""
        return self.connection.transport.is_closing()

    # --- the request's body ---

    def accept_body(self, responder: Responder) -> None:
        """Deliver the body to *responder*: buffered parts immediately, the rest as it arrives."""
        self.responder = responder
        self.accepting = True
        waiting, self._waiting, self._waiting_size = self._waiting, None, 0
        if self.awaits_continue and not self.body_complete and not self.head_sent:
            self.awaits_continue = False
            self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.connection.expect_body(self)
        # First resume reading: the buffered parts may exceed what the responder accepts, and then it pauses again.
        self.connection.read_on()
        if waiting:
            for part in waiting:
                responder.body(part)
        if self.body_complete:
            responder.body_end()

    def whole_body(self) -> bytes | None:
        """Return the body if it is complete, otherwise None; then use `accept_body`."""
        if not self.body_complete:
            return None
        waiting, self._waiting, self._waiting_size = self._waiting, None, 0
        self.connection.read_on()
        return b"".join(waiting) if waiting else b""

    def return_body(self, body: bytes) -> None:
        """Put the complete *body* back for the next responder, after it was inspected."""
        self.responder = None
        self.accepting = False
        self._waiting = [body] if body else None

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

    def complete_body(self) -> None:
        """The request is complete."""
        self.body_complete = True
        if self.accepting and self.responder is not None:
            self.responder.body_end()

    # --- the response ---

    def write(self, data: bytes) -> None:
        """Send bytes of the response, including the head, unchanged."""
        self.head_sent = True
        self.connection.transport.write(data)

    def inform(self, data: bytes) -> None:
        """Send an interim response (1xx)."""
        self.connection.transport.write(data)

    def end(self) -> None:
        """Complete the response."""
        self.ended = True
        self.responder = None
        self._waiting = None
        self.connection.finish(self)

    def abort(self) -> None:
        """Reset the connection: the response cannot be completed, and the client must notice."""
        self.responder = None
        self.connection.reset()

    def respond(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a complete response."""
        self.respond_lines(status, b"".join([b"%s: %s\r\n" % header for header in headers]), body)

    def respond_lines(self, status: int, lines: bytes, body: bytes) -> None:
        """Like `respond`, with headers as lines, each with its line end."""
        if self.awaits_continue:
            # The client got no 100 Continue, so it is unknown whether a body follows.
            self.close_after = True
        first = STATUS_LINES.get(status) or status_line(status)
        head = b"%s%sContent-Length: %d\r\n%s\r\n" % (first, lines, len(body), self.connection_header())
        self.write(head if self.request.method == b"HEAD" else head + body)
        self.end()

    def connection_header(self) -> bytes:
        """Return the ``Connection`` header, or nothing if HTTP/1.1 keeps the connection open by default."""
        if self.close_after or self.connection.draining:
            self.close_after = True
            return b"Connection: close\r\n"
        return b"Connection: keep-alive\r\n" if self.request.http10 else b""


def status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return b"HTTP/1.1 %d %s\r\n" % (status, phrase.encode())


STATUS_LINES = {status.value: status_line(status.value) for status in HTTPStatus}
