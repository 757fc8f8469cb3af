"""One connection to an upstream: sends one request at a time and reads its answer strictly.

Opened by `client.pool`. The connection goes back to the pool only after an answer that was complete and well formed;
after anything else nobody can say whose bytes come next, so it is closed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, cast

import httptools

from ostiary.gateway.http1.client.address import UpstreamAddress
from ostiary.gateway.http1.client.answer_headers import AnswerHeaders
from ostiary.gateway.http1.client.framing import (
    CHUNKED,
    ENCODING_HEADER,
    LENGTH_HEADER,
    NO_BODY,
    UNTIL_CLOSE,
    Framing,
)
from ostiary.gateway.http1.client.receiver import FailureKind, Receiver, UpstreamLost
from ostiary.gateway.http1.client.tls import UpstreamTls
from ostiary.gateway.http1.client.whole_answer import WholeAnswers
from ostiary.gateway.http1.headers import Headers
from ostiary.gateway.http1.outbox import Outbox, OutgoingTransport

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

    def send(self, head: bytes, receiver: Receiver, *, is_head: bool) -> None:
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

    def _complete(self, receiver: Receiver) -> None:
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
