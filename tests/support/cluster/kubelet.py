"""What a node does for its pods: logs, exec and port-forward, over both kinds of stream.

A container is this machine: exec starts a real process, and a pod's port is a real port on loopback.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, Self

from tests.support.cluster import websocket
from tests.support.cluster.http import Answer, Disconnected, Exchange, Record, first_of
from tests.support.cluster.spdy import Session, Stream
from tests.support.cluster.status import bad_request, exit_status, failed_inside
from tests.support.cluster.websocket import WebSocket

STDIN, STDOUT, STDERR, ERROR = 0, 1, 2, 3
CLOSE_CHANNEL = 255
V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
PORT_FORWARD = "portforward.k8s.io"
TUNNELLED = f"SPDY/3.1+{PORT_FORWARD}"
SPDY = "SPDY/3.1"
CHUNK = 1 << 15


class Log:
    """A container's output: it grows, may be followed, and ends when the container does."""

    def __init__(self) -> None:
        self.data = b""
        self.ended = False
        self._changed = asyncio.Event()

    def append(self, data: bytes) -> None:
        self.data += data
        self._wake()

    def end(self) -> None:
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, position: int) -> AsyncIterator[bytes]:
        while True:
            if position < len(self.data):
                news, position = self.data[position:], len(self.data)
                yield news
            elif self.ended:
                return
            else:
                await self._changed.wait()


@dataclass
class Container:
    """What stands behind a pod. *ports* maps the pod's ports to ports on loopback."""

    ports: dict[int, int] = field(default_factory=dict)
    logs: dict[str, Log] = field(default_factory=dict)

    def log(self, name: str) -> Log:
        return self.logs.setdefault(name, Log())


# --- logs ---


async def serve_log(exchange: Exchange, log: Log) -> None:
    record = exchange.record
    start = _start(log.data, record.parameter("tailLines"))
    if record.flag("follow"):
        await exchange.stream("text/plain", log.follow(start))
    else:
        await exchange.answer(Answer(200, log.data[start:], {"Content-Type": "text/plain"}))


def _start(data: bytes, tail_lines: str) -> int:
    if not tail_lines:
        return 0
    lines = data.splitlines(keepends=True)
    return sum(map(len, lines[: max(0, len(lines) - int(tail_lines))]))


# --- exec ---


class Channels(Protocol):
    """The streams of one exec, whichever protocol carries them."""

    async def receive(self) -> bytes:
        """Standard input; empty at its end."""

    async def send(self, channel: int, data: bytes) -> None: ...

    async def gone(self) -> None:
        """Returns when the client has gone away."""

    async def finish(self) -> None:
        """All has been sent: close in good order."""


async def serve_exec(exchange: Exchange) -> None:
    record = exchange.record
    command = record.query.get("command", [])
    if not command:
        raise bad_request("you must specify at least 1 command")
    channels = await _accept(exchange)
    with suppress(Disconnected, ConnectionError):
        await first_of(_execute(command, channels, record), channels.gone())


async def _accept(exchange: Exchange) -> Channels:
    record = exchange.record
    if websocket.is_upgrade(record):
        protocol = _agree(record.tokens("Sec-WebSocket-Protocol"), [V5, V4])
        await exchange.switch(websocket.agreement(record, protocol))
        channels = _WebSocketChannels(WebSocket(exchange.reader, exchange.writer))
        # The real one does so too: it shows the client that the stream is open.
        await channels.send(STDOUT if record.flag("stdout") else ERROR, b"")
        return channels
    if SPDY in record.tokens("Upgrade"):
        await _switch_to_spdy(exchange, [V4])
        wanted = [name for name in ("stdin", "stdout", "stderr") if record.flag(name)]
        spdy = _SpdyChannels(_plain_session(exchange), {"error", *wanted, *(["resize"] if record.flag("tty") else [])})
        await first_of(spdy.complete(), spdy.gone_early())
        return spdy
    raise bad_request("Upgrade request required")


async def _execute(command: list[str], channels: Channels, record: Record) -> None:
    try:
        status = exit_status(await _run(command, channels, record))
    except OSError as error:
        status = failed_inside(f"error executing command in container: {error.strerror}").status
    await channels.send(ERROR, json.dumps(status, separators=(",", ":")).encode())
    await channels.finish()


async def _run(command: list[str], channels: Channels, record: Record) -> int:
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    # With a terminal there is one output only; a real terminal it is not.
    errors = asyncio.subprocess.STDOUT if record.flag("tty") else pipe if record.flag("stderr") else null
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=pipe if record.flag("stdin") else null,
        stdout=pipe if record.flag("stdout") else null,
        stderr=errors,
    )
    feeding = asyncio.create_task(_feed(channels, process.stdin))
    try:
        await asyncio.gather(
            _drain(process.stdout, channels, STDOUT), _drain(process.stderr, channels, STDERR), process.wait()
        )
        return process.returncode or 0
    finally:
        feeding.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _feed(channels: Channels, stdin: asyncio.StreamWriter | None) -> None:
    if stdin is None:
        return
    # The process may end before its input does.
    with suppress(ConnectionError):
        while data := await channels.receive():
            stdin.write(data)
            await stdin.drain()
    stdin.close()


async def _drain(output: asyncio.StreamReader | None, channels: Channels, channel: int) -> None:
    while output is not None and (data := await output.read(CHUNK)):
        await channels.send(channel, data)


class _WebSocketChannels:
    """Each message begins with the number of its channel; v5 can close one, which is how input ends."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._input: asyncio.Queue[bytes] = asyncio.Queue()

    async def receive(self) -> bytes:
        return await self._input.get()

    async def send(self, channel: int, data: bytes) -> None:
        await self._socket.send(bytes([channel]) + data)

    async def gone(self) -> None:
        with suppress(Disconnected):
            while True:
                message = await self._socket.receive()
                if message == bytes([CLOSE_CHANNEL, STDIN]):
                    self._input.put_nowait(b"")
                elif message[:1] == bytes([STDIN]) and len(message) > 1:
                    self._input.put_nowait(message[1:])

    async def finish(self) -> None:
        # The client's goodbye is read by `gone`, which then ends the exchange.
        await self._socket.say_goodbye()
        await asyncio.Future()


class _SpdyChannels:
    """One stream per channel; the client opens them and says which is which."""

    def __init__(self, session: Session, wanted: set[str]) -> None:
        self._wanted = wanted
        self._streams: dict[str, Stream] = {}
        self._complete = asyncio.Event()
        self._session = asyncio.create_task(session.run(self._opened))

    def _opened(self, stream: Stream) -> None:
        self._streams[stream.headers.get("streamtype", "")] = stream
        if self._wanted <= self._streams.keys():
            self._complete.set()

    async def complete(self) -> None:
        await self._complete.wait()

    async def gone_early(self) -> None:
        await asyncio.shield(self._session)
        raise Disconnected

    async def receive(self) -> bytes:
        return await self._streams["stdin"].read()

    async def send(self, channel: int, data: bytes) -> None:
        await self._streams[_SPDY_NAMES[channel]].write(data)

    async def gone(self) -> None:
        await self._session

    async def finish(self) -> None:
        for name in ("stdout", "stderr", "error"):
            if name in self._streams:
                await self._streams[name].close()
        await asyncio.Future()


_SPDY_NAMES = {STDOUT: "stdout", STDERR: "stderr", ERROR: "error"}


# --- port-forward ---


async def serve_port_forward(exchange: Exchange, ports: dict[int, int]) -> None:
    record = exchange.record
    if websocket.is_upgrade(record):
        protocol = _agree(record.tokens("Sec-WebSocket-Protocol"), [TUNNELLED])
        await exchange.switch(websocket.agreement(record, protocol))
        with _Forwarder(ports) as forwarder:
            await _tunnel(WebSocket(exchange.reader, exchange.writer), forwarder.opened)
    elif SPDY in record.tokens("Upgrade"):
        await _switch_to_spdy(exchange, [PORT_FORWARD])
        with _Forwarder(ports) as forwarder:
            await _plain_session(exchange).run(forwarder.opened)
    else:
        raise bad_request("Upgrade request required")


class _Forwarder:
    """Joins the two streams of each connection: one carries its bytes, the other what went wrong.

    Connections that are still open at the end of the block are closed: nobody is there to talk to them.
    """

    def __init__(self, ports: dict[int, int]) -> None:
        self._ports = ports
        self._waiting: dict[str, dict[str, Stream]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for task in self._tasks:
            task.cancel()

    def opened(self, stream: Stream) -> None:
        request = stream.headers.get("requestid", "")
        pair = self._waiting.setdefault(request, {})
        pair[stream.headers.get("streamtype", "")] = stream
        if pair.keys() >= {"data", "error"}:
            del self._waiting[request]
            task = asyncio.create_task(self._forward(pair["data"], pair["error"]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(self, data: Stream, error: Stream) -> None:
        with suppress(Disconnected, ConnectionError):
            port = int(data.headers.get("port", "0"))
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[port])
            except (KeyError, OSError):
                await error.write(f"failed to connect to localhost:{port} inside the pod: connection refused".encode())
            else:
                await _join(data, reader, writer)
            await data.close()
            await error.close()


async def _join(data: Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async def inward() -> None:
        while received := await data.read():
            writer.write(received)
            await writer.drain()
        writer.write_eof()

    async def outward() -> None:
        while received := await reader.read(CHUNK):
            await data.write(received)

    sending = asyncio.create_task(inward())
    try:
        await outward()
    finally:
        sending.cancel()
        writer.close()


# --- what both share ---


def _agree(offered: list[str], known: list[str]) -> str:
    """The first that the client offers and we know."""
    agreed = next((protocol for protocol in offered if protocol in known), None)
    if agreed is None:
        raise bad_request(f"unable to negotiate a protocol: client supports {offered}, server accepts {known}")
    return agreed


async def _switch_to_spdy(exchange: Exchange, known: list[str]) -> None:
    protocol = _agree(exchange.record.tokens("X-Stream-Protocol-Version"), known)
    await exchange.switch({"Upgrade": SPDY, "X-Stream-Protocol-Version": protocol})


def _plain_session(exchange: Exchange) -> Session:
    async def write(data: bytes) -> None:
        exchange.writer.write(data)
        await exchange.writer.drain()

    return Session(exchange.reader.readexactly, write)


async def _tunnel(socket: WebSocket, opened: Callable[[Stream], None]) -> None:
    """Run SPDY inside a WebSocket, whose messages are pieces of its bytes."""
    inside = asyncio.StreamReader()

    async def unpack() -> None:
        with suppress(Disconnected):
            while True:
                inside.feed_data(await socket.receive())
        inside.feed_eof()

    unpacking = asyncio.create_task(unpack())
    try:
        await Session(inside.readexactly, socket.send).run(opened)
    finally:
        unpacking.cancel()
