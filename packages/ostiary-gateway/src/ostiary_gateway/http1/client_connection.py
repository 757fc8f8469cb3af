"""A connection to an upstream: sends one request at a time and parses the response strictly.

It returns to the pool only after a complete, well-formed response. After anything else the boundaries of the next
response are uncertain, so it is closed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast
from weakref import ReferenceType, ref

import httptools

from ostiary.core.clock import Clock
from ostiary.core.tls import SealedContext
from ostiary.errors import OstiaryError
from ostiary_gateway.http1.accept import CountedHandshake, CountingContext, use_directly
from ostiary_gateway.http1.fast_response_parser import WholeAnswers
from ostiary_gateway.http1.headers import Headers
from ostiary_gateway.http1.response import (
    CHUNKED,
    ENCODING_HEADER,
    LENGTH_HEADER,
    NO_BODY,
    UNTIL_CLOSE,
    AnswerHeaders,
    FailureKind,
    Framing,
    ResponseHandler,
    UpstreamLost,
)
from ostiary_gateway.http1.write_coalescer import Outbox, OutgoingTransport


@dataclass(frozen=True, slots=True)
class UpstreamAddress:
    """The address of an upstream: host and port, and TLS with the name to verify, or the path of a Unix socket."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    unix_path: str | None = None
    # SHA-256 (hex) of the accepted DER certificates; empty: any certificate of the authority.
    pins: frozenset[str] = frozenset()


# TLS session resumption, per address: another client certificate, CA or upstream has another context, and sessions are
# never shared. Only full handshakes verify the upstream's certificate, so the resumption time is limited, also by the
# expiry of the certificate.

# How long after a full handshake its session and the following ones may be resumed, in seconds.
MOST_SECONDS = 3600.0


class UpstreamTls(CountedHandshake):
    """The TLS of one connection. Its session may be resumed until `good_until`, in Unix time."""

    # During the handshake, that of the session to resume.
    good_until = 0.0

    def do_handshake(self) -> None:
        context = self._context
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            # Possibly caused by the session: make the next handshake a full one.
            context.forget_session()
            raise
        context.note_handshake(self)

    def keep_session(self) -> None:
        """Store the final session of a closing connection, to be resumed by the next one."""
        self._context.keep_session(self)

    @property
    def _context(self) -> UpstreamContext:
        context = self.context
        assert isinstance(context, UpstreamContext)
        return context


class UpstreamContext(SealedContext, CountingContext):
    """The TLS context of one upstream."""

    sslobject_class = UpstreamTls
    _clock: Clock | None = None
    _session: ssl.SSLSession | None = None
    _good_until = 0.0
    # The latest connection. Its session is read when it is needed: TLS 1.3 sends tickets after the handshake and may
    # replace them at any time.
    _latest: ReferenceType[UpstreamTls] | None = None

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        session = session or self._resumable()
        wrapped = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(wrapped, UpstreamTls)
        wrapped.good_until = self._good_until
        use_directly(wrapped)
        return wrapped

    def resume_sessions(self, clock: Clock) -> None:
        """Enable session resumption. *clock* measures the resumption time."""
        self._clock = clock

    def keep_session(self, tls: UpstreamTls) -> None:
        """Store the session of *tls*, if it is the latest one."""
        if self._latest is not None and self._latest() is tls:
            self._keep_latest()

    def forget_session(self) -> None:
        self._session, self._latest = None, None

    def note_handshake(self, tls: UpstreamTls) -> None:
        """Record an established connection."""
        if self._clock is None:
            return
        # A resumption verifies nothing, so it does not extend the time.
        if not tls.session_reused:
            tls.good_until = min(self._clock.now().timestamp() + MOST_SECONDS, _expiry(tls))
        self._keep_latest()
        self._latest = ref(tls)

    def _resumable(self) -> ssl.SSLSession | None:
        if self._clock is None:
            return None
        self._keep_latest()
        if self._session is not None and self._clock.now().timestamp() >= self._good_until:
            self.forget_session()
        return self._session

    def _keep_latest(self) -> None:
        tls = None if self._latest is None else self._latest()
        session = None if tls is None else tls.session
        # A session without an id is not resumable: its ticket has not arrived yet.
        if tls is not None and session is not None and session.id:
            self._session, self._good_until = session, tls.good_until


def _expiry(tls: ssl.SSLObject) -> float:
    """Return the expiry of the peer's certificate in Unix time; 0 if it was not verified."""
    certificate = tls.getpeercert()
    return ssl.cert_time_to_seconds(str(certificate["notAfter"])) if certificate else 0.0


log = logging.getLogger("ostiary.gateway")

MOST_HEADERS = 256
MOST_INTERIM = 8
# Maximum size of an incomplete head, or of incomplete trailers.
LARGEST_HEAD = 256 * 1024
_VERSIONS = frozenset(("1.1", "1.0"))
_NEVER = float("inf")
# For other 1xx codes httptools expects a body, so the next response could be read as a body.
_INTERIM = frozenset((100, 101, 102, 103))


class ConnectionOwner(Protocol):
    """The pool, as seen by its connections."""

    outbox: Outbox
    answer_headers: AnswerHeaders
    whole_answers: WholeAnswers

    def now(self) -> float:
        """Return the time of the event loop."""

    def give_back(self, connection: UpstreamConnection) -> None:
        """Return a connection after a complete response: it can take another request."""

    def forget(self, connection: UpstreamConnection) -> None:
        """Remove a connection that was closed or detached."""


class UpstreamConnection(asyncio.Protocol):
    """A connection to an upstream. The pool's tick fails the request at `deadline`, in the loop's time."""

    __slots__ = (
        "_answered",
        "_check_version",
        "_encoded",
        "_ended",
        "_fed_body",
        "_framing_of",
        "_header_names",
        "_headers",
        "_interim",
        "_is_head",
        "_keep_alive",
        "_last_part",
        "_length",
        "_parser",
        "_poisoned",
        "_pool",
        "_read_whole",
        "_seen_head",
        "_status",
        "_tls",
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

    def __init__(self, pool: ConnectionOwner) -> None:
        self._pool = pool
        self._header_names = pool.answer_headers
        self._framing_of = pool.answer_headers.framing
        self._read_whole = pool.whole_answers.read
        # The address it was opened for. After the pool has moved on, it takes no more requests.
        self.address: UpstreamAddress | None = None
        # Set by the event loop first.
        self.transport: OutgoingTransport
        self._tls: object = None
        self.receiver: ResponseHandler | None = None
        self.reused = False
        self.deadline = _NEVER
        # How long to wait for more data of a response after it has begun.
        self.patience = _NEVER
        # Whether the request was written completely. Until then, the upstream would read anything written as its body.
        self.request_complete = True
        self.paused = False
        self._parser = httptools.HttpResponseParser(self)
        self._is_head = False
        self._fed_body = False
        self._last_part = b""
        self._reset()

    def _reset(self) -> None:
        self._headers: Headers = []
        self._trailers: Headers = []
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

    # --- called by the sender of a request ---

    def send(self, head: bytes, receiver: ResponseHandler, *, is_head: bool) -> None:
        """Begin a request; its response goes to *receiver*."""
        self.receiver = receiver
        self._is_head = is_head
        self.transport.write(head)

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def pause(self) -> None:
        """Stop reading, because the receiver does not keep up. The timeout is suspended."""
        self.paused = True
        self.deadline = _NEVER
        self.transport.pause_reading()

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.deadline = self._pool.now() + self.patience
            self.transport.resume_reading()

    def abandon(self) -> None:
        """Close immediately: the response is no longer wanted."""
        self.receiver = None
        self.deadline = _NEVER
        self._pool.forget(self)
        self.transport.abort()

    def detach(self) -> None:
        """Leave the pool: the connection is used for a tunnel."""
        self.receiver = None
        self.deadline = _NEVER
        self._pool.forget(self)

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = OutgoingTransport(cast("asyncio.Transport", transport), self._pool.outbox)
        # Stored here: when the connection is lost, the transport may no longer have it.
        self._tls = transport.get_extra_info("ssl_object")

    def data_received(self, data: bytes) -> None:
        receiver = self.receiver
        if receiver is None:
            # Unsolicited data must not become the response to the next request.
            self.abandon()
            return
        if not self._answered:
            self._answered = True
            if self.request_complete and not self._is_head:
                answer = self._read_whole(data)
                if answer is not None:
                    # The parser has not seen the response. Return the connection first: see `_complete`.
                    self.receiver = None
                    self._answered = False
                    if self.paused:
                        self.resume()
                    self.deadline = _NEVER
                    self._pool.give_back(self)
                    receiver.response_whole(*answer)
                    return
            # Querying the parser for the version costs more than this check, which nearly all responses pass.
            self._check_version = not data.startswith(b"HTTP/1.")
        self._fed_body = False
        self._last_part = b""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._switch(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            if not self._ended:
                self._fail_unreadable(error)
                return
            self._poisoned = True
        # A callback may have replaced the receiver.
        receiver = self.receiver
        if receiver is None:
            # Abandoned while these bytes were parsed.
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
        # Parser and connection reference each other. Break the cycle to free them without the garbage collector.
        del self._parser
        tls, self._tls = self._tls, None
        if isinstance(tls, UpstreamTls):
            tls.keep_session()
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

    def time_out(self) -> None:
        """Fail because `deadline` has passed. Called by the pool's tick."""
        self._fail("it did not answer in time", FailureKind.TIMEOUT)

    # --- called by httptools ---

    def on_message_begin(self) -> None:
        if self._ended:
            # Unsolicited second response: deliver the first one, and do not reuse the connection.
            self._poisoned = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._seen_head:
            self._trailers.append((name, value))
            if len(self._trailers) > MOST_HEADERS:
                raise UpstreamLost("its answer has too many trailers", answered=True)
            return
        self._headers.append((name, value))
        kind = self._framing_of.get(name)
        if kind is None:
            kind = self._header_names.learn_framing(name)
        if kind == LENGTH_HEADER:
            self._length = int(value)
        elif kind == ENCODING_HEADER:
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
            framing = NO_BODY
            # A response that must have no body announces one. If the upstream sends it later, it would be read as the
            # response to the next request on this connection.
            self._poisoned = self._poisoned or self._announces_body
        elif self._encoded:
            framing = CHUNKED
        elif self._length is not None:
            framing = Framing(Framing.LENGTH, self._length)
        else:
            framing = UNTIL_CLOSE
            self._until_close = True
        self.deadline = _NEVER
        receiver.response_head(status, self._headers, framing)
        if self._is_head:
            # httptools would wait for the announced body, which a response to HEAD does not have.
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
            # A response to HEAD, which has already ended.
            return
        if self._status == 101:
            # `switch_headers` needs the headers after the parser has stopped.
            return
        if self._status < 200:
            self._deliver_interim()
            return
        # Read now: the parser resets it after the message. HTTP/1.0 has no chunks, so an upstream that sends them
        # cannot be trusted with their end.
        self._keep_alive = self._parser.should_keep_alive() and not (
            self._encoded and self._parser.get_http_version() != "1.1"
        )
        self._ended = True

    # --- inside ---

    @property
    def _announces_body(self) -> bool:
        return self._encoded or bool(self._length)

    def _goes_on_after(self, data: bytes) -> bool:
        """Whether *data*, the end of a response, is followed by empty lines, which the parser skips silently."""
        if self._last_part and not self._encoded:
            return not data.endswith(self._last_part)
        # A head and the last chunk end alike.
        return len(data) >= 4 and (not data.endswith(b"\r\n\r\n") or data.endswith(b"\r\n\r\n\r\n"))

    def _deliver_interim(self) -> None:
        """Deliver an interim response. Its length headers must not apply to the final response."""
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
        """Count the bytes of incomplete lines of a head or of trailers: httptools buffers them without a limit."""
        self._unfinished_bytes += size
        if self._unfinished_bytes > LARGEST_HEAD:
            self._fail("its answer has a head that is too large")

    def _fail_unreadable(self, error: httptools.HttpParserError) -> None:
        cause = error.__context__
        if isinstance(error, httptools.HttpParserCallbackError) and not isinstance(cause, UpstreamLost):
            log.error("an answer failed inside the gateway", extra={"cause": type(cause).__name__}, exc_info=cause)
        self._fail(str(cause) if isinstance(cause, UpstreamLost) else "its answer is not HTTP")

    def _complete(self, receiver: ResponseHandler) -> None:
        """Deliver the end of the response.

        The connection returns to the pool first, so that the next request finds it.
        """
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

    def _switch(self, rest: bytes) -> None:
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
    def switch_headers(self) -> Headers:
        """Return the headers of the 101."""
        return self._headers


def _announces_close(headers: Headers) -> bool:
    return any(name.lower() == b"connection" and b"close" in value.lower() for name, value in headers)


async def dial(
    address: UpstreamAddress, loop: asyncio.AbstractEventLoop, make_connection: Callable[[], UpstreamConnection]
) -> UpstreamConnection:
    """Open a connection to *address* and verify its pins before anything is sent.

    Raises the errors of the event loop, and `OSError` for a certificate that matches no pin.
    """
    if address.unix_path is not None:
        _, connection = await loop.create_unix_connection(make_connection, address.unix_path)
        return connection
    _, connection = await loop.create_connection(
        make_connection,
        address.host,
        address.port,
        ssl=address.tls,
        server_hostname=(address.server_name or address.host) if address.tls is not None else None,
    )
    if address.pins:
        _check_pin(connection, address.pins)
    return connection


def _check_pin(connection: UpstreamConnection, pins: frozenset[str]) -> None:
    certificate = connection.transport.peer_certificate()
    if certificate is None or hashlib.sha256(certificate).hexdigest() not in pins:
        connection.transport.abort()
        raise OSError(0, "its certificate does not match tls.pins")


def failure_reason(error: Exception) -> str:
    """Return why a connection could not be opened, for the log."""
    if isinstance(error, OstiaryError):
        # An error of the gateway's private key, which signs in the handshake.
        return ": ".join(filter(None, (error.summary, error.cause)))
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate cannot be verified: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS could not be established: {error.reason or 'handshake failed'}"
    if isinstance(error, TimeoutError):
        return "the connection timed out"
    return f"connection failed: {(error.strerror if isinstance(error, OSError) else None) or 'refused'}"
