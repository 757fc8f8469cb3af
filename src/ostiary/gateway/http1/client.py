"""The upstream's side: a pool of connections, and one response after the other on each.

Called by `gateway.proxy`. A connection serves one request at a time and goes back to the pool only after a response
that was complete and well formed: after anything else nobody can say whose bytes come next, so it is closed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import httptools

from ostiary.gateway.http1.headers import LONGEST_NAME
from ostiary.gateway.http1.outbox import Outbox, OutgoingTransport
from ostiary.gateway.http1.whole_answer import learn, whole_answer

log = logging.getLogger("ostiary.gateway")

MOST_HEADERS = 256
MOST_INTERIM = 8
# Of a head, or of trailers, as long as they are not complete.
LARGEST_HEAD = 256 * 1024
_VERSIONS = frozenset(("1.1", "1.0"))


@dataclass(frozen=True, slots=True)
class Address:
    """Where an upstream listens: host and port, and TLS with the name to check, or the path of a Unix socket."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    unix_path: str | None = None
    # SHA-256 of the certificates (DER, in hex) that this upstream may have; none: any that the authority signed.
    pins: frozenset[str] = frozenset()


class Receiver(Protocol):
    """Whoever sent the request, as the upstream connection sees it.

    An answer is told by `response_whole`, or piece by piece. After `response_whole`, `response_end` or `upstream_lost`
    it hears no more.
    """

    def response_whole(self, status: int, lines: list[bytes], body: bytes) -> None:
        """All of it at once. *lines* (status and length among them, each without its end) may go on as they are."""

    def response_head(self, status: int, headers: list[tuple[bytes, bytes]], framing: Framing) -> None: ...

    def response_informational(self, status: int, headers: list[tuple[bytes, bytes]]) -> None: ...

    def response_body(self, data: bytes) -> None: ...

    def response_flush(self) -> None:
        """All that came with one read has been told."""

    def response_end(self, trailers: list[tuple[bytes, bytes]]) -> None: ...

    def response_switched(self, rest: bytes) -> None:
        """The upstream answered 101: its connection is a raw one now, and *rest* are its first bytes."""

    def upstream_lost(self, error: UpstreamLost) -> None: ...

    def upstream_full(self) -> None: ...

    def upstream_ready(self) -> None: ...


class FailureKind(Enum):
    LOST = "lost"
    TIMEOUT = "timeout"
    CREDENTIAL = "credential"


class UpstreamLost(Exception):
    """The upstream went away, cannot be understood, or does not accept the gateway's own credential (`kind`).

    `answered` tells whether any byte of a response had come; `relayed`, that the answer may be that of a program behind
    the upstream, which proves nothing about the upstream.
    """

    def __init__(
        self, message: str, *, answered: bool, kind: FailureKind = FailureKind.LOST, relayed: bool = False
    ) -> None:
        super().__init__(message)
        self.answered = answered
        self.kind = kind
        self.relayed = relayed

    @property
    def timeout(self) -> bool:
        return self.kind is FailureKind.TIMEOUT


class Framing:
    """How the end of a response is found."""

    NONE, LENGTH, CHUNKED, CLOSE = range(4)
    __slots__ = ("kind", "length")

    def __init__(self, kind: int, length: int = 0) -> None:
        self.kind = kind
        self.length = length


_NOTHING = Framing(Framing.NONE)
_CHUNKED = Framing(Framing.CHUNKED)
_UNTIL_CLOSE = Framing(Framing.CLOSE)
_NEVER = float("inf")
# Beyond 100, 102 and 103 httptools looks for a body, so what follows another 1xx cannot be told from one.
_INTERIM = frozenset((100, 101, 102, 103))


class UpstreamConnection(asyncio.Protocol):
    """One connection to an upstream. `deadline` is when the pool's owner gives up waiting, by the loop's clock."""

    __slots__ = (
        "_answered",
        "_check_version",
        "_encoded",
        "_ended",
        "_fed_body",
        "_headers",
        "_interim",
        "_is_head",
        "_keep_alive",
        "_last_part",
        "_length",
        "_parser",
        "_poisoned",
        "_pool",
        "_seen_head",
        "_status",
        "_trailers",
        "_unfinished_bytes",
        "_until_close",
        "address",
        "deadline",
        "patience",
        "paused",
        "receiver",
        "request_complete",
        "reused",
        "transport",
    )

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        # What it was opened with: a pool that has moved on does not use it for another request.
        self.address: Address | None = None
        self.transport: Any = None
        self.receiver: Receiver | None = None
        self.reused = False
        self.deadline = _NEVER
        # How long to wait for more of an answer once it has begun.
        self.patience = _NEVER
        # Whether all of the request was written. Before that, what is written next would be taken for its body.
        self.request_complete = True
        self.paused = False
        self._parser = httptools.HttpResponseParser(self)
        self._is_head = False
        self._fed_body = False
        self._last_part = b""
        self._reset()

    def _reset(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._trailers: list[tuple[bytes, bytes]] = []
        self._status = 0
        self._interim = 0
        self._unfinished_bytes = 0
        self._length: int | None = None
        self._encoded = False
        self._seen_head = False
        self._answered = False
        self._check_version = True
        self._ended = False
        self._poisoned = False
        self._keep_alive = False
        self._until_close = False

    # --- the proxy calls these ---

    def send(self, head: bytes, receiver: Receiver, *, is_head: bool) -> None:
        """Begin a request; its answer goes to *receiver*."""
        self.receiver = receiver
        self._is_head = is_head
        self.transport.write(head)

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def pause(self) -> None:
        """Whoever gets the answer does not keep up; that is not the upstream's fault."""
        self.paused = True
        self.deadline = _NEVER
        self.transport.pause_reading()

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.deadline = self._pool.now() + self.patience
            self.transport.resume_reading()

    def abandon(self) -> None:
        """Nobody wants the answer any more."""
        self.receiver = None
        self.deadline = _NEVER
        self._pool.forget(self)
        self.transport.abort()

    def detach(self) -> None:
        """It serves a tunnel from here on, and is the pool's no more."""
        self.receiver = None
        self.deadline = _NEVER
        self._pool.forget(self)

    # --- the event loop calls these ---

    def connection_made(self, transport: Any) -> None:
        self.transport = OutgoingTransport(transport, self._pool.outbox)

    def data_received(self, data: bytes) -> None:
        receiver = self.receiver
        if receiver is None:
            # Bytes that nobody asked for: an answer to no question must not become the answer to the next one.
            self.abandon()
            return
        if not self._answered:
            self._answered = True
            if self.request_complete and not self._is_head:
                answer = whole_answer(data)
                if answer is not None:
                    self._came_whole(receiver, *answer)
                    return
            # Asking the parser for the version costs more than looking, and nearly all begin like this.
            self._check_version = not data.startswith(b"HTTP/1.")
        self._fed_body = False
        self._last_part = b""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._switched(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            if not self._ended:
                self._cannot_be_read(error)
                return
            self._poisoned = True
        if self.receiver is not receiver:
            # It was given up while these bytes were read.
            return
        if self._ended:
            self._poisoned = self._poisoned or self._goes_on_after(data)
            self._complete(receiver)
            return
        if not self._fed_body:
            self._count_unfinished(len(data))
        if self._seen_head and not self.paused:
            self.deadline = self._pool.now() + self.patience
        if self.receiver is receiver:
            receiver.response_flush()

    def eof_received(self) -> bool:
        self.transport.flush()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        receiver, self.receiver = self.receiver, None
        self.deadline = _NEVER
        self._pool.forget(self)
        if receiver is None:
            return
        if self._until_close and exc is None:
            receiver.response_end(self._trailers)
            return
        receiver.upstream_lost(UpstreamLost("it closed the connection", answered=self._answered))

    def pause_writing(self) -> None:
        if self.receiver is not None:
            self.receiver.upstream_full()

    def resume_writing(self) -> None:
        if self.receiver is not None:
            self.receiver.upstream_ready()

    def timed_out(self) -> None:
        """The ticker found that `deadline` has passed."""
        self._fail("it did not answer in time", FailureKind.TIMEOUT)

    # --- httptools calls these ---

    def on_message_begin(self) -> None:
        if self._ended:
            # More than the one answer: this one is given, and the connection is not used again.
            self._poisoned = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._seen_head:
            self._trailers.append((name, value))
            if len(self._trailers) > MOST_HEADERS:
                raise UpstreamLost("its answer has too many trailers", answered=True)
            return
        self._headers.append((name, value))
        kind = _FRAMING.get(name)
        if kind is None:
            kind = _framing(name)
        if kind == _LENGTH:
            self._length = int(value)
        elif kind == _ENCODING:
            if self._encoded or value.lower() != b"chunked":
                raise UpstreamLost("its answer has an unknown transfer encoding", answered=True)
            self._encoded = True

    def on_headers_complete(self) -> None:
        if len(self._headers) > MOST_HEADERS:
            raise UpstreamLost("its answer has too many headers", answered=True)
        if self._ended:
            return
        status = self._status = self._parser.get_status_code()
        if self._check_version and self._parser.get_http_version() not in _VERSIONS:
            raise UpstreamLost("its answer is not HTTP/1.1", answered=True)
        if status < 200:
            if status not in _INTERIM:
                raise UpstreamLost("its answer has an unknown status", answered=True)
            return
        self._seen_head = True
        receiver = self.receiver
        assert receiver is not None
        if self._is_head or status in (204, 304):
            framing = _NOTHING
            # It has no body, and speaks of one. An upstream that sends it all the same sends it later, and its bytes
            # would be the answer to whoever is next on this connection.
            self._poisoned = self._poisoned or self._announces_body
        elif self._encoded:
            framing = _CHUNKED
        elif self._length is not None:
            framing = Framing(Framing.LENGTH, self._length)
        else:
            framing = _UNTIL_CLOSE
            self._until_close = True
        self.deadline = _NEVER
        receiver.response_head(status, self._headers, framing)
        if self._is_head:
            # httptools would wait for the body that a HEAD announces and never gets.
            self._keep_alive = self._parser.get_http_version() == "1.1" and not _announces_close(self._headers)
            self._ended = True
            self._parser = httptools.HttpResponseParser(self)

    def on_body(self, data: bytes) -> None:
        self._fed_body = True
        self._last_part = data
        self._unfinished_bytes = 0
        if self._ended:
            self._poisoned = True
        elif self.receiver is not None:
            self.receiver.response_body(data)

    def on_message_complete(self) -> None:
        if self._ended:
            # A HEAD's, which had ended for us already.
            return
        if self._status == 101:
            # Its headers are wanted when the parser has stopped: see `switch_headers`.
            return
        if self._status < 200:
            self._told_in_the_meantime()
            return
        # Asked here: the parser forgets it once the message is over. HTTP/1.0 has no chunks, so who sends them there
        # cannot be relied on for where they end.
        self._keep_alive = self._parser.should_keep_alive() and not (
            self._encoded and self._parser.get_http_version() != "1.1"
        )
        self._ended = True

    # --- inside ---

    @property
    def _announces_body(self) -> bool:
        return self._encoded or bool(self._length)

    def _goes_on_after(self, data: bytes) -> bool:
        """Whether *data*, with which the answer ended, has empty lines after it: the parser skips those in silence."""
        if self._last_part and not self._encoded:
            return not data.endswith(self._last_part)
        # A head and the end of chunks end alike.
        return len(data) >= 4 and (not data.endswith(b"\r\n\r\n") or data.endswith(b"\r\n\r\n\r\n"))

    def _told_in_the_meantime(self) -> None:
        """An interim answer. What it says about its length must not be taken for the answer's."""
        self._interim += 1
        if self._interim > MOST_INTERIM:
            raise UpstreamLost("it sent too many interim responses", answered=True)
        self._poisoned = self._poisoned or self._announces_body
        headers, self._headers = self._headers, []
        self._length, self._encoded = None, False
        self._check_version = True
        if self.receiver is not None:
            self.receiver.response_informational(self._status, headers)

    def _count_unfinished(self, size: int) -> None:
        """Bytes of a head, or of trailers, whose lines are not complete yet: httptools keeps them all."""
        self._unfinished_bytes += size
        if self._unfinished_bytes > LARGEST_HEAD:
            self._fail("its answer has a head that is too large")

    def _cannot_be_read(self, error: httptools.HttpParserError) -> None:
        cause = error.__context__
        if isinstance(error, httptools.HttpParserCallbackError) and not isinstance(cause, UpstreamLost):
            log.error("an answer failed inside the gateway", extra={"cause": type(cause).__name__}, exc_info=cause)
        self._fail(str(cause) if isinstance(cause, UpstreamLost) else "its answer is not HTTP")

    def _came_whole(self, receiver: Receiver, status: int, lines: list[bytes], body: bytes) -> None:
        """All of the answer came at once, and the parser has seen nothing of it."""
        self.receiver = None
        self._answered = False
        if self.paused:
            self.resume()
        self.deadline = _NEVER
        self._pool.give_back(self)
        receiver.response_whole(status, lines, body)

    def _complete(self, receiver: Receiver) -> None:
        """The response is whole: hand the connection back first, so that the next request finds it."""
        self.receiver = None
        self.deadline = _NEVER
        trailers = self._trailers
        if self._keep_alive and self.request_complete and not self._until_close and not self._poisoned:
            if self.paused:
                self.resume()
                self.deadline = _NEVER
            self._reset()
            self._pool.give_back(self)
        else:
            self._pool.forget(self)
            self.transport.close()
        receiver.response_end(trailers)

    def _switched(self, rest: bytes) -> None:
        receiver = self.receiver
        if self._status != 101 or receiver is None:
            self._fail("it switched protocols without being asked")
            return
        receiver.response_switched(rest)

    def _fail(self, message: str, kind: FailureKind = FailureKind.LOST) -> None:
        receiver, self.receiver = self.receiver, None
        self.deadline = _NEVER
        self._pool.forget(self)
        self.transport.abort()
        if receiver is not None:
            receiver.upstream_lost(UpstreamLost(message, answered=self._answered, kind=kind))

    @property
    def switch_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of the 101."""
        return self._headers


def _announces_close(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() == b"connection" and b"close" in value.lower() for name, value in headers)


_LENGTH, _ENCODING = 1, 2
_FRAMING_NAMES = {b"content-length": _LENGTH, b"transfer-encoding": _ENCODING}
# Spellings seen so far, by what they say about framing.
_FRAMING: dict[bytes, int] = {}


def _framing(name: bytes) -> int:
    found = _FRAMING_NAMES.get(name.lower(), 0)
    if len(_FRAMING) < 1024 and len(name) <= LONGEST_NAME:
        _FRAMING[bytes(name)] = found
        learn(name)
    return found


# Told the connection, or why there is none; answers whether it is still wanted.
Ready = Callable[["UpstreamConnection | None", "UpstreamLost | None"], bool]


class Pool:
    """Connections to one upstream: idle ones are used last in, first out; when all are busy, requests wait in order."""

    def __init__(
        self,
        address: Address,
        loop: asyncio.AbstractEventLoop,
        *,
        limit: int = 1024,
        queue: int = 4096,
        idle_timeout: float = 60.0,
        connect_timeout: float = 5.0,
    ) -> None:
        self.address = address
        self._loop = loop
        self._limit = limit
        self._queue = queue
        self._idle_timeout = idle_timeout
        self._connect_timeout = connect_timeout
        self._idle: list[tuple[UpstreamConnection, float]] = []
        self.connections: set[UpstreamConnection] = set()
        self._opening = 0
        self._waiters: deque[tuple[Ready, float]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.now = loop.time
        self.outbox = Outbox(loop)

    def idle(self) -> UpstreamConnection | None:
        """An idle connection, at once, or None."""
        while self._idle:
            connection, _ = self._idle.pop()
            if not connection.transport.is_closing():
                connection.reused = True
                return connection
        return None

    def acquire(self, ready: Ready, *, fresh: bool = False) -> None:
        """Call *ready* with a connection, or with why there is none. *fresh*: not one that may have died meanwhile."""
        if not fresh and (connection := self.idle()) is not None:
            ready(connection, None)
            return
        if self._full and self._idle:
            self._idle[0][0].abandon()
        if not self._full:
            self._open(ready)
        elif len(self._waiters) < self._queue:
            self._waiters.append((ready, self.now()))
        else:
            ready(None, UpstreamLost("too many requests wait for it", answered=False))

    def give_back(self, connection: UpstreamConnection) -> None:
        outdated = connection.address is not self.address
        if self._closed or outdated or connection.transport.is_closing():
            self.forget(connection)
            connection.transport.close()
            return
        connection.reused = True
        while self._waiters:
            ready, _ = self._waiters.popleft()
            if ready(connection, None):
                return
        self._idle.append((connection, self.now()))

    def forget(self, connection: UpstreamConnection) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            if self._idle:
                self._idle = [entry for entry in self._idle if entry[0] is not connection]
            self._serve_next()

    def tick(self, now: float) -> None:
        """End what has waited too long; called about once a second."""
        for connection in [c for c in self.connections if c.deadline <= now]:
            connection.timed_out()
        stale = [connection for connection, since in self._idle if since + self._idle_timeout <= now]
        for connection in stale:
            self.forget(connection)
            connection.transport.close()
        while self._waiters and self._waiters[0][1] + self._connect_timeout <= now:
            ready, _ = self._waiters.popleft()
            ready(None, UpstreamLost("none of its connections became free in time", answered=False))

    def move(self, address: Address) -> None:
        """Use *address* from the next connection on. What is under way ends on the connection that it has."""
        self.address = address
        self._close_idle()

    def close(self) -> None:
        """Close the idle connections; busy ones end with their exchanges."""
        self._closed = True
        self._close_idle()
        waiters, self._waiters = self._waiters, deque()
        for ready, _ in waiters:
            ready(None, UpstreamLost("the gateway is stopping", answered=False))

    def _close_idle(self) -> None:
        for connection, _ in self._idle:
            self.connections.discard(connection)
            connection.transport.close()
        self._idle.clear()

    @property
    def _full(self) -> bool:
        return len(self.connections) + self._opening >= self._limit

    def _serve_next(self) -> None:
        if self._waiters and not self._full and not self._closed:
            self._open(self._waiters.popleft()[0])

    def _open(self, ready: Ready) -> None:
        self._opening += 1
        task = self._loop.create_task(self._connect(ready))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, ready: Ready) -> None:
        connection, lost = None, None
        try:
            address = self.address
            connection = await asyncio.wait_for(self._dial(), self._connect_timeout)
            connection.address = address
            if connection.transport.is_closing():
                # Closed before it was ours to be told.
                raise ConnectionAbortedError(0, "it was closed at once")
        except Exception as error:
            kind = FailureKind.TIMEOUT if isinstance(error, TimeoutError) else FailureKind.LOST
            lost = UpstreamLost(_why(error), answered=False, kind=kind)
        finally:
            self._opening -= 1
        if connection is None or lost is not None:
            ready(None, lost)
            # Whoever waits for this place would wait for ever.
            self._serve_next()
            return
        self.connections.add(connection)
        if not ready(connection, None):
            self.give_back(connection)

    async def _dial(self) -> UpstreamConnection:
        address = self.address
        if address.unix_path is not None:
            _, connection = await self._loop.create_unix_connection(lambda: UpstreamConnection(self), address.unix_path)
            return connection
        _, connection = await self._loop.create_connection(
            lambda: UpstreamConnection(self),
            address.host,
            address.port,
            ssl=address.tls,
            server_hostname=(address.server_name or address.host) if address.tls is not None else None,
        )
        if address.pins:
            _check_pin(connection, address.pins)
        return connection


def _check_pin(connection: UpstreamConnection, pins: frozenset[str]) -> None:
    certificate = connection.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
    if hashlib.sha256(certificate).hexdigest() not in pins:
        connection.transport.abort()
        raise OSError(0, "its certificate does not match tls.pins")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate cannot be verified: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS could not be established: {error.reason or 'handshake failed'}"
    if isinstance(error, TimeoutError):
        return "the connection timed out"
    return f"connection failed: {(error.strerror if isinstance(error, OSError) else None) or 'refused'}"
