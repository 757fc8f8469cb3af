"""Proxy one allowed request: move bytes between the client's exchange and an upstream connection.

Each side is slowed down to the speed of the other. Messages are framed again on both sides, so that neither side can be
confused by the framing of the other (request smuggling). After a 101, `UpstreamTunnel` takes over.
"""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar

from ostiary.wire.status import is_unauthorized
from ostiary_gateway.http1.client_connection import UpstreamConnection
from ostiary_gateway.http1.client_pool import Pool
from ostiary_gateway.http1.exchange import BODY_HIGH_WATER, ClientConnection, Exchange, status_line
from ostiary_gateway.http1.headers import Headers
from ostiary_gateway.http1.response import FailureKind, Framing, ResponseHandler, UpstreamLost
from ostiary_gateway.http1.write_coalescer import LINGER_SECONDS
from ostiary_gateway.proxy.failures import REJECTED, failure_status, may_repeat
from ostiary_gateway.proxy.recorder import Recorder
from ostiary_gateway.proxy.response_relay import RelayedAnswer, is_event_stream

# Maximum size of a request body that is buffered for a retry.
REPLAYABLE_BYTES = 64 * 1024


class ReplayBuffer:
    """The parts of a request body, so that the request can be sent again.

    `is_complete` turns False when the body exceeds the limit; the parts are dropped then.
    """

    __slots__ = ("_size", "is_complete", "parts")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.is_complete = True
        self._size = 0

    def add(self, data: bytes, *, connected: bool) -> None:
        """Buffer a part. While there is no connection to send the parts to, all of them are buffered."""
        if not self.is_complete:
            return
        self._size += len(data)
        if connected and self._size > REPLAYABLE_BYTES:
            self.is_complete = False
            self.parts = []
        else:
            self.parts.append(data)


class TunnelOwner(Protocol):
    """The request that opened the tunnel."""

    def upstream_full(self) -> None: ...

    def upstream_ready(self) -> None: ...

    def tunnel_ended(self) -> None:
        """The upstream closed the connection."""


class UpstreamTunnel(asyncio.Protocol):
    """Relays raw bytes after a 101 (WebSocket, SPDY) until one side closes.

    Replaces HTTP on both connections: the event loop calls it for the upstream, `http1.server_connection` for the
    client.
    """

    __slots__ = ("_client", "_owner", "_upstream")

    def __init__(self, client: ClientConnection, upstream: UpstreamConnection, owner: TunnelOwner) -> None:
        self._client = client
        self._upstream = upstream
        self._owner = owner

    # --- the client's end ---

    def from_client(self, data: bytes) -> None:
        self._upstream.transport.write(data)

    def client_full(self) -> None:
        self._upstream.pause()

    def client_ready(self) -> None:
        self._upstream.resume()

    def client_lost(self) -> None:
        """The client disconnected: data that it has sent is still delivered if the upstream reads it soon."""
        self._upstream.transport.close()
        self._client.loop.call_later(LINGER_SECONDS, self._upstream.transport.abort)

    # --- the upstream's end ---

    def data_received(self, data: bytes) -> None:
        self._client.transport.write(data)

    def pause_writing(self) -> None:
        self._owner.upstream_full()

    def resume_writing(self) -> None:
        self._owner.upstream_ready()

    def eof_received(self) -> bool:
        # Closing the connection must not discard buffered data.
        self._upstream.transport.flush()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the client's connection once the data that the upstream has sent is delivered."""
        self._client.tunnel = None
        self._owner.tunnel_ended()
        self._client.close_soon()


Context = TypeVar("Context")
REDIRECTED = "it answered with a redirect, which clients would follow with their token"


class Destination(Protocol):
    """The upstream that a request is sent to."""

    @property
    def pool(self) -> Pool: ...

    @property
    def refuses_redirects(self) -> bool: ...

    def renewed_credential(self, rejected: bytes) -> bytes | asyncio.Future[bytes | None] | None:
        """Return a credential other than the *rejected* one, or a future of it; None if there is no other."""


class Owner(Protocol[Context]):
    """Receives the events of its requests. Implemented by the forwarder."""

    def proxied_started(self, proxied: ProxiedRequest[Context], status: int) -> None:
        """The head of a long-running response is being sent."""

    def proxied_finished(self, proxied: ProxiedRequest[Context], status: int, error: UpstreamLost | None) -> None:
        """The request has ended with the status that the client received (0: none). Called exactly once."""

    def proxied_failed(self, proxied: ProxiedRequest[Context], status: int, kind: FailureKind) -> None:
        """Send the client a 502, 503 or 504: the upstream did not respond."""

    def proxied_streams(self, proxied: ProxiedRequest[Context]) -> bool:
        """Count a response that turned out to be a stream. Return False if the user has too many streams."""

    def proxied_refused(self, proxied: ProxiedRequest[Context]) -> None:
        """Send the client a 429: the user has too many streams."""


class ProxiedRequest(Generic[Context]):
    """One request to an upstream.

    *context* belongs to the owner. *audit_line* is sent to the client with the response. `credential` is the header
    line that authenticates the gateway to the upstream; None if there is none. `relayed` is True if a workload behind
    the upstream may respond, as with the ``proxy`` subresource of a pod.

    A 401 of an upstream that authenticates the gateway refers to that credential. It is read again and the request is
    sent once more; failing that, the client gets a 503, because its own credential is not at fault.
    """

    __slots__ = (
        "_answer",
        "_audit_line",
        "_buffer",
        "_connection",
        "_done",
        "_exchange",
        "_head",
        "_kept",
        "_owner",
        "_resent",
        "_retried",
        "_sent_body",
        "_start_is_untold",
        "_timeout",
        "_unread",
        "context",
        "credential",
        "recorder",
        "relayed",
        "sent",
        "status",
        "tells_when_started",
        "upstream",
    )

    def __init__(
        self,
        exchange: Exchange,
        upstream: Destination,
        head: bytes,
        audit_line: bytes,
        timeout: float,
        owner: Owner[Context],
        context: Context,
    ) -> None:
        self._exchange = exchange
        self.upstream = upstream
        self._head = head
        self._audit_line = audit_line
        self._timeout = timeout
        self._owner = owner
        self.context = context
        self.credential: bytes | None = None
        self.relayed = False
        self.recorder: Recorder | None = None
        self.tells_when_started = False
        # Whether the head of a stream's response is withheld, and `proxied_started` was not called yet.
        self._start_is_untold = False
        # Whether any part was passed to an upstream connection.
        self.sent = False
        self.status = 0
        self._connection: UpstreamConnection | None = None
        # None for most requests: their complete response comes in one read.
        self._answer: RelayedAnswer | None = None
        # Number of bytes that the upstream has not read, while it does not keep up.
        self._unread = 0
        self._buffer = b""
        self._retried = False
        self._resent = False
        # The request body so far; None if there was none.
        self._kept: ReplayBuffer | None = None
        self._sent_body = False
        self._done = False

    def start(self) -> None:
        exchange = self._exchange
        exchange.responder = self
        if exchange.request.upgrade:
            # An upgrade may start a command or a terminal, which must not be started twice, so it is never retried. A
            # fresh connection cannot have died while it was idle.
            self.upstream.pool.acquire(self._take_connection, fresh=True)
            return
        connection = self.upstream.pool.idle()
        if connection is not None:
            self._send(connection)
        else:
            self.upstream.pool.acquire(self._take_connection)

    def take_over(self, connection: UpstreamConnection, receiver: ResponseHandler) -> None:
        """Replace *receiver*, which has sent the request on *connection*."""
        self._exchange.responder = self
        self._connection = connection
        self.sent = True
        # The connection has no receiver if it was lost, and another one if the response was complete.
        if connection.receiver is receiver:
            connection.receiver = self

    @property
    def exchange(self) -> Exchange:
        return self._exchange

    def cut(self) -> None:
        """Close the request immediately: it is no longer authorized."""
        self._drop_upstream()
        exchange = self._exchange
        self._finish(self.status, None)
        exchange.connection.tunnel = None
        exchange.abort()

    def give_up(self) -> None:
        """Cancel the request before it was started."""
        self._drop_upstream()
        self._exchange.responder = None
        self._finish(self.status, None)

    # --- to the upstream ---

    def _take_connection(self, connection: UpstreamConnection | None, error: UpstreamLost | None) -> bool:
        if self._done:
            return False
        if connection is None:
            assert error is not None
            self._fail(error)
        else:
            self._send(connection)
        return True

    def _send(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        self.sent = True
        exchange = self._exchange
        connection.patience = self._timeout
        connection.deadline = exchange.connection.loop.time() + self._timeout
        request = exchange.request
        connection.send(self._head, self, is_head=request.method == b"HEAD")
        if not request.bare:
            connection.request_complete = False
            if self._kept is not None:
                for part in self._kept.parts:
                    self._write_body(connection, part)
            exchange.accept_body(self)

    def body(self, data: bytes) -> None:
        if self._exchange.request.upgrade:
            # Data of the new protocol, sent before the response. It is buffered until the 101.
            self._buffer += data
            if len(self._buffer) > BODY_HIGH_WATER:
                self._exchange.pause_body()
            return
        if self.recorder is not None:
            self.recorder.request(data)
        connection = self._connection
        if self._kept is None:
            self._kept = ReplayBuffer()
        self._kept.add(data, connected=connection is not None)
        if connection is not None:
            self._write_body(connection, data)

    def _write_body(self, connection: UpstreamConnection, data: bytes) -> None:
        self._sent_body = True
        if self.status == 0:
            # The response timeout starts with the last part of the request.
            connection.deadline = self._exchange.connection.loop.time() + self._timeout
        if self._exchange.request.chunked:
            connection.transport.writelines((b"%x\r\n" % len(data), data, b"\r\n"))
        else:
            connection.write(data)

    def body_end(self) -> None:
        connection = self._connection
        if connection is None:
            return
        # What follows an upgrade request is no body, and has no end.
        connection.request_complete = not self._exchange.request.upgrade
        if self._exchange.request.chunked:
            # Drop trailers of a request: they would reach the upstream without having been authorized.
            connection.write(b"0\r\n\r\n")

    def client_lost(self) -> None:
        if self.status == 101:
            # The tunnel closes the connection after it has delivered the client's data.
            self._connection = None
        else:
            self._drop_upstream()
        self._finish(self.status, None)

    def client_full(self) -> None:
        self._exchange.connection.must_read_within(self._timeout)
        if self._connection is not None:
            self._connection.pause()

    def client_ready(self) -> None:
        self._exchange.connection.must_read_within(float("inf"))
        if self._connection is not None:
            self._connection.resume()

    def upstream_full(self) -> None:
        self._exchange.pause_body()
        account, connection = self._exchange.connection.account, self._connection
        if account is not None and connection is not None and not self._unread:
            self._unread = connection.transport.get_write_buffer_size()
            if not account.hold_unread(self._unread):
                self._exchange.connection.loop.call_soon(self.cut)

    def upstream_ready(self) -> None:
        self._release_unread()
        self._exchange.resume_body()

    def _release_unread(self) -> None:
        unread, self._unread = self._unread, 0
        account = self._exchange.connection.account
        if unread and account is not None:
            account.release_unread(unread)

    # --- from the upstream ---

    def response_informational(self, status: int, headers: Headers) -> None:
        # The gateway has responded to an Expect itself. Other interim responses may be useful to an HTTP/1.1 client.
        if status != 100 and not self._exchange.request.http10:
            self._exchange.inform(
                b"".join((status_line(status), *self.upstream.pool.answer_headers.lines(headers), b"\r\n"))
            )

    def response_whole(self, status: int, lines: bytes, body: bytes) -> None:
        self._connection = None
        if status == 401 and self.credential is not None and (not self.relayed or is_unauthorized(body)):
            self._send_with_another_credential()
            return
        if status >= 300 and self._is_refused_redirect(status):
            self._fail_protocol(REDIRECTED)
            return
        self.status = status
        exchange = self._exchange
        if self.recorder is not None:
            self.recorder.response(body)
        # `connection_header` returns a complete line or nothing, so an empty line follows in either case.
        exchange.write(b"%b%b\r\n%b\r\n%b" % (lines, self._audit_line, exchange.connection_header(), body))
        if self.tells_when_started:
            self._owner.proxied_started(self, status)
        self._done = True
        self._owner.proxied_finished(self, status, None)
        exchange.end()

    def response_head(self, status: int, headers: Headers, framing: Framing) -> None:
        exchange = self._exchange
        is_about_us = status == 401 and self.credential is not None
        if is_about_us and not self.relayed:
            self._drop_upstream()
            self._send_with_another_credential()
            return
        if status >= 300 and self._is_refused_redirect(status):
            self._fail_protocol(REDIRECTED)
            return
        self.status = status
        if exchange.request.upgrade and status < 400:
            # Neither 101 nor an error. The client must not follow a redirect here, and a 200 opens no tunnel.
            self._fail_protocol("it answered a request to switch protocols with neither yes nor no")
            return
        if is_event_stream(headers) and not self._owner.proxied_streams(self):
            self._drop_upstream()
            self._finish(429, None)
            self._owner.proxied_refused(self)
            return
        # Withhold a 401 that a workload behind the upstream may have sent until the body shows who sent it.
        names = self.upstream.pool.answer_headers
        self._answer = answer = RelayedAnswer(exchange, names, self.recorder, withhold=is_about_us)
        answer.begin(status, headers, framing, self._audit_line)
        if self.tells_when_started and not is_about_us:
            self._owner.proxied_started(self, status)
        self._start_is_untold = self.tells_when_started and is_about_us

    def response_body(self, data: bytes) -> None:
        if self._answer is not None:
            self._answer.add(data)

    def response_flush(self) -> None:
        answer = self._answer
        if answer is not None:
            answer.flush()
            if self._start_is_untold and answer.withheld is None:
                self._tell_start()

    def _tell_start(self) -> None:
        """Report the start of a response that was withheld."""
        self._start_is_untold = False
        self._owner.proxied_started(self, self.status)

    def response_end(self, trailers: Headers) -> None:
        self._connection = None
        if self._done:
            return
        answer = self._answer
        assert answer is not None
        if answer.withheld is not None:
            withheld = answer.withheld_to_the_end()
            if withheld is not None and is_unauthorized(withheld):
                self._send_with_another_credential()
                return
        answer.end(trailers)
        if self._start_is_untold:
            self._tell_start()
        self._finish(self.status, None)
        self._exchange.end()

    def upstream_lost(self, error: UpstreamLost) -> None:
        connection, self._connection = self._connection, None
        if self._done:
            return
        # A pooled connection may have died while it was idle. On a fresh connection the failure is the upstream's.
        was_pooled = connection is not None and connection.reused
        if was_pooled and not self._retried and may_repeat(self._exchange.request, error, sent_body=self._sent_body):
            self._retried = True
            self._send_again()
            return
        self._fail(error)

    def _send_again(self) -> None:
        if not self._exchange.request.bare:
            # Pause the rest of the body until there is a connection.
            self._exchange.pause_body()
        self.upstream.pool.acquire(self._take_connection, fresh=True)

    def _send_with_another_credential(self) -> None:
        """The upstream rejected the gateway's credential: retry with a newer one if there is one."""
        assert self.credential is not None
        self._answer, self.status, self._start_is_untold = None, 0, False
        renewed = self.upstream.renewed_credential(self.credential)
        if isinstance(renewed, asyncio.Future):
            if not self._exchange.request.bare:
                # Pause the rest of the body, too.
                self._exchange.pause_body()
            renewed.add_done_callback(lambda future: self._send_with(future.result()))
        else:
            self._send_with(renewed)

    def _send_with(self, renewed: bytes | None) -> None:
        if self._done:
            return
        has_whole_body = self._kept is None or self._kept.is_complete
        if renewed is None or self._resent or not has_whole_body or self._exchange.gone:
            self._fail(UpstreamLost(REJECTED, answered=True, kind=FailureKind.CREDENTIAL, relayed=self.relayed))
            return
        self._resent = True
        if self.credential:
            self._head = self._head.replace(self.credential, renewed, 1)
        self.credential = renewed
        self._send_again()

    def _fail(self, error: UpstreamLost) -> None:
        exchange = self._exchange
        if exchange.head_sent:
            # A truncated response must not look complete.
            self._finish(self.status, error)
            exchange.abort()
            return
        self._answer = None
        status = failure_status(error, sent_body=self._sent_body)
        self._finish(status, error)
        self._owner.proxied_failed(self, status, error.kind)

    def _fail_protocol(self, message: str) -> None:
        self._drop_upstream()
        self._fail(UpstreamLost(message, answered=True))

    # --- the tunnel ---

    def response_switched(self, rest: bytes) -> None:
        exchange, connection = self._exchange, self._connection
        assert connection is not None
        if not exchange.request.upgrade:
            self._fail_protocol("it switched protocols without being asked")
            return
        headers = connection.switch_headers
        switched = [value.rstrip(b" \t") for name, value in headers if name.lower() == b"upgrade"]
        if [value.lower() for value in switched] != [exchange.request.upgrade]:
            self._fail_protocol("it switched to another protocol than was asked for")
            return
        self.status = 101
        connection.detach()
        lines = [status_line(101), b"Connection: Upgrade\r\nUpgrade: ", switched[0], b"\r\n"]
        lines.extend(self.upstream.pool.answer_headers.lines(headers))
        lines += (self._audit_line, b"\r\n\r\n")
        exchange.write(b"".join(lines) + rest)
        tunnel = UpstreamTunnel(exchange.connection, connection, self)
        connection.transport.set_protocol(tunnel)
        exchange.connection.tunnel = tunnel
        if self.tells_when_started:
            self._owner.proxied_started(self, 101)
        # First resume reading: if the upstream does not accept all buffered data, reading is paused again.
        exchange.connection.read_on()
        if self._buffer:
            connection.write(self._buffer)
            self._buffer = b""

    def tunnel_ended(self) -> None:
        """The upstream closed the connection."""
        self._connection = None
        self._exchange.responder = None
        self._finish(101, None)

    # --- inside ---

    def _is_refused_redirect(self, status: int) -> bool:
        """Whether to withhold the redirect: kubectl would follow it to any host and send its token there."""
        return status < 400 and status != 304 and self.upstream.refuses_redirects

    def _drop_upstream(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()

    def _finish(self, status: int, error: UpstreamLost | None) -> None:
        if not self._done:
            self._done = True
            if self._unread:
                self._release_unread()
            self._owner.proxied_finished(self, status, error)
