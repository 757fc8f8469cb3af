"""A client of ``Authorization/Check`` that can also do what no client of gRPC would: it is a bare HTTP/2 connection.

    async with check_client(port) as client:
        outcome = await client.check(message, secret="...")

Half a call can be sent, calls can be taken back, and bytes written as they are.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)

from ostiary_gateway.extauth.grpc import framed
from tests.support.envoy_messages import METHOD

SECONDS = 30.0
_GOAWAY = 7


@dataclass
class Outcome:
    """What became of a call. `reset` is the code of HTTP/2 with which the other side ended it, if it did so."""

    headers: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> int:
        return int(self.headers.get("grpc-status", -1))

    @property
    def message(self) -> bytes:
        return self.data[5:]


class CheckClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self.http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.calls: dict[int, Outcome] = {}
        self.closed = False
        # The code of a GOAWAY.
        self.goodbye: int | None = None
        # Whether it goes on after a GOAWAY with what was begun, as Envoy does, and the library does not.
        self.goes_on = False
        self.http.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.writer.write(self.http.data_to_send())

    def begin(
        self,
        *,
        secret: str | None = None,
        path: str = METHOD,
        metadata: Sequence[tuple[str, str]] = (),
        content_type: str = "application/grpc",
    ) -> int:
        """The head of a call."""
        stream = self.http.get_next_available_stream_id()
        headers = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "gateway")]
        headers += [("te", "trailers"), ("content-type", content_type), *metadata]
        if secret is not None:
            headers.append(("x-ostiary-door", secret))
        self.http.send_headers(stream, headers)
        self.calls[stream] = Outcome()
        self.flush()
        return stream

    def send(self, stream: int, data: bytes, *, end: bool = True) -> None:
        size = self.http.max_outbound_frame_size
        for start in range(0, max(1, len(data)), size):
            part = data[start : start + size]
            self.http.send_data(stream, part, end_stream=end and start + size >= len(data))
        self.flush()

    async def check(self, message: bytes, *, secret: str | None = None, path: str = METHOD) -> Outcome:
        stream = self.begin(secret=secret, path=path)
        await self.send_with_room(stream, framed(message))
        return await self.outcome(stream)

    async def send_with_room(self, stream: int, data: bytes, *, end: bool = True) -> None:
        """As `send`, as the other side has room; no more once the call or the connection has ended."""
        while not self.calls[stream].ended and not self.closed and self.goodbye is None:
            room = self.http.local_flow_control_window(stream)
            if not room and data:
                await self.read()
                continue
            self.send(stream, data[:room], end=end and room >= len(data))
            data = data[room:]
            if not data:
                return

    async def outcome(self, stream: int) -> Outcome:
        """What became of the call, once it has ended; or so far, if the connection ends before."""
        call = self.calls[stream]
        while not call.ended and not self.closed:
            await self.read()
        return call

    async def until_closed(self) -> None:
        while not self.closed:
            await self.read()

    async def read(self) -> None:
        """Take what comes next."""
        async with asyncio.timeout(SECONDS):
            data = b""
            with suppress(ConnectionError):
                data = await self._reader.read(65536)
        if not data:
            self.closed = True
            return
        for event in self.http.receive_data(self._without_goodbye(data) if self.goes_on else data):
            self._take(event)
        if self.goodbye is None:
            self.flush()

    def _without_goodbye(self, data: bytes) -> bytes:
        kept, position = b"", 0
        while position < len(data):
            end = position + 9 + int.from_bytes(data[position : position + 3], "big")
            if data[position + 3] == _GOAWAY:
                self.goodbye = int.from_bytes(data[position + 13 : position + 17], "big")
            else:
                kept += data[position:end]
            position = end
        return kept

    def _take(self, event: Event) -> None:
        match event:
            case ResponseReceived() | TrailersReceived():
                call = self.calls[event.stream_id]
                call.headers |= {str(name): str(value) for name, value in event.headers or ()}
            case DataReceived():
                self.calls[event.stream_id].data += event.data or b""
                self.http.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
            case StreamEnded():
                self.calls[event.stream_id].ended = True
            case StreamReset():
                call = self.calls[event.stream_id]
                call.ended, call.reset = True, int(event.error_code)
            case ConnectionTerminated():
                self.goodbye = int(event.error_code or 0)


@asynccontextmanager
async def check_client(port: int, trust: ssl.SSLContext | None = None) -> AsyncIterator[CheckClient]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=trust, server_hostname="localhost" if trust is not None else None
    )
    try:
        yield CheckClient(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
