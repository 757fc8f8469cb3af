"""HTTP/1.1 by hand, for tests of the connection code: bytes that no client library sends, answers read strictly.

Everything runs in the test's own event loop, over sockets on loopback. Time is never waited for: `Listener.later` and
`Pool.tick` are told that it has passed.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from ostiary_gateway.http1.body import read_body
from ostiary_gateway.http1.exchange import Exchange
from ostiary_gateway.http1.request_head import ServerLimits
from ostiary_gateway.http1.server_connection import Server, ServerConnection

# Only so that a test that hangs ends: how quick the machine is must not matter.
SECONDS = 90.0
"""How long a test waits for what must happen at once; only a failure takes that long."""
Headers = list[tuple[bytes, bytes]]


# --- reading messages, strictly and in our own way ---


class Malformed(ValueError):
    """The bytes are not what HTTP/1.1 allows."""


@dataclass
class Message:
    """A request or an answer as it stood on the wire."""

    start: bytes
    headers: Headers
    body: bytes = b""
    trailers: Headers = field(default_factory=list)
    interim: list[Message] = field(default_factory=list)

    @property
    def status(self) -> int:
        return int(self.start.split(b" ")[1])

    @property
    def target(self) -> bytes:
        return self.start.split(b" ")[1]

    def all(self, name: str) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name.lower().encode()]

    def one(self, name: str) -> bytes | None:
        found = self.all(name)
        assert len(found) <= 1, f"{name} stands there {len(found)} times"
        return found[0] if found else None


def parse_head(head: bytes) -> Message:
    """A head without its empty line; raises `Malformed` for whatever two readers could see differently."""
    start, *lines = head.split(b"\r\n")
    if b"\r" in head.replace(b"\r\n", b"") or b"\n" in head.replace(b"\r\n", b"") or b"\0" in head:
        raise Malformed("a bare CR or LF, or NUL")
    return Message(start, [_header(line) for line in lines])


TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not name or not TOKEN.issuperset(name):
        raise Malformed("not a header")
    value = value.strip(b" \t")
    if any((byte < 0x20 and byte != 0x09) or byte == 0x7F for byte in value):
        raise Malformed("a control character")
    return name, value


class Reader:
    """Reads messages from bytes that come from anywhere; *more* gives some, or none at the end."""

    def __init__(self, more: Callable[[], Awaitable[bytes]]) -> None:
        self._more = more
        self._data = b""

    async def _until(self, mark: bytes) -> bytes:
        while mark not in self._data:
            await self._fill()
        found, _, self._data = self._data.partition(mark)
        return found

    async def _fill(self) -> None:
        more = await asyncio.wait_for(self._more(), SECONDS)
        if not more:
            raise EOFError("the other side closed in the middle")
        self._data += more

    async def exactly(self, size: int) -> bytes:
        while len(self._data) < size:
            await self._fill()
        found, self._data = self._data[:size], self._data[size:]
        return found

    async def skip(self, size: int) -> None:
        """Read that many bytes and keep none of them."""
        while size > len(self._data):
            size -= len(self._data)
            self._data = b""
            await self._fill()
        self._data = self._data[size:]

    async def head(self) -> Message:
        return parse_head(await self._until(b"\r\n\r\n"))

    async def answer(self, method: str = "GET") -> Message:
        """The next answer, whole, with what was said ahead of it; raises `EOFError` if it is cut short."""
        interim = []
        while True:
            message = await self.head()
            if message.status >= 200 or message.status == 101:
                break
            interim.append(message)
        message.interim = interim
        if method != "HEAD" and message.status not in (101, 204, 304):
            await self._body(message, until_close=True)
        return message

    async def request(self) -> Message:
        message = await self.head()
        await self._body(message, until_close=False)
        return message

    async def _body(self, message: Message, *, until_close: bool) -> None:
        length, coding = message.one("Content-Length"), message.one("Transfer-Encoding")
        if length is not None and coding is not None:
            raise Malformed("two ways to find the end")
        if coding is not None:
            if coding != b"chunked":
                raise Malformed("unknown coding")
            await self._chunks(message)
        elif length is not None:
            if not length.isdigit():
                raise Malformed("not a length")
            message.body = await self.exactly(int(length))
        elif until_close:
            message.body = await self.rest()

    async def _chunks(self, message: Message) -> None:
        while size := int(await self._until(b"\r\n"), 16):
            message.body += await self.exactly(size)
            if await self.exactly(2) != b"\r\n":
                raise Malformed("a chunk is longer than it says")
        while line := await self._until(b"\r\n"):
            message.trailers.append(_header(line))

    async def rest(self) -> bytes:
        """Everything until the other side closes in good order; a reset is an error."""
        while more := await asyncio.wait_for(self._more(), SECONDS):
            self._data += more
        found, self._data = self._data, b""
        return found


# --- a client ---


class Client(Reader):
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(lambda: reader.read(65536))
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def ask(self, data: bytes, method: str = "GET") -> Message:
        self.send(data)
        return await self.answer(method)

    async def closed(self) -> bool:
        """Whether nothing more comes, waited for; a reset is an end as well."""
        try:
            return await asyncio.wait_for(self._more(), SECONDS) == b""
        except ConnectionError:
            return True

    def reset(self) -> None:
        """Hang up with RST."""
        end = self.writer.get_extra_info("socket")
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError, ssl.SSLError, TimeoutError):
            await asyncio.wait_for(self.writer.wait_closed(), SECONDS)


@asynccontextmanager
async def connected(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Client]:
    name = "localhost" if tls is not None else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
    client = Client(reader, writer)
    try:
        yield client
    finally:
        await client.close()


def get(target: str = "/", *lines: str, method: str = "GET", body: bytes = b"") -> bytes:
    head = [f"{method} {target} HTTP/1.1", "Host: gateway.test", *lines]
    if body:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


def chunked(*parts: bytes, trailers: bytes = b"") -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n" + trailers + b"\r\n"


# --- our server's side, with a handler of the test ---


class Listener:
    """`ServerConnection`s on a socket. By default each request is answered with what was understood of it."""

    def __init__(self, handle: Callable[[Exchange], None] | None, limits: ServerLimits) -> None:
        self.exchanges: list[Exchange] = []
        self.limits = limits
        self._server = Server(self.handle, limits, asyncio.get_running_loop())
        self.connections = self._server.connections
        self._handle = handle or self.echo
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def make(self) -> ServerConnection:
        return self._server.connection()

    def handle(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        self._handle(exchange)

    def echo(self, exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(self._echo(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _echo(self, exchange: Exchange) -> None:
        body = await read_body(exchange, 1 << 30)
        exchange.respond(200, [], b"%s %s %s" % (exchange.request.method, exchange.request.target, body))

    def later(self, seconds: float) -> None:
        """What the ticker does when *seconds* have passed."""
        now = asyncio.get_running_loop().time() + seconds
        for connection in [each for each in self.connections if each.deadline <= now]:
            connection.time_out()

    @property
    def connection(self) -> ServerConnection:
        (only,) = self.connections
        return only


@asynccontextmanager
async def listening(
    handle: Callable[[Exchange], None] | None = None,
    limits: ServerLimits | None = None,
    *,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Listener]:
    listener = Listener(handle, limits or ServerLimits())
    server = await asyncio.get_running_loop().create_server(listener.make, "127.0.0.1", 0, ssl=tls)
    listener.port = server.sockets[0].getsockname()[1]
    try:
        yield listener
    finally:
        server.close()
        for connection in list(listener.connections):
            connection.transport.abort()
        await turn()


async def turn(times: int = 5) -> None:
    """Let the loop do what is ready."""
    for _ in range(times):
        await asyncio.sleep(0)


async def until(true: Callable[[], bool]) -> None:
    """Wait until it is *true*, one turn of the loop after the other."""
    async with asyncio.timeout(SECONDS):
        while not true():
            await asyncio.sleep(0.001)


# --- an upstream in the same loop, which does what the test says ---


Script = Callable[["Upstreamed"], Awaitable[None]]


class Upstreamed(Reader):
    """One connection to the upstream, as its script sees it."""

    def __init__(self, upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.raw = bytearray()

        async def more() -> bytes:
            data = await reader.read(65536)
            self.raw += data
            return data

        super().__init__(more)
        self.upstream, self.reader, self.writer = upstream, reader, writer
        self.number = len(upstream.connections)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def reset(self) -> None:
        end = self.writer.get_extra_info("socket")
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def abort(self) -> None:
        """Hang up, if that has not happened yet."""
        # Python before 3.11.5 fails to abort TLS that was closed before.
        with suppress(AttributeError):
            self.writer.transport.abort()


async def honest(connection: Upstreamed) -> None:
    """Answers every request with its own body."""
    while True:
        request = await connection.request()
        connection.upstream.requests.append(request)
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(request.body) + request.body)


class Upstream:
    """Follows *script* on every connection; `requests` is for the scripts to fill."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Message] = []
        self.connections: list[Upstreamed] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Upstreamed(self, reader, writer)
        self.connections.append(connection)
        try:
            with suppress(EOFError, ConnectionError):
                await self.script(connection)
        finally:
            with suppress(ConnectionError):
                writer.close()


@asynccontextmanager
async def upstream(script: Script = honest, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Upstream]:
    made = Upstream(script)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for connection in made.connections:
            connection.abort()
        await turn()
