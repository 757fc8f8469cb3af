"""Who speaks plain HTTP to a TLS port is told so, and TLS is as it was."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from weakref import ReferenceType, ref

import pytest
import trustme
import uvloop

from ostiary_gateway.config.listen import ServerTls
from ostiary_gateway.http1.request_head import ServerLimits
from ostiary_gateway.http1.server_connection import Server, ServerConnection
from ostiary_gateway.server.listener import server_context
from tests.support.http1 import turn

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
Talk = Callable[[int], Awaitable[Any]]


class Hello(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        transport.write(b"hello over " + transport.get_extra_info("ssl_object").version().encode())
        transport.close()


@pytest.fixture
def context(ca: trustme.CA, tmp_path: Path) -> ssl.SSLContext:
    leaf = ca.issue_cert("localhost")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_bytes(b"".join(part.bytes() for part in leaf.cert_chain_pems))
    leaf.private_key_pem.write_to_path(key)
    return server_context(ServerTls(certificate, key))


def talk(context: ssl.SSLContext, loop: str, client: Talk) -> Any:
    async def run() -> Any:
        server = await asyncio.get_running_loop().create_server(Hello, "127.0.0.1", 0, ssl=context)
        async with server:
            return await client(server.sockets[0].getsockname()[1])

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(run())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"DELETE /api/v1/pods HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /auth HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi",
        b"OPTIONS * HTTP/1.1\r\n\r\n",
        b"CONNECT host:443 HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=lambda request: request.split()[0].decode(),
)
def test_a_plain_request_on_a_tls_port_is_a_400_that_says_what_to_do(
    context: ssl.SSLContext, loop: str, request_: bytes
) -> None:
    async def client(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_)
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readline()
        # Whatever else comes ends the connection.
        writer.write(request_)
        assert await reader.read() == b""
        writer.close()
        return head + body

    answer = talk(context, loop, client)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"this port speaks HTTPS" in answer


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_tls_is_spoken_as_ever_in_however_many_pieces_it_comes(
    context: ssl.SSLContext, ca: trustme.CA, loop: str, size: int
) -> None:
    trusting = ssl.create_default_context()
    ca.configure_trust(trusting)

    async def client(port: int) -> bytes:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = trusting.wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            try:
                return tls.read(100)
            except ssl.SSLWantReadError:
                data = outgoing.read()
                for start in range(0, len(data), size):
                    writer.write(data[start : start + size])
                    await writer.drain()
                    await asyncio.sleep(0)
                incoming.write(await reader.read(65536))

    assert talk(context, loop, client).startswith(b"hello over TLSv1.")


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("garbage", [b"\x00" * 100, b"hello\r\n\r\n", b"\x16\x03\x01\x00\x05GET /"])
def test_what_is_neither_is_closed(context: ssl.SSLContext, loop: str, garbage: bytes) -> None:
    async def client(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(garbage)
        try:
            return await reader.read()
        except ConnectionError:
            return b""

    assert b"HTTP" not in talk(context, loop, client)


@pytest.mark.parametrize("ends", ["politely", "cut off"])
def test_a_connection_that_has_ended_is_freed_without_the_garbage_collector(
    context: ssl.SSLContext, ca: trustme.CA, ends: str
) -> None:
    """uvloop has a quarter of a megabyte for each."""
    trusting = ssl.create_default_context()
    ca.configure_trust(trusting)
    objects: list[ReferenceType[ssl.SSLObject]] = []

    class Noted(ServerConnection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            objects.append(ref(transport.get_extra_info("ssl_object")))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = Server(lambda exchange: exchange.respond(200, [], b"hello"), ServerLimits(), loop)
        listening = await loop.create_server(lambda: Noted(server), "127.0.0.1", 0, ssl=context)
        port = listening.sockets[0].getsockname()[1]
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname="localhost")
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 OK\r\n")
            writer.close() if ends == "politely" else writer.transport.abort()
            while server.connections:
                await turn()
        await turn(20)
        assert [each() for each in objects] == [None] * 3
        listening.close()

    gc.disable()
    try:
        uvloop.run(main())
    finally:
        gc.enable()
