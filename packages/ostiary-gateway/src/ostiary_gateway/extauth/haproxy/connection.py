"""One connection from HAProxy: handshake, frames, and limits.

HAProxy pipelines queries, and responses are sent in any order. Bounded are the size of a frame, the open queries, and
the time for the handshake, for the rest of a frame, and for reading. A protocol error closes the connection: its
queries get no response, and HAProxy then denies the requests.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from ostiary_gateway.extauth.haproxy import spop
from ostiary_gateway.extauth.haproxy.spop import SpopError
from ostiary_gateway.http1.fair_queue import FairQueue
from ostiary_gateway.http1.write_coalescer import Outbox, OutgoingTransport
from ostiary_gateway.networks import network

# A frame of HAProxy fits into one of its buffers, of 16 KiB by default.
MOST_FRAME_BYTES = 128 * 1024
LEAST_FRAME_BYTES = 256
# HAProxy has at most 20 open queries per connection by default.
MOST_OPEN = 256
# Number of frames handled in one turn of a connection.
FRAMES_PER_TURN = 8
# Reading pauses above this: one read may return a quarter of a megabyte.
UNREAD_HIGH_WATER = 16 * 1024
# Consecutive queries from an unauthenticated sender after which the connection is closed.
MOST_UNKNOWN = 16
GREETING_SECONDS = FRAME_SECONDS = READING_SECONDS = 10.0
_NEVER = float("inf")
# Type, flags, and two numbers of one byte each.
_SHORTEST_FRAME = 7


class AgentOfConnections(Protocol):
    """State shared by the connections of one address: see `agent`."""

    loop: asyncio.AbstractEventLoop
    outbox: Outbox
    queue: FairQueue

    def admit(self, connection: AgentConnection) -> bool:
        """Register the connection. Return False if there are too many."""

    def forget(self, connection: AgentConnection) -> None: ...

    def answer_question(self, connection: AgentConnection, stream: int, frame: int, payload: bytes) -> None:
        """Respond to a query, now or later. Must not raise."""

    def note_broken(self, connection: AgentConnection, cause: str) -> None: ...


class AgentConnection(asyncio.Protocol):
    """One connection. `frame_size` is the negotiated maximum."""

    def __init__(self, agent: AgentOfConnections) -> None:
        self._agent = agent
        self.loop = agent.loop
        self.remote_address = ""
        self.peer_certificate: bytes | None = None
        self.frame_size = MOST_FRAME_BYTES
        self.deadline = _NEVER
        self.draining = False
        self._queue = agent.queue
        self._rest = bytearray()
        self._open = self._unknown = 0
        self._queued = False
        self._greeted = self._ended = self._write_paused = self._read_paused = False

    transport: OutgoingTransport

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = OutgoingTransport(cast("asyncio.Transport", transport), self._agent.outbox)
        peer = transport.get_extra_info("peername")
        self.remote_address = str(peer[0]) if peer else ""
        self.peer_certificate = self.transport.peer_certificate()
        self.deadline = self.loop.time() + GREETING_SECONDS
        if not self._agent.admit(self):
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._agent.forget(self)

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._rest += data
        if self._queued:
            self._pause_or_resume()
        elif not self._queue.may_start():
            self._wait_for_turn(has_backlog=False)
        elif self._handle_frames():
            self._wait_for_turn(has_backlog=True)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._write_paused = True
        self.deadline = self.loop.time() + READING_SECONDS
        self._pause_or_resume()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.deadline = self._idle_deadline()
        if not self._ended and self._has_frame():
            self._wait_for_turn(has_backlog=True)
        self._pause_or_resume()

    # --- called by the queue ---

    def run_turn(self) -> bool:
        self._queued = False
        self._queued = not self._ended and self._handle_frames()
        self._pause_or_resume()
        return self._queued

    def abort(self) -> None:
        self.transport.abort()

    # --- called by the agent and the handler ---

    @property
    def busy(self) -> bool:
        return self._open > 0

    def answer(self, stream: int, number: int, actions: bytes) -> None:
        """Respond to a query with actions that set variables of its request."""
        self._open -= 1
        if self._ended:
            return
        self.transport.write(spop.frame(spop.ACK, stream, number, actions))
        if self.draining and not self._open:
            self.disconnect(spop.NORMAL, "the gateway is stopping")
        elif self._read_paused:
            if self._has_frame() and not self._is_full:
                self._wait_for_turn(has_backlog=True)
            self._pause_or_resume()

    def note_caller(self, *, known: bool) -> None:
        """Record whether the proxy was authenticated. Repeated failures close the connection."""
        self._unknown = 0 if known else self._unknown + 1
        if self._unknown >= MOST_UNKNOWN:
            self._agent.note_broken(self, "too many questions had no valid secret")
            self.disconnect(spop.UNKNOWN, "the secret is not valid")

    def drain(self) -> None:
        """Respond to the open queries, then disconnect."""
        self.draining = True
        if not self._open:
            self.disconnect(spop.NORMAL, "the gateway is stopping")

    def time_out(self) -> None:
        """Handle an expired `deadline`."""
        if self._write_paused:
            self.transport.abort()
        else:
            self.disconnect(spop.TIMED_OUT, "the frame took too long to arrive")

    def disconnect(self, code: int, message: str) -> None:
        """Send the reason and close the connection."""
        if self._ended:
            return
        why = {b"status-code": spop.uint32(code), b"message": spop.string(message.encode())}
        self.transport.write(spop.frame(spop.AGENT_DISCONNECT, 0, 0, spop.pairs(why)))
        self._end()

    # --- internals ---

    def _end(self) -> None:
        self._ended = True
        self.deadline = self.loop.time() + READING_SECONDS
        self._rest.clear()
        self.transport.close()

    def _idle_deadline(self) -> float:
        return _NEVER if self._greeted else self.deadline

    def _wait_for_turn(self, *, has_backlog: bool) -> None:
        if not self._queued and not self._is_full:
            self._queued = True
            self.deadline = self._idle_deadline()
            self._queue.add(self, network(self.remote_address), has_backlog=has_backlog)
        self._pause_or_resume()

    def _handle_frames(self) -> bool:
        """Handle some complete frames. Return whether there are more."""
        handled = 0
        try:
            while handled < FRAMES_PER_TURN and not self._ended and not self._is_full and self._has_frame():
                end = 4 + int.from_bytes(self._rest[:4], "big")
                frame = bytes(self._rest[4:end])
                # Amortised: a bytearray does not move what follows.
                del self._rest[:end]
                self._handle(frame)
                handled += 1
            has_more = not self._ended and self._has_frame()
        except SpopError as error:
            self._agent.note_broken(self, str(error))
            self.disconnect(error.code, "the frame cannot be understood")
            return False
        if self._ended:
            return False
        if has_more:
            # Frames are waiting for their turn here, so HAProxy is not late.
            self.deadline = self._idle_deadline()
        elif handled or not self._rest:
            # A frame was completed; the timeout of the next one starts now.
            self.deadline = self.loop.time() + FRAME_SECONDS if self._rest else self._idle_deadline()
        elif self.deadline == _NEVER:
            self.deadline = self.loop.time() + FRAME_SECONDS
        return has_more and not self._is_full

    def _has_frame(self) -> bool:
        """Report whether a complete frame has arrived, without copying a long one for each part of it."""
        return len(self._rest) >= 4 and len(self._rest) - 4 >= self._size(int.from_bytes(self._rest[:4], "big"))

    @property
    def _is_full(self) -> bool:
        return self._write_paused or self._open >= MOST_OPEN

    def _size(self, size: int) -> int:
        if not _SHORTEST_FRAME <= size <= self.frame_size:
            raise SpopError(spop.TOO_BIG, "a frame has an impossible length")
        return size

    def _handle(self, frame: bytes) -> None:
        kind = frame[0]
        if not frame[4] & spop.FIN:
            raise SpopError(spop.NO_FRAGMENTS, "a frame comes in fragments, which was not agreed on")
        stream, at = spop.read_number(frame, 5)
        number, at = spop.read_number(frame, at)
        if kind == spop.NOTIFY and self._greeted:
            self._open += 1
            if self._open >= MOST_OPEN:
                self._pause_or_resume()
            self._agent.answer_question(self, stream, number, frame[at:])
        elif kind == spop.HAPROXY_HELLO and not self._greeted:
            self._greet(spop.read_pairs(frame, at)[0])
        elif kind == spop.HAPROXY_DISCONNECT:
            self._end()
        elif kind == spop.NOTIFY:
            raise SpopError(spop.INVALID, "a question comes before the greeting")
        # Frames of other types are ignored, as SPOP requires.

    def _greet(self, said: dict[bytes, spop.Value]) -> None:
        versions, size = said.get(b"supported-versions"), said.get(b"max-frame-size")
        if not isinstance(versions, bytes):
            raise SpopError(spop.NO_VERSION, "the greeting names no versions")
        if b"2.0" not in [version.strip() for version in versions.split(b",")]:
            raise SpopError(spop.UNSUPPORTED_VERSION, "the greeting names no version that is spoken here")
        if not isinstance(size, int):
            raise SpopError(spop.NO_FRAME_SIZE, "the greeting names no size of frames")
        if size < LEAST_FRAME_BYTES:
            raise SpopError(spop.BAD_FRAME_SIZE, "the frames are too small")
        self.frame_size = min(size, MOST_FRAME_BYTES)
        self._greeted = True
        self.deadline = _NEVER
        answer = {
            b"version": spop.string(b"2.0"),
            b"max-frame-size": spop.uint32(self.frame_size),
            b"capabilities": spop.string(b"pipelining"),
        }
        self.transport.write(spop.frame(spop.AGENT_HELLO, 0, 0, spop.pairs(answer)))
        if said.get(b"healthcheck") is True:
            self._end()

    def _pause_or_resume(self) -> None:
        pauses = self._is_full or (self._queued and len(self._rest) > UNREAD_HIGH_WATER)
        if pauses == self._read_paused or self._ended:
            return
        self._read_paused = pauses
        if pauses:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
