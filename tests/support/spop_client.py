"""HAProxy's side of SPOP, byte by byte, for tests of the agent."""

from __future__ import annotations

import asyncio

from ostiary_gateway.extauth.haproxy import spop

SECONDS = 30.0


class Haproxy:
    """The other side, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def frame(self) -> tuple[int, bytes]:
        """The type of the next frame, and all that follows its flags."""
        async with asyncio.timeout(SECONDS):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            frame = await self.reader.readexactly(size)
        return frame[0], frame[5:]

    async def greet(self, **said: bytes) -> dict[bytes, spop.Value]:
        self.send(hello(**said))
        kind, rest = await self.frame()
        assert kind == spop.AGENT_HELLO
        return spop.read_pairs(rest, 2)[0]

    async def ended_with(self) -> int:
        """The status of the disconnect frame, after which nothing comes."""
        kind, rest = await self.frame()
        assert kind == spop.AGENT_DISCONNECT
        async with asyncio.timeout(SECONDS):
            assert await self.reader.read() == b""
        status = spop.read_pairs(rest, 2)[0][b"status-code"]
        assert isinstance(status, int)
        return status


def hello(**said: bytes) -> bytes:
    values = {
        b"supported-versions": spop.string(b"2.0"),
        b"max-frame-size": spop.uint32(16380),
        b"capabilities": spop.string(b"pipelining,async"),
    }
    values |= {name.replace("_", "-").encode(): value for name, value in said.items()}
    return spop.frame(spop.HAPROXY_HELLO, 0, 0, spop.pairs({name: value for name, value in values.items() if value}))
