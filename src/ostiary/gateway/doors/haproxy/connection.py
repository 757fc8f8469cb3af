"""One connection of HAProxy to the gateway as its agent: its greeting, its frames, and what it may take.

Made by the agent for each connection. HAProxy sends questions without waiting for answers, and they are answered in any
order. Bounded are the size of a frame, the questions that are open, and how long HAProxy may take to greet, to finish a
frame that it has begun, and to read. Whatever breaks the protocol ends the connection: its questions have no answer
then, and HAProxy lets nobody in.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from ostiary.gateway.doors.haproxy import spop
from ostiary.gateway.doors.haproxy.spop import SpopError
from ostiary.gateway.http1.outbox import Outbox, OutgoingTransport

# A frame of HAProxy fits into one of its buffers, which have 16 KiB unless it is told otherwise.
MOST_FRAME_BYTES = 128 * 1024
LEAST_FRAME_BYTES = 256
# HAProxy itself has at most 20 open on a connection, unless it is told otherwise.
MOST_OPEN = 256
GREETING_SECONDS = FRAME_SECONDS = READING_SECONDS = 10.0
_NEVER = float("inf")
# Type, flags, and two numbers of a byte each.
_SHORTEST_FRAME = 7


class AgentOfConnections(Protocol):
    """What the connections of one address share: see `agent`."""

    loop: asyncio.AbstractEventLoop
    outbox: Outbox

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
        self._rest = bytearray()
        self._open = 0
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
        try:
            if self._rest:
                self._rest += data
                used = self._read(bytes(self._rest)) if self._has_frame() else 0
                del self._rest[:used]
            else:
                used = self._read(data)
                self._rest += data[used:]
        except SpopError as error:
            self._agent.note_broken(self, str(error))
            self.disconnect(error.code, "the frame cannot be understood")
            return
        if used or not self._rest:
            # A whole frame came; the next one has its time from now on.
            self.deadline = self.loop.time() + FRAME_SECONDS if self._rest else self._idle_deadline()
        elif self.deadline == _NEVER:
            self.deadline = self.loop.time() + FRAME_SECONDS

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._write_paused = True
        self.deadline = self.loop.time() + READING_SECONDS
        self._pause_or_resume()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.deadline = self._idle_deadline()
        self._pause_or_resume()

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
            self._pause_or_resume()

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

    def _has_frame(self) -> bool:
        """Whether what was kept holds a whole frame by now; a long one is not copied for every part of it."""
        return len(self._rest) >= 4 and len(self._rest) - 4 >= self._size(int.from_bytes(self._rest[:4], "big"))

    def _size(self, size: int) -> int:
        if not _SHORTEST_FRAME <= size <= self.frame_size:
            raise SpopError(spop.TOO_BIG, "a frame has an impossible length")
        return size

    def _read(self, data: bytes) -> int:
        """Handle the whole frames of *data*; returns where the rest begins."""
        at, size = 0, len(data)
        while size - at >= 4 and not self._ended:
            end = at + 4 + self._size(int.from_bytes(data[at : at + 4], "big"))
            if end > size:
                break
            self._handle(data[at + 4 : end])
            at = end
        return size if self._ended else at

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
        is_full = self._write_paused or self._open >= MOST_OPEN
        if is_full == self._read_paused or self._ended:
            return
        self._read_paused = is_full
        if is_full:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
