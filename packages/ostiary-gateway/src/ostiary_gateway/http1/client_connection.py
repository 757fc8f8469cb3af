"""One connection to an upstream: sends one request at a time and reads its answer strictly.

Opened by `client.pool`. The connection goes back to the pool only after an answer that was complete and well formed;
after anything else nobody can say whose bytes come next, so it is closed.
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

# Where an upstream listens, and how its certificate is checked.
#
# Made by `upstream.upstreams` from the configuration; a pool opens its connections there.


@dataclass(frozen=True, slots=True)
class UpstreamAddress:
    """Where an upstream listens: host and port, and TLS with the name to check, or the path of a Unix socket."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    unix_path: str | None = None
    # SHA-256 of the certificates (DER, in hex) that this upstream may have; none: any that the authority signed.
    pins: frozenset[str] = frozenset()


# TLS with one upstream, which resumes the session of the connection before.
#
# Made by `upstream.upstreams`, one for each address: another certificate of ours, another authority or another upstream
# has another context, and a session never gets from one to the other. The certificate of the upstream is checked in
# full handshakes only, so a session is good for so long after one, and no longer than the certificate.

# How long after a full handshake its session, and those that follow from it, are resumed.
MOST_SECONDS = 3600.0


class UpstreamTls(CountedHandshake):
    """The TLS of one connection. `good_until` is up to when its session may be resumed, in Unix time."""

    # Until the handshake is through, that of the session which it would resume.
    good_until = 0.0

    def do_handshake(self) -> None:
        context = self._context
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            # Perhaps because of the session: the next handshake is a full one.
            context.forget_session()
            raise
        context.note_handshake(self)

    def keep_session(self) -> None:
        """The connection ends: what its session is now can be resumed by the next one."""
        self._context.keep_session(self)

    @property
    def _context(self) -> UpstreamContext:
        context = self.context
        assert isinstance(context, UpstreamContext)
        return context


class UpstreamContext(SealedContext, CountingContext):
    """The context of one upstream."""

    sslobject_class = UpstreamTls
    _clock: Clock | None = None
    _session: ssl.SSLSession | None = None
    _good_until = 0.0
    # The connection that was opened last. Its session is asked for when it is wanted: with TLS 1.3 what can be resumed
    # comes after the handshake, and may be replaced at any time.
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
        """From now on sessions are resumed, for as long as *clock* says."""
        self._clock = clock

    def keep_session(self, tls: UpstreamTls) -> None:
        """Keep the session of *tls*, if that is the latest one."""
        if self._latest is not None and self._latest() is tls:
            self._keep_latest()

    def forget_session(self) -> None:
        self._session, self._latest = None, None

    def note_handshake(self, tls: UpstreamTls) -> None:
        """*tls* is established."""
        if self._clock is None:
            return
        # Of a resumed one nothing was checked again: its time goes on.
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
        # Without an id it cannot be resumed: the ticket has not come yet.
        if tls is not None and session is not None and session.id:
            self._session, self._good_until = session, tls.good_until


def _expiry(tls: ssl.SSLObject) -> float:
    """When the certificate of the other side expires, in Unix time; 0 if it was not checked."""
    certificate = tls.getpeercert()
    return ssl.cert_time_to_seconds(str(certificate["notAfter"])) if certificate else 0.0


log = logging.getLogger("ostiary.gateway")

MOST_HEADERS = 256
MOST_INTERIM = 8
# Of a head, or of trailers, as long as they are not complete.
LARGEST_HEAD = 256 * 1024
_VERSIONS = frozenset(("1.1", "1.0"))
_NEVER = float("inf")
# Beyond 100, 102 and 103 httptools looks for a body, so what follows another 1xx cannot be told from one.
_INTERIM = frozenset((100, 101, 102, 103))


class ConnectionOwner(Protocol):
    """The pool, as one of its connections sees it."""

    outbox: Outbox
    answer_headers: AnswerHeaders
    whole_answers: WholeAnswers

    def now(self) -> float:
        """The event loop's time."""

    def give_back(self, connection: UpstreamConnection) -> None:
        """The answer is complete, and the connection can take another request."""

    def forget(self, connection: UpstreamConnection) -> None:
        """The connection is closed, or serves something else."""


class UpstreamConnection(asyncio.Protocol):
    """One connection to an upstream. `deadline` is when the pool's owner gives up waiting, by the loop's clock."""

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
        # What it was opened with: a pool that has moved on does not use it for another request.
        self.address: UpstreamAddress | None = None
        # Set by the event loop before anything else happens.
        self.transport: OutgoingTransport
        self._tls: object = None
        self.receiver: ResponseHandler | None = None
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

    # --- the sender of a request calls these ---

    def send(self, head: bytes, receiver: ResponseHandler, *, is_head: bool) -> None:
        """Begin a request; its answer goes to *receiver*."""
        self.receiver = receiver
        self._is_head = is_head
        self.transport.write(head)

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def pause(self) -> None:
        """Stop reading: the receiver does not keep up. The upstream is not blamed for the time that takes."""
        self.paused = True
        self.deadline = _NEVER
        self.transport.pause_reading()

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.deadline = self._pool.now() + self.patience
            self.transport.resume_reading()

    def abandon(self) -> None:
        """Close at once: the answer is no longer wanted."""
        self.receiver = None
        self.deadline = _NEVER
        self._pool.forget(self)
        self.transport.abort()

    def detach(self) -> None:
        """Leave the pool: the connection serves a tunnel from here on."""
        self.receiver = None
        self.deadline = _NEVER
        self._pool.forget(self)

    # --- the event loop calls these ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = OutgoingTransport(cast("asyncio.Transport", transport), self._pool.outbox)
        # Held here: when the connection is lost, the transport may not know it any more.
        self._tls = transport.get_extra_info("ssl_object")

    def data_received(self, data: bytes) -> None:
        receiver = self.receiver
        if receiver is None:
            # Unsolicited bytes must not become the answer to the next request.
            self.abandon()
            return
        if not self._answered:
            self._answered = True
            if self.request_complete and not self._is_head:
                answer = self._read_whole(data)
                if answer is not None:
                    # The parser has seen nothing of it. The connection goes back first: see `_complete`.
                    self.receiver = None
                    self._answered = False
                    if self.paused:
                        self.resume()
                    self.deadline = _NEVER
                    self._pool.give_back(self)
                    receiver.response_whole(*answer)
                    return
            # Asking the parser for the version costs more than looking, and nearly all begin like this.
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
        # Another one may have taken its place.
        receiver = self.receiver
        if receiver is None:
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
        # The two refer to each other: let go of, all that belongs to the connection is freed at once.
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
        """Fail because `deadline` has passed; called by the pool's tick."""
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
            # It must have no body, and announces one. If the upstream sends it all the same, later, its bytes would be
            # taken for the answer to the next request on this connection.
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
            self._deliver_interim()
            return
        # Read here: the parser forgets it once the message is over. HTTP/1.0 has no chunks, so an upstream that sends
        # them there cannot be relied on for where they end.
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

    def _deliver_interim(self) -> None:
        """Deliver an interim answer. What it says about its length must not be taken for the final answer's."""
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

    def _fail_unreadable(self, error: httptools.HttpParserError) -> None:
        cause = error.__context__
        if isinstance(error, httptools.HttpParserCallbackError) and not isinstance(cause, UpstreamLost):
            log.error("an answer failed inside the gateway", extra={"cause": type(cause).__name__}, exc_info=cause)
        self._fail(str(cause) if isinstance(cause, UpstreamLost) else "its answer is not HTTP")

    def _complete(self, receiver: ResponseHandler) -> None:
        """Deliver the end of the answer. The connection goes back first, so that the next request finds it."""
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
        """The headers of the 101."""
        return self._headers


def _announces_close(headers: Headers) -> bool:
    return any(name.lower() == b"connection" and b"close" in value.lower() for name, value in headers)


# Opens one connection to an upstream, and says in plain words why that failed.
#
# Called by `client.pool`. Checks the pinned certificates of an address before anything is sent.


async def dial(
    address: UpstreamAddress, loop: asyncio.AbstractEventLoop, make_connection: Callable[[], UpstreamConnection]
) -> UpstreamConnection:
    """A new connection to *address*; raises what the event loop raises, and `OSError` for a foreign certificate."""
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
    """Why a connection could not be opened, for the log."""
    if isinstance(error, OstiaryError):
        # Of our own key, which has to sign in the handshake.
        return ": ".join(filter(None, (error.summary, error.cause)))
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate cannot be verified: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS could not be established: {error.reason or 'handshake failed'}"
    if isinstance(error, TimeoutError):
        return "the connection timed out"
    return f"connection failed: {(error.strerror if isinstance(error, OSError) else None) or 'refused'}"
