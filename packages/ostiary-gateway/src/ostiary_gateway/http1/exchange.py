"""One request and its answer.

Made by `http1.server`, which knows when the request has come and whose turn it is; answered by a `Responder`. The
Protocols here are the two sides of an exchange: the connection below it, and the responder above it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from ostiary_gateway.http1.request_head import RequestHead
from ostiary_gateway.http1.write_coalescer import OutgoingTransport

# Reading pauses while more of a body than this waits to be consumed.
BODY_HIGH_WATER = 128 * 1024


class Responder(Protocol):
    """What answers an exchange, as its connection sees it."""

    def body(self, data: bytes) -> None:
        """A part of the request's body."""

    def body_end(self) -> None:
        """The request is complete."""

    def client_lost(self) -> None:
        """The client went away: nothing can be answered any more."""

    def client_full(self) -> None:
        """The client does not keep up: stop producing."""

    def client_ready(self) -> None:
        """The client keeps up again."""


class Tunnel(Protocol):
    """A connection that has switched protocols: bytes both ways, until one side ends."""

    def from_client(self, data: bytes) -> None: ...

    def client_full(self) -> None: ...

    def client_ready(self) -> None: ...

    def client_lost(self) -> None: ...


class Account(Protocol):
    """The user of a connection, as the connection sees them.

    The account of a connection changes only while nothing waits to be read: before that, no request is begun.
    """

    connections: int

    def hold_unread(self, size: int) -> bool:
        """So many bytes wait for the client to read them; False if they are too many."""

    def release_unread(self, size: int) -> None: ...


class ClientConnection(Protocol):
    """The connection that a request came on, as its exchange and its responder see it."""

    transport: OutgoingTransport
    loop: asyncio.AbstractEventLoop
    remote_address: str
    # What the upstream is told about where its request came from.
    forwarded_lines: bytes
    peer_certificate: bytes | None
    draining: bool
    tunnel: Tunnel | None
    account: Account | None

    @property
    def write_paused(self) -> bool:
        """Whether the client does not keep up with what is written."""

    def charge(self, account: Account) -> None:
        """Charge the connection to *account*, its first user."""

    def finish(self, exchange: Exchange) -> None:
        """The answer is written: go on with the next request, or end the connection."""

    def expect_body(self, exchange: Exchange) -> None:
        """The body of this request is the client's turn from now on."""

    def hold_reading(self) -> None: ...

    def read_on(self) -> None: ...

    def must_read_within(self, seconds: float) -> None:
        """The client has not read what was written; give it *seconds* to go on, or any time if infinite."""

    def reset(self) -> None:
        """End the connection with RST, so that the client sees that the answer is incomplete."""

    def close_soon(self) -> None:
        """End the connection when what was written has been read, or when that takes too long."""


class PassingConnection(ClientConnection, Protocol):
    """A client's own connection, where something else may stand for an exchange."""

    def replace(self, short: ActiveExchange, exchange: Exchange) -> None:
        """*exchange* is answered in the place of *short*, of which it was made."""

    def finish(self, exchange: ActiveExchange) -> None: ...


class ActiveExchange(Protocol):
    """What a connection is answering, as the connection sees it: an `Exchange`, or what becomes one when it must."""

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
        """The responder, which hears of nothing else from the exchange."""


# The connection of a request, its head, and the lines that are its own: what answers it, or None.
PassOn = Callable[[PassingConnection, RequestHead, bytes], ActiveExchange | None]


class Exchange:
    """One request and its answer. `request` is what was asked; the rest is how far it has come."""

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
        # Sent to the client with any answer; empty until the request is handled.
        self.audit_id = ""
        self.head_sent = False
        # Header lines of this request alone, which go on to the upstream: its head is shared by others with the same.
        self.own_lines = b""
        # Whether the answer is complete. The connection is for the next request then.
        self.ended = False
        self.received = 0
        self.discarded = 0
        # Called about the client and the body; and whether the body goes to it, or waits here.
        self.responder: Responder | None = None
        self.accepting = False
        self._waiting: list[bytes] | None = None
        self._waiting_size = 0

    def take_head(self) -> None:
        """The request's head has been read: take over what it says about the connection."""
        self.close_after = not self.request.keep_alive
        self.awaits_continue = self.request.expects_continue

    def take_responder(self) -> Responder | None:
        """The responder, which hears of nothing else from here."""
        responder, self.responder = self.responder, None
        return responder

    @property
    def gone(self) -> bool:
        """Whether the client is gone."""
        return self.connection.transport.is_closing()

    # --- the request's body ---

    def accept_body(self, responder: Responder) -> None:
        """Deliver the body to *responder* from here on: what came already at once, the rest as it comes."""
        self.responder = responder
        self.accepting = True
        waiting, self._waiting, self._waiting_size = self._waiting, None, 0
        if self.awaits_continue and not self.body_complete and not self.head_sent:
            self.awaits_continue = False
            self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.connection.expect_body(self)
        # Before the parts are delivered: they may be more than the responder can take, and it pauses again.
        self.connection.read_on()
        if waiting:
            for part in waiting:
                responder.body(part)
        if self.body_complete:
            responder.body_end()

    def whole_body(self) -> bytes | None:
        """The body, if all of it is there already; else None, and `accept_body` gives it as it comes."""
        if not self.body_complete:
            return None
        waiting, self._waiting, self._waiting_size = self._waiting, None, 0
        self.connection.read_on()
        return b"".join(waiting) if waiting else b""

    def return_body(self, body: bytes) -> None:
        """Put the whole *body* back for the next responder, after it was read to look into it."""
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
        """Nothing more of the request comes."""
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
        self.ended = True
        self.responder = None
        self._waiting = None
        self.connection.finish(self)

    def abort(self) -> None:
        """Cut the connection: the answer cannot be completed, and the client must notice."""
        self.responder = None
        self.connection.reset()

    def respond(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """A whole answer of our own."""
        self.respond_lines(status, b"".join([b"%s: %s\r\n" % header for header in headers]), body)

    def respond_lines(self, status: int, lines: bytes, body: bytes) -> None:
        """The same with headers that are lines already, each with its end."""
        if self.awaits_continue:
            # The client was not told to go on, so whether a body follows is unknown.
            self.close_after = True
        first = STATUS_LINES.get(status) or status_line(status)
        head = b"%s%sContent-Length: %d\r\n%s\r\n" % (first, lines, len(body), self.connection_header())
        self.write(head if self.request.method == b"HEAD" else head + body)
        self.end()

    def connection_header(self) -> bytes:
        """What must be said about the connection's fate; nothing where HTTP/1.1 keeps it open anyhow."""
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
