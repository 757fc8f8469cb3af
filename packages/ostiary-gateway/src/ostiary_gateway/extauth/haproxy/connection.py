"""One connection of HAProxy to the gateway as its agent: its greeting, its frames, and what it may take.

Made by the agent for each connection. HAProxy sends questions without waiting for answers, and they are answered in any
order. Bounded are the size of a frame, the questions that are open, and how long HAProxy may take to greet, to finish a
frame that it has begun, and to read. Whatever breaks the protocol ends the connection: its questions have no answer
then, and HAProxy lets nobody in.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from ostiary_gateway.extauth.haproxy import spop
from ostiary_gateway.extauth.haproxy.spop import SpopError
from ostiary_gateway.http1.fair_queue import FairQueue
from ostiary_gateway.http1.write_coalescer import Outbox, OutgoingTransport
from ostiary_gateway.networks import network

# A frame of HAProxy fits into one of its buffers, which have 16 KiB unless it is told otherwise.
MOST_FRAME_BYTES = 128 * 1024
LEAST_FRAME_BYTES = 256
# HAProxy itself has at most 20 open on a connection, unless it is told otherwise.
MOST_OPEN = 256
# So many frames are handled in one turn of a connection; the rest waits for the next one.
FRAMES_PER_TURN = 8
# Reading pauses above this: one read may bring a quarter of a megabyte.
UNREAD_HIGH_WATER = 16 * 1024
# So many questions in a row whose sender is not the proxy end the connection.
MOST_UNKNOWN = 16
GREETING_SECONDS = FRAME_SECONDS = READING_SECONDS = 10.0
_NEVER = float("inf")
# Type, flags, and two numbers of a byte each.
_SHORTEST_FRAME = 7


class AgentOfConnections(Protocol):
    """What the connections of one address share: see `agent`."""

    loop: asyncio.AbstractEventLoop
    outbox: Outbox
    queue: FairQueue

    def admit(self, connection: AgentConnection) -> bool:
        """Whether there is room for one more."""

    def forget(self, connection: AgentConnection) -> None: ...

    def answer_question(self, connection: AgentConnection, stream: int, frame: int, payload: bytes) -> None:
        """Answer a question, now or later. It never raises."""

    def note_broken(self, connection: AgentConnection, cause: str) -> None: ...


class AgentConnection(asyncio.Protocol):
    """One connection. `frame_size` is what both sides have agreed on."""

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

    # --- the loop calls these ---

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

    # --- the queue calls these ---

    def run_turn(self) -> bool:
        self._queued = False
        self._queued = not self._ended and self._handle_frames()
        self._pause_or_resume()
        return self._queued

    def abort(self) -> None:
        self.transport.abort()

    # --- others call these ---

    @property
    def busy(self) -> bool:
        return self._open > 0

    def answer(self, stream: int, number: int, actions: bytes) -> None:
        """Answer a question with what sets the variables of its request."""
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
        """Whether the proxy has sent the question. Somebody else who asks again and again is not listened to."""
        self._unknown = 0 if known else self._unknown + 1
        if self._unknown >= MOST_UNKNOWN:
            self._agent.note_broken(self, "too many questions had no valid secret")
            self.disconnect(spop.UNKNOWN, "the secret is not valid")

    def drain(self) -> None:
        """Answer what was asked, and end."""
        self.draining = True
        if not self._open:
            self.disconnect(spop.NORMAL, "the gateway is stopping")

    def time_out(self) -> None:
        """The ticker found that `deadline` has passed."""
        if self._write_paused:
            self.transport.abort()
        else:
            self.disconnect(spop.TIMED_OUT, "the frame took too long to arrive")

    def disconnect(self, code: int, message: str) -> None:
        """Say why, and end."""
        if self._ended:
            return
        why = {b"status-code": spop.uint32(code), b"message": spop.string(message.encode())}
        self.transport.write(spop.frame(spop.AGENT_DISCONNECT, 0, 0, spop.pairs(why)))
        self._end()

    # --- inside ---

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
        """Handle some whole frames; whether there are more."""
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
            # The client is not late.
            self.deadline = self._idle_deadline()
        elif handled or not self._rest:
            # A whole frame came; the next one has its time from now on.
            self.deadline = self.loop.time() + FRAME_SECONDS if self._rest else self._idle_deadline()
        elif self.deadline == _NEVER:
            self.deadline = self.loop.time() + FRAME_SECONDS
        return has_more and not self._is_full

    def _has_frame(self) -> bool:
        """Whether a whole frame has come; a long one is not copied for every part of it."""
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
        # Frames of other types are to be ignored.

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
