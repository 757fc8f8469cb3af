"""Opens connections to a cluster through the proxy that its kubeconfig, or the environment, names.

Given to the pool of a cluster (`cluster`). ``http://`` and ``https://`` proxies are asked by CONNECT, SOCKS proxies by
RFC 1928 and 1929. As with client-go, the proxy looks up the cluster's name. A proxy over TLS is verified by the
system's authorities: the cluster's says nothing about it, and the client certificate is not for it.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Callable
from urllib.parse import SplitResult, unquote, urlsplit

from ostiary.gateway.http1.client.address import UpstreamAddress
from ostiary.gateway.http1.client.connection import UpstreamConnection
from ostiary.gateway.http1.client.pool import Dial

_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
LARGEST_HEAD = 16 * 1024
_SOCKS_FAILURES = {
    1: "general failure",
    2: "not allowed by its rules",
    3: "the network is unreachable",
    4: "the host is unreachable",
    5: "connection refused",
    6: "the connection timed out",
}


def through(proxy: str) -> Dial:
    """What opens connections through *proxy*, a URL that `client.proxy` has checked."""
    parts = urlsplit(proxy)
    host = parts.hostname or ""

    async def dial(
        address: UpstreamAddress, loop: asyncio.AbstractEventLoop, make_connection: Callable[[], UpstreamConnection]
    ) -> UpstreamConnection:
        context = ssl.create_default_context() if parts.scheme == "https" else None
        port = parts.port or _PORTS[parts.scheme]
        # Without a StreamWriter, which would close the connection when it is collected.
        reader = asyncio.StreamReader(limit=LARGEST_HEAD)
        transport, _ = await loop.create_connection(
            lambda: asyncio.StreamReaderProtocol(reader), host, port, ssl=context
        )
        try:
            ask = _ask_socks if parts.scheme.startswith("socks") else _ask_http
            await ask(parts, address, reader, transport)
            return await _take_over(transport, address, loop, make_connection())
        except BaseException:
            transport.abort()
            raise

    return dial


async def _take_over(
    transport: asyncio.Transport,
    address: UpstreamAddress,
    loop: asyncio.AbstractEventLoop,
    connection: UpstreamConnection,
) -> UpstreamConnection:
    """Nothing can have come meanwhile: the cluster is silent until we speak."""
    if address.tls is None:
        transport.set_protocol(connection)
        connection.connection_made(transport)
        return connection
    name = address.server_name or address.host
    secured = await loop.start_tls(transport, connection, address.tls, server_hostname=name)
    if secured is None:
        raise ConnectionAbortedError(0, "the connection was closed during the handshake")
    connection.connection_made(secured)
    return connection


async def _ask_http(
    proxy: SplitResult, address: UpstreamAddress, reader: asyncio.StreamReader, transport: asyncio.Transport
) -> None:
    host = f"[{address.host}]" if ":" in address.host else address.host
    target = f"{host}:{address.port}".encode("idna" if not host.isascii() else "ascii")
    lines = [b"CONNECT %s HTTP/1.1" % target, b"Host: " + target]
    if proxy.username is not None:
        pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
        lines.append(b"Proxy-Authorization: Basic " + b64encode(pair))
    transport.write(b"\r\n".join([*lines, b"", b""]))
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise OSError(0, "the proxy gave no usable answer") from None
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise OSError(0, "the proxy gave no usable answer")
    if words[1][:1] != b"2":
        raise OSError(0, f"the proxy refused with status {int(words[1][:3])}")


async def _ask_socks(
    proxy: SplitResult, address: UpstreamAddress, reader: asyncio.StreamReader, transport: asyncio.Transport
) -> None:
    try:
        transport.write(b"\x05\x02\x00\x02" if proxy.username else b"\x05\x01\x00")
        version, method = await reader.readexactly(2)
        if version != 5 or method not in ((0, 2) if proxy.username else (0,)):
            raise OSError(0, "the SOCKS proxy accepts none of our ways to sign in")
        if method == 2:
            username, password = (unquote(part or "").encode()[:255] for part in (proxy.username, proxy.password))
            transport.write(b"\x01%c%s%c%s" % (len(username), username, len(password), password))
            if (await reader.readexactly(2))[1] != 0:
                raise OSError(0, "the SOCKS proxy rejects the username or password")
        host = address.host.encode("ascii" if address.host.isascii() else "idna")
        transport.write(b"\x05\x01\x00\x03%c%s" % (len(host), host) + address.port.to_bytes(2, "big"))
        _, code, _, kind = await reader.readexactly(4)
        if code:
            raise OSError(0, f"the SOCKS proxy refused: {_SOCKS_FAILURES.get(code, 'unknown reason')}")
        # The address that the proxy uses, which is of no interest.
        size = {1: 4, 4: 16}.get(kind) or (await reader.readexactly(1))[0]
        await reader.readexactly(size + 2)
    except asyncio.IncompleteReadError:
        raise OSError(0, "the SOCKS proxy gave no usable answer") from None
