"""Connections to a cluster through each kind of proxy: real proxies on loopback, and TLS through the tunnel."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import trustme

from ostiary_gateway.http1.client_connection import UpstreamAddress
from ostiary_gateway.http1.client_pool import Pool
from ostiary_gateway.local_proxy.cluster import through
from tests.support.http1 import connected, get, listening, upstream
from tests.support.proxied import HI, Gate, says

Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter, list[bytes]], Awaitable[int | None]]


async def http_proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard: list[bytes]) -> int | None:
    head = await reader.readuntil(b"\r\n\r\n")
    heard.append(head)
    writer.write(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")
    return int(head.split(b" ")[1].rpartition(b":")[2])


async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard: list[bytes]) -> int | None:
    heard.append(await reader.readuntil(b"\r\n\r\n"))
    writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
    return None


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard: list[bytes]) -> int | None:
    writer.write(b"x" * 40_000)
    return None


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard: list[bytes]) -> int | None:
    heard.append(await reader.read(65536))
    return None


async def socks_proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard: list[bytes]) -> int | None:
    _, count = await reader.readexactly(2)
    methods = await reader.readexactly(count)
    if 2 in methods:
        writer.write(b"\x05\x02")
        _, size = await reader.readexactly(2)
        heard.append(await reader.readexactly(size))
        heard.append(await reader.readexactly((await reader.readexactly(1))[0]))
        writer.write(b"\x01\x00")
    else:
        writer.write(b"\x05\x00")
    await reader.readexactly(4)
    heard.append(await reader.readexactly((await reader.readexactly(1))[0]))
    port = int.from_bytes(await reader.readexactly(2), "big")
    writer.write(b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x00")
    return port


async def refusing_socks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard: list[bytes]) -> int | None:
    await reader.readexactly(3)
    writer.write(b"\x05\x00")
    await reader.readexactly(5)
    writer.write(b"\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00")
    return None


@asynccontextmanager
async def running(accept: Accept, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A proxy that finds every target on loopback: its port, and what it heard."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            port = await accept(reader, writer, heard)
            if port is not None:
                back_reader, back_writer = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(pump(reader, back_writer), pump(back_reader, writer))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1], heard
    finally:
        server.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


async def ask_through(url: str, ca: trustme.CA | None) -> tuple[int, str]:
    """The status of a request through the proxy at *url*, and why it failed."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca is not None:
        ca.issue_cert("cluster.example").configure_cert(server)
        ca.configure_trust(client)
    async with upstream(says(HI), tls=server if ca is not None else None) as made:
        address = UpstreamAddress("cluster.example", made.port, tls=client if ca is not None else None)
        pool = Pool(address, asyncio.get_running_loop(), dial=through(url))
        gate = Gate(pool)
        async with listening(gate) as listener, connected(listener.port) as visitor:
            first = await visitor.ask(get())
            if first.status == 200:
                # The connection is kept, and goes on working.
                assert (await visitor.ask(get())).status == 200
                assert len(made.connections) == 1
        pool.close()
        for connection in list(pool.connections):
            connection.abandon()
        return first.status, gate.finished[0][1]


async def test_by_connect_with_and_without_tls_inside(ca: trustme.CA) -> None:
    async with running(http_proxy) as (port, heard):
        assert (await ask_through(f"http://127.0.0.1:{port}", ca))[0] == 200
        assert heard[0].startswith(b"CONNECT cluster.example:")
        assert b"Proxy-Authorization" not in heard[0]
        assert (await ask_through(f"http://us%40er:p%3Aw@127.0.0.1:{port}", None))[0] == 200
        assert b"Proxy-Authorization: Basic " + b64encode(b"us@er:p:w") in heard[1]


async def test_by_connect_over_tls_to_the_proxy(
    ca: trustme.CA, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """TLS inside TLS; the proxy is verified by the system's authorities and by nothing else."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    proxy_authority = trustme.CA()
    proxy_authority.issue_cert("localhost").configure_cert(tls)
    async with running(http_proxy, tls) as (port, _):
        status, reason = await ask_through(f"https://localhost:{port}", ca)
        assert (status, "cannot be verified" in reason) == (503, True)
        with proxy_authority.cert_pem.tempfile() as authorities:
            monkeypatch.setenv("SSL_CERT_FILE", authorities)
            assert (await ask_through(f"https://localhost:{port}", ca))[0] == 200


@pytest.mark.parametrize("scheme", ["socks5", "socks5h"])
async def test_by_socks(ca: trustme.CA, scheme: str) -> None:
    async with running(socks_proxy) as (port, heard):
        assert (await ask_through(f"{scheme}://127.0.0.1:{port}", ca))[0] == 200
        # The proxy looks up the name.
        assert heard == [b"cluster.example"]
        assert (await ask_through(f"{scheme}://us%40er:secret@127.0.0.1:{port}", ca))[0] == 200
        assert heard[1:] == [b"us@er", b"secret", b"cluster.example"]


async def test_a_proxy_that_does_not_help_is_told(ca: trustme.CA, subtests: pytest.Subtests) -> None:
    cases = [
        ("http", refusing, "the proxy refused with status 407"),
        ("http", garbage, "the proxy gave no usable answer"),
        ("http", silent, "the proxy gave no usable answer"),
        ("socks5", refusing_socks, "not allowed by its rules"),
        ("socks5", silent, "the SOCKS proxy gave no usable answer"),
        ("socks5", garbage, "accepts none of our ways to sign in"),
    ]
    for scheme, accept, said in cases:
        with subtests.test(scheme=scheme, accept=accept, said=said):
            async with running(accept) as (port, _):
                status, reason = await ask_through(f"{scheme}://127.0.0.1:{port}", ca)
                assert status == 503
                assert said in reason
