"""One greedy user: slow uploads, slow reads, tiny chunks, ever new targets, many sign-ins. All bounded, on loopback.

Used by `bench.greedy`, which measures what somebody else feels of it, and by the end-to-end test of the same promise.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

UPLOADS, READS, CHUNKED_BODIES, TARGETS, LOGINS = 300, 300, 20, 10_000, 100
CHUNKS = 200_000
# What the user sends while it holds everything open.
DRIP_SECONDS = 1.0


@dataclass
class Greedy:
    """The user, at the gateway on *port*. `statuses` counts what was answered to requests that end."""

    port: int
    tokens: list[str]
    large: str = "/large"
    path: str = "/"
    statuses: dict[int, int] = field(default_factory=dict)
    _held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def hold_uploads(self, count: int = UPLOADS) -> None:
        """Uploads of which hardly anything comes."""
        for _ in range(count):
            _, writer = await self._connect()
            writer.write(self._head("POST", f"{self.path}file", "Content-Length: 1000000") + b"x")

    async def hold_reads(self, count: int = READS) -> None:
        """Large answers of which hardly anything is read."""
        for _ in range(count):
            _, writer = await self._connect(receive_buffer=4096)
            writer.write(self._head("GET", self.large))

    async def drip(self) -> None:
        """Every now and then a byte for each upload; the readers read nothing. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(DRIP_SECONDS)
            self._held = [(reader, writer) for reader, writer in self._held if not writer.transport.is_closing()]
            for _, writer in self._held:
                writer.write(b"x")

    async def send_chunks(self, count: int = CHUNKED_BODIES) -> None:
        """Bodies of tiny chunks, one after the other."""
        body = b"1\r\nx\r\n" * CHUNKS
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                writer.write(self._head("POST", f"{self.path}file", "Transfer-Encoding: chunked") + body + b"0\r\n\r\n")
                await self._answer(reader)
            writer.transport.abort()

    async def ask_for_targets(self, count: int = TARGETS, *, connections: int = 4) -> None:
        """As many different targets, each as long as is remembered, with all tokens in turn."""

        async def some(numbers: Iterable[int]) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            for number in numbers:
                token = self.tokens[number % len(self.tokens)]
                writer.write(self._head("GET", f"{self.path}{number}?{'x' * 1900}", token=token))
                await self._answer(reader)
            writer.close()

        await asyncio.gather(*(some(range(first, count, connections)) for first in range(connections)))

    async def sign_in(self, login: Callable[[], Awaitable[str]], count: int = LOGINS) -> None:
        """Another session, and another, and each is used."""
        for _ in range(count):
            self.tokens.append(await login())
        # The oldest sessions have ended, and bad tokens are counted by address, which everybody has in common here.
        self.tokens = self.tokens[-LOGINS:]

    def close(self) -> None:
        for _, writer in self._held:
            writer.transport.abort()
        self._held.clear()

    async def _connect(self, *, receive_buffer: int = 0) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        end = socket.socket()
        if receive_buffer:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        end.setblocking(False)
        await asyncio.get_running_loop().sock_connect(end, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=end, limit=1024)
        self._held.append((reader, writer))
        return reader, writer

    def _head(self, method: str, target: str, *lines: str, token: str = "") -> bytes:
        authorization = f"Authorization: Bearer {token or self.tokens[-1]}"
        return "\r\n".join(
            [f"{method} {target} HTTP/1.1", "Host: gateway.test", authorization, *lines, "", ""]
        ).encode()

    async def _answer(self, reader: asyncio.StreamReader) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        self.statuses[status] = self.statuses.get(status, 0) + 1
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                await reader.readexactly(int(line.partition(b":")[2]))
