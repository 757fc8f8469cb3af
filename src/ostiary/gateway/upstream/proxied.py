"""Passes one allowed request to its upstream, and the answer back. Decides nothing.

Called by the engine; stands between a client's exchange and an upstream's connection and moves bytes both ways, each
side slowed to the pace of the other. Framing is written anew on both sides, so neither can be confused by the other's.
After a 101 it becomes a tunnel of raw bytes (WebSocket, SPDY).

A 401 of an upstream that knows the gateway by a credential is about that credential. It is read again and the request
sent once more, or the client gets a 503: its own credential has nothing to do with it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ostiary.gateway.http1.client.connection import UpstreamConnection
from ostiary.gateway.http1.client.framing import Framing
from ostiary.gateway.http1.client.receiver import FailureKind, UpstreamLost
from ostiary.gateway.http1.exchange import BODY_HIGH_WATER, STATUS_LINES, Exchange, status_line
from ostiary.gateway.http1.outbox import LINGER_SECONDS
from ostiary.gateway.upstream.own_credential import REJECTED
from ostiary.wire.status import is_unauthorized

if TYPE_CHECKING:
    from ostiary.gateway.upstream.upstreams import Upstream

# Server-sent events: an answer without an end.
_EVENTS = b"text/event-stream"
# Asking again changes nothing, so a connection that turned out to be dead costs the client nothing.
SAFE_METHODS = frozenset((b"GET", b"HEAD", b"OPTIONS"))
# A request's body is kept up to here, so that it can be sent a second time.
REPLAYABLE_BYTES = 64 * 1024
# A 401 that may be a program's behind the upstream is held back up to here, to see whose it is.
WITHHELD_BYTES = 16 * 1024


Context = TypeVar("Context")


class Owner(Protocol[Context]):
    """Whoever lets requests through, as each of them sees it."""

    def proxied_started(self, proxied: Proxied[Context], status: int) -> None:
        """The head of a long answer is on its way."""

    def proxied_finished(self, proxied: Proxied[Context], status: int, error: UpstreamLost | None) -> None:
        """It is over, with the status that the client saw (0: none). Called exactly once."""

    def proxied_failed(self, proxied: Proxied[Context], status: int, kind: FailureKind) -> None:
        """Tell the client that the upstream could not be asked, with a 502, 503 or 504."""

    def proxied_streams(self, proxied: Proxied[Context]) -> bool:
        """The answer is a stream, whatever the request looked like; says whether the user may have one more."""

    def proxied_refused(self, proxied: Proxied[Context]) -> None:
        """Tell the client that they have too many streams, with a 429."""


class Recorder:
    """Keeps the bodies that the audit policy wants, each up to a limit; beyond it, one byte more tells so."""

    def __init__(self, limit: int, *, request: bool, response: bool) -> None:
        self._limit = limit
        self._request: bytearray | None = bytearray() if request else None
        self._response: bytearray | None = bytearray() if response else None

    def request(self, data: bytes) -> None:
        self._keep(self._request, data)

    def response(self, data: bytes) -> None:
        self._keep(self._response, data)

    @property
    def request_body(self) -> bytes | None:
        return None if self._request is None else bytes(self._request)

    @property
    def response_body(self) -> bytes | None:
        return None if self._response is None else bytes(self._response)

    def _keep(self, kept: bytearray | None, data: bytes) -> None:
        if kept is not None and len(kept) <= self._limit:
            kept += data[: self._limit + 1 - len(kept)]


class Proxied(Generic[Context]):
    """One request on its way. *context* is the owner's own; *audit_line* goes to the client with the answer.

    `credential` is the line of the head by which the upstream knows us, and None where it does not know us. `relayed`
    tells that a program behind the upstream may answer, as behind the ``proxy`` of a pod.
    """

    __slots__ = (
        "_audit_line",
        "_buffer",
        "_chunk_out",
        "_connection",
        "_done",
        "_exchange",
        "_head",
        "_held",
        "_kept",
        "_kept_size",
        "_out",
        "_owner",
        "_pieces",
        "_resent",
        "_retried",
        "_sent_body",
        "_timeout",
        "_withheld",
        "context",
        "credential",
        "recorder",
        "relayed",
        "status",
        "tells_when_started",
        "upstream",
    )

    def __init__(
        self,
        exchange: Exchange,
        upstream: Upstream,
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
        self.status = 0
        self._connection: UpstreamConnection | None = None
        self._chunk_out = False
        self._out: list[bytes] = []
        # The parts of the answer's body that came with one read. None for most: their answer comes whole.
        self._pieces: list[bytes] | None = None
        # How many bytes the upstream has not read, while it does not keep up.
        self._held = 0
        self._buffer = b""
        self._retried = False
        self._resent = False
        # What came of the request's body so far; None if that is too much to be kept.
        self._kept: list[bytes] | None = []
        self._kept_size = 0
        self._withheld: bytes | None = None
        self._sent_body = False
        self._done = False

    def start(self) -> None:
        exchange = self._exchange
        exchange.responder = self
        if exchange.request.upgrade:
            # What it starts (a command, a terminal) must not be started twice, so it is not tried a second time; a
            # connection of its own cannot have died while it was idle.
            self.upstream.pool.acquire(self._connected, fresh=True)
            return
        connection = self.upstream.pool.idle()
        if connection is not None:
            self._send(connection)
        else:
            self.upstream.pool.acquire(self._connected)

    def cut(self) -> None:
        """End it at once: the right to it has been withdrawn."""
        self._drop_upstream()
        exchange = self._exchange
        self._finish(self.status, None)
        exchange.connection.tunnel = None
        exchange.abort()

    def give_up(self) -> None:
        """It could not even be begun."""
        self._drop_upstream()
        self._exchange.responder = None
        self._finish(self.status, None)

    # --- to the upstream ---

    def _connected(self, connection: UpstreamConnection | None, error: UpstreamLost | None) -> bool:
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
        exchange = self._exchange
        connection.patience = self._timeout
        connection.deadline = exchange.connection.loop.time() + self._timeout
        request = exchange.request
        connection.send(self._head, self, is_head=request.method == b"HEAD")
        if not request.bare:
            connection.request_complete = False
            for part in self._kept or ():
                self._write_body(connection, part)
            exchange.accept_body(self)

    def body(self, data: bytes) -> None:
        if self._exchange.request.upgrade:
            # Bytes of the new protocol, sent ahead of the answer. They wait for the 101.
            self._buffer += data
            if len(self._buffer) > BODY_HIGH_WATER:
                self._exchange.pause_body()
            return
        if self.recorder is not None:
            self.recorder.request(data)
        connection = self._connection
        self._keep(data, connected=connection is not None)
        if connection is not None:
            self._write_body(connection, data)

    def _keep(self, data: bytes, *, connected: bool) -> None:
        """Keep a part of the body in case it must be sent again; all of it while there is nobody to send it to."""
        if self._kept is None:
            return
        self._kept_size += len(data)
        if connected and self._kept_size > REPLAYABLE_BYTES:
            self._kept = None
        else:
            self._kept.append(data)

    def _write_body(self, connection: UpstreamConnection, data: bytes) -> None:
        self._sent_body = True
        if self.status == 0:
            # An upstream cannot answer before it was asked.
            connection.deadline = self._exchange.connection.loop.time() + self._timeout
        if self._exchange.request.chunked:
            connection.transport.writelines((b"%x\r\n" % len(data), data, b"\r\n"))
        else:
            connection.write(data)

    def body_end(self) -> None:
        connection = self._connection
        if connection is None:
            return
        # What follows an offer to switch protocols is no body, and has no end.
        connection.request_complete = not self._exchange.request.upgrade
        if self._exchange.request.chunked:
            # A request's trailers are dropped: they would reach the upstream after, and past, the decision.
            connection.write(b"0\r\n\r\n")

    def client_lost(self) -> None:
        if self.status == 101:
            self._close_tunnel()
        else:
            self._drop_upstream()
        self._finish(self.status, None)

    def client_full(self) -> None:
        if self.status != 101:
            self._exchange.connection.must_read_within(self._timeout)
        if self._connection is not None:
            self._connection.pause()

    def client_ready(self) -> None:
        if self.status != 101:
            self._exchange.connection.must_read_within(float("inf"))
        if self._connection is not None:
            self._connection.resume()

    def upstream_full(self) -> None:
        self._exchange.pause_body()
        account, connection = self._exchange.connection.account, self._connection
        if account is not None and connection is not None and not self._held:
            self._held = connection.transport.get_write_buffer_size()
            if not account.hold_unread(self._held):
                self._exchange.connection.loop.call_soon(self.cut)

    def upstream_ready(self) -> None:
        self._release_held()
        self._exchange.resume_body()

    def _release_held(self) -> None:
        held, self._held = self._held, 0
        account = self._exchange.connection.account
        if held and account is not None:
            account.release_unread(held)

    # --- from the upstream ---

    def response_informational(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        # We have answered an Expect ourselves; other news may be of use to a client that knows HTTP/1.1.
        if status != 100 and not self._exchange.request.http10:
            self._exchange.inform(
                b"".join((status_line(status), *self.upstream.pool.answer_headers.lines(headers), b"\r\n"))
            )

    def response_whole(self, status: int, lines: list[bytes], body: bytes) -> None:
        self._connection = None
        if status == 401 and self.credential is not None and (not self.relayed or is_unauthorized(body)):
            self._send_with_another_credential()
            return
        self.status = status
        exchange = self._exchange
        if self.recorder is not None:
            self.recorder.response(body)
        # What is said about the connection is a line with its end, or nothing: either way an empty line comes after it.
        lines += (self._audit_line, exchange.connection_header(), body)
        exchange.write(b"\r\n".join(lines))
        if self.tells_when_started:
            self._owner.proxied_started(self, status)
        self._done = True
        self._owner.proxied_finished(self, status, None)
        exchange.end()

    def response_head(self, status: int, headers: list[tuple[bytes, bytes]], framing: Framing) -> None:
        exchange = self._exchange
        if status == 401 and self.credential is not None:
            if not self.relayed:
                self._drop_upstream()
                self._send_with_another_credential()
                return
            self._withheld = b""
        self.status = status
        if exchange.request.upgrade and status < 400:
            # Neither a 101 nor an error: a redirect must not be followed, and 200 is no tunnel.
            self._fail_protocol("it answered a request to switch protocols with neither yes nor no")
            return
        if _is_event_stream(headers) and not self._owner.proxied_streams(self):
            self._drop_upstream()
            self._finish(429, None)
            self._owner.proxied_refused(self)
            return
        # The usual words, not the upstream's: nobody checked those for what a line must not hold.
        lines = [STATUS_LINES.get(status) or status_line(status)]
        lines.extend(self.upstream.pool.answer_headers.lines(headers))
        kind = framing.kind
        if kind == Framing.LENGTH:
            lines.append(b"Content-Length: %d\r\n" % framing.length)
        elif kind != Framing.NONE:
            if exchange.request.http10:
                exchange.close_after = True
            else:
                self._chunk_out = True
                lines.append(b"Transfer-Encoding: chunked\r\n")
        elif exchange.request.method == b"HEAD":
            lines.extend(_announced_length(headers))
        lines += (self._audit_line, b"\r\n", exchange.connection_header(), b"\r\n")
        self._out.extend(lines)
        if self.tells_when_started and self._withheld is None:
            self._owner.proxied_started(self, status)

    def response_body(self, data: bytes) -> None:
        if self._pieces is None:
            self._pieces = [data]
        else:
            self._pieces.append(data)

    def _gather_pieces(self) -> None:
        """What came with one read goes on as one chunk, in however many it came."""
        if not self._pieces:
            return
        pieces, self._pieces = self._pieces, None
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self._withheld is not None:
            self._withheld += data
            if len(self._withheld) > WITHHELD_BYTES:
                self._withheld = None
        if self.recorder is not None:
            self.recorder.response(data)
        if self._chunk_out:
            self._out += (b"%x\r\n" % len(data), data, b"\r\n")
        else:
            self._out.append(data)

    def response_flush(self) -> None:
        self._gather_pieces()
        if self._out and self._withheld is None:
            out, self._out = self._out, []
            self._exchange.write(b"".join(out))

    def response_end(self, trailers: list[tuple[bytes, bytes]]) -> None:
        self._connection = None
        if self._done:
            return
        self._gather_pieces()
        if self._withheld is not None and is_unauthorized(self._withheld):
            self._send_with_another_credential()
            return
        if self._chunk_out:
            self._out.append(
                b"0\r\n" + b"".join(self.upstream.pool.answer_headers.lines(trailers)) + b"\r\n"
                if trailers
                else b"0\r\n\r\n"
            )
        exchange = self._exchange
        if self._out:
            exchange.write(b"".join(self._out))
        self._finish(self.status, None)
        exchange.end()

    def upstream_lost(self, error: UpstreamLost) -> None:
        connection, self._connection = self._connection, None
        if self._done:
            return
        if self._may_retry(connection, error):
            self._retried = True
            self._send_again()
            return
        self._fail(error)

    def _send_again(self) -> None:
        if not self._exchange.request.bare:
            # Nobody takes the rest of the body until there is a connection.
            self._exchange.pause_body()
        self.upstream.pool.acquire(self._connected, fresh=True)

    def _send_with_another_credential(self) -> None:
        """The upstream rejected ours. The file may hold a newer one; if not, that is no fault of the client's."""
        assert self.credential is not None
        self._out.clear()
        self._withheld, self._chunk_out, self.status = None, False, 0
        renewed = self.upstream.renewed_credential(self.credential)
        if renewed is None or self._resent or self._kept is None or self._exchange.gone:
            self._fail(UpstreamLost(REJECTED, answered=True, kind=FailureKind.CREDENTIAL, relayed=self.relayed))
            return
        self._resent = True
        if self.credential:
            self._head = self._head.replace(self.credential, renewed, 1)
        self.credential = renewed
        self._send_again()

    def _may_retry(self, connection: UpstreamConnection | None, error: UpstreamLost) -> bool:
        """A pooled connection that died as we used it: the request was not seen, or is safe to repeat."""
        return (
            connection is not None
            and connection.reused
            and not self._retried
            and not error.answered
            and not error.timeout
            and not self._sent_body
            and not self._exchange.request.upgrade
            and self._exchange.request.method in SAFE_METHODS
        )

    def _fail(self, error: UpstreamLost) -> None:
        exchange = self._exchange
        if exchange.head_sent:
            # Half an answer must not look like a whole one.
            self._finish(self.status, error)
            exchange.abort()
            return
        self._out.clear()
        self._pieces = None
        status = _failure_status(error, sent_body=self._sent_body)
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
        connection.transport.set_protocol(_UpstreamTunnel(self))
        exchange.connection.tunnel = self
        if self.tells_when_started:
            self._owner.proxied_started(self, 101)
        # Before what waited is written: it may be more than the upstream can take, and reading pauses again.
        exchange.connection.read_on()
        if self._buffer:
            connection.write(self._buffer)
            self._buffer = b""

    def from_client(self, data: bytes) -> None:
        if self._connection is not None:
            self._connection.transport.write(data)

    def from_upstream(self, data: bytes) -> None:
        self._exchange.connection.transport.write(data)

    def upstream_eof(self) -> None:
        """The upstream says no more, and its connection ends with that: what it was told before still leaves."""
        if self._connection is not None:
            self._connection.transport.flush()

    def tunnel_ended(self) -> None:
        """The upstream hung up: what it sent still reaches the client, then that side ends, too."""
        self._connection = None
        connection = self._exchange.connection
        connection.tunnel = None
        self._exchange.responder = None
        self._finish(101, None)
        connection.close_soon()

    def _close_tunnel(self) -> None:
        """The client hung up: what it sent still reaches the upstream, if that reads it soon."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.transport.close()
            self._exchange.connection.loop.call_later(LINGER_SECONDS, connection.transport.abort)

    # --- inside ---

    def _drop_upstream(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()

    def _finish(self, status: int, error: UpstreamLost | None) -> None:
        if not self._done:
            self._done = True
            if self._held:
                self._release_held()
            self._owner.proxied_finished(self, status, error)


class _UpstreamTunnel(asyncio.Protocol, Generic[Context]):
    """The upstream's end of a tunnel: takes the place of its connection's HTTP."""

    __slots__ = ("_proxied",)

    def __init__(self, proxied: Proxied[Context]) -> None:
        self._proxied = proxied

    def data_received(self, data: bytes) -> None:
        self._proxied.from_upstream(data)

    def pause_writing(self) -> None:
        self._proxied.upstream_full()

    def resume_writing(self) -> None:
        self._proxied.upstream_ready()

    def eof_received(self) -> bool:
        self._proxied.upstream_eof()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._proxied.tunnel_ended()


def _failure_status(error: UpstreamLost, *, sent_body: bool) -> int:
    if error.kind is FailureKind.TIMEOUT:
        return 504
    if error.kind is FailureKind.CREDENTIAL:
        # Nothing was done: whoever asks again later does no harm.
        return 503
    return 502 if error.answered or sent_body else 503


def _is_event_stream(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() == b"content-type" and value.lower().startswith(_EVENTS) for name, value in headers)


def _announced_length(headers: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [b"Content-Length: " + value + b"\r\n" for name, value in headers if name.lower() == b"content-length"][:1]
