"""Ends TLS before a proxy that speaks plain HTTP, as a load balancer does, and passes the bytes on as they are.

with tls_relay(site.folder / "server.pem", site.folder / "server.key", port, to=8080, source="127.0.0.2"): ...
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.gateway import SECONDS


@contextmanager
def tls_relay(certificate: Path, key: Path, port: int, *, to: int, source: str) -> Iterator[None]:
    """Listens at *port*; the proxy sees *source* as the address of its clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["http/1.1"])
    relay = _Relay(context, port, to, source)
    thread = threading.Thread(target=lambda: asyncio.run(relay.run()), name="tls relay", daemon=True)
    thread.start()
    assert relay.listens.wait(SECONDS)
    try:
        yield
    finally:
        relay.loop.call_soon_threadsafe(relay.stop.set)
        thread.join(SECONDS)
        assert not thread.is_alive()


class _Relay:
    def __init__(self, context: ssl.SSLContext, port: int, to: int, source: str) -> None:
        self._context, self._port, self._to, self._source = context, port, to, source
        self._open: set[asyncio.Task[None]] = set()
        self.listens = threading.Event()
        self.loop: asyncio.AbstractEventLoop
        self.stop: asyncio.Event

    async def run(self) -> None:
        self.loop, self.stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connect, "127.0.0.1", self._port, ssl=self._context)
        self.listens.set()
        await self.stop.wait()
        server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        with suppress(OSError, asyncio.CancelledError):
            inner_reader, inner_writer = await asyncio.open_connection(
                "127.0.0.1", self._to, local_addr=(self._source, 0)
            )
            await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side ends; then the other ends, too."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
