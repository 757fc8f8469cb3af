"""Server connections for ``ext_authz``: HTTP/2 by the library ``h2``, and the part of gRPC that one method needs.

Everything that the peer can make us buffer is bounded, both before and after it has presented the secret: concurrent
calls, the message of each and of all, unread responses, calls that are cancelled, and control frames. Each turn of a
connection handles a few frames (`FairQueue`).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RequestReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

from ostiary_gateway.extauth.callers import presented_secret
from ostiary_gateway.extauth.grpc import (
    DEADLINE_EXCEEDED,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    BadCall,
    Call,
    Handle,
    framed,
    message_in,
)
from ostiary_gateway.http1.fair_queue import FairQueue
from ostiary_gateway.http1.request_head import ServerLimits
from ostiary_gateway.http1.write_coalescer import LINGER_SECONDS, Outbox, OutgoingTransport
from ostiary_gateway.networks import network
from ostiary_gateway.wire.envoy_check import METHOD

# h2's connection with our limits.

MOST_CALLS = 256
# Limit of the metadata of one call. Envoy sends less than one kilobyte.
MOST_METADATA_BYTES = 16 * 1024
# Response headers are constants, so they need no validation.
_CONFIGURATION = H2Configuration(
    client_side=False, header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
)


class BoundedHttp2(H2Connection):
    """The server side of an HTTP/2 connection.

    Limits apply from the first byte on, not only after the peer confirms them.
    """

    DEFAULT_MAX_HEADER_LIST_SIZE = MOST_METADATA_BYTES
    # Number of ended calls that are tracked, to distinguish a late frame from an invalid one.
    MAX_CLOSED_STREAMS = 1024

    def __init__(self) -> None:
        super().__init__(_CONFIGURATION)
        settings = {
            SettingCodes.MAX_CONCURRENT_STREAMS: MOST_CALLS,
            SettingCodes.MAX_HEADER_LIST_SIZE: MOST_METADATA_BYTES,
        }
        self.local_settings = Settings(client=False, initial_values=settings)

    def goodbye(self) -> bytes:
        """Return a GOAWAY frame that lets calls in progress end. After h2's own, no response could be sent."""
        return GoAwayFrame(stream_id=0, last_stream_id=self.highest_inbound_stream_id).serialize()


# Splits received data into frames (RFC 9113, section 4.1). h2 parses everything it is given synchronously, so it is
# given a few frames at a time.

_PREFACE_BYTES, _HEAD_BYTES = 24, 9
_DATA, _HEADERS, _CONTINUATION = 0x0, 0x1, 0x9
_END_STREAM, _PADDED = 0x1, 0x8


class Frames:
    """The received and unhandled data of one connection.

    `control` counts frames that carry no call data: PING, SETTINGS, WINDOW_UPDATE, PRIORITY, RST_STREAM, unknown types,
    and empty DATA that does not end a call (CVE-2019-9512, 9513, 9514, 9515, 9518).
    """

    __slots__ = ("_data", "_left", "control")

    def __init__(self) -> None:
        self._data = bytearray()
        # The bytes still missing of the frame that was taken in part; initially of the client's preface.
        self._left = _PREFACE_BYTES
        self.control = 0

    @property
    def size(self) -> int:
        return len(self._data)

    @property
    def has_more(self) -> bool:
        """Whether `take` has something to return."""
        return len(self._data) >= _HEAD_BYTES or (self._left > 0 and len(self._data) > 0)

    def add(self, data: bytes) -> None:
        self._data += data

    def take(self, most: int) -> bytes:
        """Return up to *most* frames, the last one possibly in part, once its head is complete."""
        data, at, size = self._data, 0, len(self._data)
        for _ in range(most):
            if not self._left:
                if size - at < _HEAD_BYTES:
                    break
                self._count(data[at : at + _HEAD_BYTES])
                self._left = _HEAD_BYTES + int.from_bytes(data[at : at + 3], "big")
            part = min(self._left, size - at)
            self._left -= part
            at += part
            if self._left:
                break
        taken = bytes(data[:at])
        # Amortised: a bytearray does not move what follows.
        del data[:at]
        return taken

    def _count(self, head: bytes | bytearray) -> None:
        length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        if kind == _DATA:
            # Padding is useless, and no gRPC client sends any.
            self.control += (length == 0 or bool(flags & _PADDED)) and not flags & _END_STREAM
        else:
            self.control += kind not in (_HEADERS, _CONTINUATION)


# Memory limits per connection and in total: incomplete calls and unread responses.

# Limit per connection, and for all connections together.
MOST_KEPT = 2 * 1024 * 1024
MOST_KEPT_IN_ALL = 64 * 1024 * 1024
# A connection below this is never closed for the total.
MODEST = 64 * 1024
# Limit of data that completes no frame: several times the largest metadata with its frames.
MOST_UNREADABLE = 64 * 1024
# Approximate memory of a call before any of its message has arrived.
CALL_BYTES = 4096


class KeptInAll:
    """The buffered bytes of all connections."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


class KeptBytes:
    """The buffered bytes of one connection."""

    __slots__ = ("_in_all", "_size", "_unreadable")

    def __init__(self, in_all: KeptInAll) -> None:
        self._in_all = in_all
        self._size = 0
        # Bytes of an incomplete item: h2 buffers headers that span many frames.
        self._unreadable = 0

    @property
    def is_too_much(self) -> bool:
        if self._size <= MODEST:
            return False
        return self._size > MOST_KEPT or self._unreadable > MOST_UNREADABLE or self._in_all.size > MOST_KEPT_IN_ALL

    def add(self, size: int) -> None:
        """Add *size* buffered bytes; negative if they were released."""
        self._size += size
        self._in_all.size += size

    def note_received(self, size: int, *, is_whole: bool) -> None:
        """Record received bytes. If *is_whole*, they completed an item, which is counted where it is buffered."""
        change = -self._unreadable if is_whole else size
        if change:
            self._unreadable += change
            self.add(change)

    def release(self) -> None:
        """Release all bytes: the connection has ended."""
        self._in_all.size -= self._size
        self._size = self._unreadable = 0


log = logging.getLogger("ostiary.gateway")

# Limit of cancelled calls beyond the number of responses. Envoy cancels a call when its client disconnects.
MOST_TAKEN_BACK = 256
# Number of frames handled in one turn of a connection.
FRAMES_PER_TURN = 8
# Limit of control frames, plus an allowance for each response and one per second: Envoy measures the round trip with a
# PING for some messages, sends window updates for each response, and keeps idle connections alive.
MOST_CONTROL_FRAMES, CONTROL_FRAMES_PER_CALL = 1024, 16
# Reading pauses above this: one read may return a quarter of a megabyte.
UNREAD_HIGH_WATER = 16 * 1024
# A message contains the path twice, and the addresses of both sides.
_BESIDE_HEAD = 16 * 1024
_NEVER = float("inf")
_CONTENT_TYPE = (b"content-type", b"application/grpc")


def largest_message(limits: ServerLimits) -> int:
    return 2 * limits.head_bytes + _BESIDE_HEAD


@dataclass(slots=True)
class _Incoming:
    """A call whose message is incomplete. `data` includes the five bytes before the message."""

    secret: bytes
    began: float
    data: bytearray


class CheckConnection(asyncio.Protocol):
    """One connection. `deadline` is when the server's ticker closes it, by the loop's clock."""

    __slots__ = (
        "_answered",
        "_began",
        "_blocked",
        "_calls",
        "_frames",
        "_http",
        "_incoming",
        "_kept",
        "_limits",
        "_queue",
        "_queued",
        "_read_paused",
        "_server",
        "_taken_back",
        "_write_paused",
        "deadline",
        "draining",
        "loop",
        "peer_certificate",
        "remote_address",
        "transport",
    )

    def __init__(self, server: CheckServer) -> None:
        self._server = server
        self._limits = server.limits
        self.loop = server.loop
        # Set by the event loop in `connection_made`.
        self.transport: OutgoingTransport
        self.remote_address = ""
        self.peer_certificate: bytes | None = None
        self.draining = False
        self.deadline = _NEVER
        self._http = BoundedHttp2()
        # In the order of arrival.
        self._incoming: dict[int, _Incoming] = {}
        self._calls: dict[int, Call] = {}
        # The rest of responses for which the peer's flow-control window has no room yet.
        self._blocked: dict[int, bytes] = {}
        self._kept = KeptBytes(server.kept)
        self._answered = self._taken_back = 0
        self._queue = server.queue
        self._frames = Frames()
        self._began = self.loop.time()
        self._queued = self._read_paused = self._write_paused = False

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = OutgoingTransport(cast("asyncio.Transport", transport), self._server.outbox)
        peer = transport.get_extra_info("peername")
        self.remote_address = peer[0] if isinstance(peer, tuple) and peer else "unix"
        self.peer_certificate = self.transport.peer_certificate()
        self.deadline = self.loop.time() + self._limits.head_timeout
        connections = self._server.connections
        if len(connections) >= self._limits.connections:
            self.transport.abort()
            return
        connections.add(self)
        self._http.initiate_connection()
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._frames.add(data)
        self._kept.add(len(data))
        if self._queued or self._write_paused:
            self._pause_or_resume()
        elif not self._queue.may_start():
            self._wait_for_turn(has_backlog=False)
        elif self._handle_frames():
            self._wait_for_turn(has_backlog=True)
        if self._kept.is_too_much:
            self._end(ErrorCodes.ENHANCE_YOUR_CALM)

    def _handle_frames(self) -> bool:
        """Handle some frames. Return whether there are more."""
        data = self._frames.take(FRAMES_PER_TURN)
        self._kept.add(-len(data))
        self._receive(data)
        return self._frames.has_more and not self._write_paused and not self.transport.is_closing()

    def _receive(self, data: bytes) -> None:
        try:
            events = self._http.receive_data(data)
            self._kept.note_received(len(data), is_whole=bool(events))
            for event in events:
                self._take(event)
                if self.transport.is_closing():
                    return
        except ProtocolError:
            # h2 has queued the frame with the error.
            self._flush()
            self.close_soon()
            return
        except Exception as error:
            log.error("a connection of a door failed", extra={"cause": type(error).__name__}, exc_info=error)
            self.transport.abort()
            return
        self._flush()
        if self._kept.is_too_much or self._frames.control > self._most_control_frames():
            self._end(ErrorCodes.ENHANCE_YOUR_CALM)
        elif events:
            self._set_deadline()

    def _most_control_frames(self) -> float:
        seconds = self.loop.time() - self._began
        return MOST_CONTROL_FRAMES + CONTROL_FRAMES_PER_CALL * self._answered + seconds

    def pause_writing(self) -> None:
        # A peer that does not read its responses gets no further ones.
        self._write_paused = True
        self._pause_or_resume()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._frames.has_more:
            self._wait_for_turn(has_backlog=True)
        self._pause_or_resume()

    # --- called by the queue ---

    def run_turn(self) -> bool:
        self._queued = False
        if not self._write_paused and not self.transport.is_closing():
            self._queued = self._handle_frames()
        self._pause_or_resume()
        return self._queued

    def abort(self) -> None:
        self.transport.abort()

    def _wait_for_turn(self, *, has_backlog: bool) -> None:
        if not self._queued and not self.transport.is_closing():
            self._queued = True
            self._queue.add(self, network(self.remote_address), has_backlog=has_backlog)
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        pauses = self._write_paused or (self._queued and self._frames.size > UNREAD_HIGH_WATER)
        if pauses == self._read_paused or self.transport.is_closing():
            return
        self._read_paused = pauses
        if pauses:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    # --- called by the event loop, continued ---

    def eof_received(self) -> bool:
        self.transport.flush()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._kept.release()
        self._incoming.clear()
        self._blocked.clear()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.give_up()

    # --- called by a call ---

    def answer(self, call: Call, message: bytes) -> None:
        self._calls.pop(call.stream, None)
        self._answered += 1
        try:
            self._http.send_headers(call.stream, [(b":status", b"200"), _CONTENT_TYPE])
            self._blocked[call.stream] = data = framed(message)
            self._kept.add(len(data))
            self._send_blocked(call.stream)
        except ProtocolError:
            # The call was cancelled, or the peer has closed the connection.
            self._forget_blocked(call.stream)
        self._finish_answer()

    def fail(self, call: Call, code: int, text: bytes) -> None:
        self._calls.pop(call.stream, None)
        self._send_failure(call.stream, code, text)
        self._finish_answer()

    # --- called by the worker ---

    @property
    def busy(self) -> bool:
        return bool(self._calls or self._incoming or self._blocked)

    def drain(self) -> None:
        """Finish the calls in progress and accept no more on this connection."""
        if not self.draining and not self.transport.is_closing():
            self.transport.write(self._http.goodbye())
        self.draining = True
        if not self.busy:
            self.close_soon()

    def time_out(self) -> None:
        """Handle an expired `deadline`."""
        self.deadline = _NEVER
        began_before = self.loop.time() - self._limits.head_timeout
        late = [stream for stream, incoming in self._incoming.items() if incoming.began <= began_before]
        if self.transport.is_closing():
            self.transport.abort()
        elif late:
            for stream in late:
                self._refuse(stream, DEADLINE_EXCEEDED, b"the call took too long to arrive")
            self._flush()
            self._set_deadline()
        else:
            self._end(ErrorCodes.NO_ERROR)

    def close_soon(self) -> None:
        """Close the connection when the peer has read what was written, or after a timeout."""
        self.deadline = self.loop.time() + LINGER_SECONDS
        self.transport.close()

    # --- internals ---

    def _take(self, event: Event) -> None:
        match event:
            case RequestReceived():
                self._begin(event)
            case DataReceived():
                self._collect(event)
            case StreamEnded():
                self._complete(event.stream_id)
            case StreamReset():
                self._forget(event.stream_id)
            case WindowUpdated():
                for stream in [event.stream_id] if event.stream_id else list(self._blocked):
                    self._send_blocked(stream)
            case TrailersReceived():
                # This method has no trailers.
                self._refuse(event.stream_id, INVALID_ARGUMENT, b"a call has no trailers")
            case ConnectionTerminated():
                # No more responses can be sent. Pending calls end with the connection.
                self.close_soon()

    def _begin(self, event: RequestReceived) -> None:
        headers = event.headers
        values = dict(headers)
        stream = event.stream_id
        if self.draining:
            # The peer was notified, and REFUSED_STREAM guarantees that the call was not processed.
            self._http.reset_stream(stream, ErrorCodes.REFUSED_STREAM)
            return
        self._incoming[stream] = _Incoming(presented_secret(headers), self.loop.time(), bytearray())
        self._kept.add(CALL_BYTES)
        if values.get(b":path") != METHOD or values.get(b":method") != b"POST":
            self._refuse(stream, UNIMPLEMENTED, b"there is no such method")
        elif not values.get(b"content-type", b"").startswith(b"application/grpc"):
            self._refuse(stream, INVALID_ARGUMENT, b"this is no call of gRPC")

    def _collect(self, event: DataReceived) -> None:
        # Memory is bounded here instead of by the HTTP/2 window: half a message must not block another.
        self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        incoming = self._incoming.get(event.stream_id)
        if incoming is None:
            return
        incoming.data += event.data
        self._kept.add(len(event.data))
        if len(incoming.data) > largest_message(self._limits):
            self._refuse(event.stream_id, RESOURCE_EXHAUSTED, b"the message is too large")

    def _complete(self, stream: int) -> None:
        incoming = self._drop_incoming(stream)
        if incoming is None:
            return
        try:
            message = message_in(bytes(incoming.data))
        except BadCall as error:
            self._send_failure(stream, error.code, error.text)
            return
        call = self._calls[stream] = Call(self, stream, incoming.secret, message)
        # Looked up for every call: a connection may outlive a configuration.
        self._server.handle(call)

    def _forget(self, stream: int) -> None:
        """Handle the cancellation of a call."""
        self._drop_incoming(stream)
        self._forget_blocked(stream)
        call = self._calls.pop(stream, None)
        if call is not None:
            call.give_up()
        self._taken_back += 1
        if self._taken_back - self._answered > MOST_TAKEN_BACK:
            self._end(ErrorCodes.ENHANCE_YOUR_CALM)

    def _refuse(self, stream: int, code: int, text: bytes) -> None:
        """Fail a call before all of it has arrived."""
        if self._drop_incoming(stream) is not None:
            self._send_failure(stream, code, text)
            with suppress(ProtocolError):
                # What follows is ignored. If nothing follows, the call has ended already.
                self._http.reset_stream(stream, ErrorCodes.NO_ERROR)

    def _drop_incoming(self, stream: int) -> _Incoming | None:
        incoming = self._incoming.pop(stream, None)
        if incoming is not None:
            self._kept.add(-CALL_BYTES - len(incoming.data))
        return incoming

    # --- responses ---

    def _send_failure(self, stream: int, code: int, text: bytes) -> None:
        headers = [(b":status", b"200"), _CONTENT_TYPE, (b"grpc-status", b"%d" % code), (b"grpc-message", text)]
        self._answered += 1
        # The call may have been cancelled.
        with suppress(ProtocolError):
            self._http.send_headers(stream, headers, end_stream=True)

    def _send_blocked(self, stream: int) -> None:
        """Send as much of a response as the peer's window permits, and the trailers after the last part."""
        data = self._blocked.get(stream)
        if data is None:
            return
        http = self._http
        while data:
            size = min(len(data), http.local_flow_control_window(stream), http.max_outbound_frame_size)
            if size <= 0:
                return
            http.send_data(stream, data[:size])
            self._blocked[stream] = data = data[size:]
            self._kept.add(-size)
        del self._blocked[stream]
        http.send_headers(stream, [(b"grpc-status", b"0")], end_stream=True)

    def _forget_blocked(self, stream: int) -> None:
        self._kept.add(-len(self._blocked.pop(stream, b"")))

    def _finish_answer(self) -> None:
        self._flush()
        if self._kept.is_too_much:
            self._end(ErrorCodes.ENHANCE_YOUR_CALM)
        elif self.draining and not self.busy:
            self.close_soon()
        else:
            self._set_deadline()

    def _end(self, error: ErrorCodes) -> None:
        """Close the connection with *error*. Open calls are aborted."""
        if not self.transport.is_closing():
            self._http.close_connection(error)
            self._flush()
            self.close_soon()

    def _flush(self) -> None:
        data = self._http.data_to_send()
        if data and not self.transport.is_closing():
            self.transport.write(data)

    def _set_deadline(self) -> None:
        if self.transport.is_closing():
            return
        if self._incoming:
            self.deadline = next(iter(self._incoming.values())).began + self._limits.head_timeout
        elif self._blocked:
            self.deadline = min(self.deadline, self.loop.time() + self._limits.body_timeout)
        elif self._calls:
            # Decisions have their own timeout.
            self.deadline = _NEVER
        else:
            self.deadline = self.loop.time() + self._limits.idle_timeout


class CheckServer:
    """State shared by the connections of the gRPC listener.

    A reload changes `handle`, and `limits` for new connections.
    """

    __slots__ = ("connections", "handle", "kept", "limits", "loop", "outbox", "queue")

    def __init__(
        self,
        handle: Handle,
        limits: ServerLimits,
        loop: asyncio.AbstractEventLoop,
        queue: FairQueue | None = None,
    ) -> None:
        self.handle = handle
        self.limits = limits
        self.loop = loop
        self.connections: set[CheckConnection] = set()
        self.kept = KeptInAll()
        self.outbox = Outbox(loop)
        # Shared by the listeners of a worker.
        self.queue = queue or FairQueue(loop)

    def connection(self) -> CheckConnection:
        """Return the protocol of a new connection."""
        return CheckConnection(self)
