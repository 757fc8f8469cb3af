"""A relay with TLS on both sides that notes each request on its way to an API server."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from bench.mix.recording import Head, Recorded

_LIMIT = 1 << 20


class Relay:
    """Runs in a thread of its own. Only HTTP/1.1 is offered, so that a program asks as it asks a gateway."""

    def __init__(self, server: ssl.SSLContext, port: int, client: ssl.SSLContext) -> None:
        server.set_alpn_protocols(["http/1.1"])
        client.set_alpn_protocols(["http/1.1"])
        self._server, self._port, self._client = server, port, client
        self.requests: list[Recorded] = []

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Gives the address to connect to."""
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        listening = asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._server, limit=_LIMIT)
        listener = asyncio.run_coroutine_threadsafe(listening, loop).result()
        try:
            yield f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        finally:
            loop.call_soon_threadsafe(listener.close)
            loop.call_soon_threadsafe(loop.stop)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError):
            answers, onward = await asyncio.open_connection(
                "127.0.0.1", self._port, ssl=self._client, server_hostname="127.0.0.1", limit=_LIMIT
            )
            under_way: list[Recorded] = []
            back = asyncio.ensure_future(_carry_back(answers, writer, under_way))
            try:
                while True:
                    data = await reader.readuntil(b"\r\n\r\n")
                    head = Head.parse(data)
                    if head.value("transfer-encoding"):
                        raise RuntimeError(f"a body of unknown length cannot be recorded: {head.line}")
                    body = await reader.readexactly(int(head.value("content-length") or 0))
                    request = head.recorded(body)
                    self.requests.append(request)
                    under_way[:] = [request]
                    onward.write(data + body)
            finally:
                back.cancel()
                onward.close()
                writer.close()


async def _carry_back(answers: asyncio.StreamReader, writer: asyncio.StreamWriter, under_way: list[Recorded]) -> None:
    """An answer belongs to the request before it: nobody here asks again before the answer is there."""
    with suppress(OSError):
        while data := await answers.read(1 << 16):
            if under_way:
                request = under_way[0]
                request.answer += len(data)
                if not request.status and data.startswith(b"HTTP/1.1 "):
                    request.status = int(data[9:12])
            writer.write(data)
            await writer.drain()
    writer.close()
