"""An upstream that begins to answer and never ends: whatever can be open at a gateway, until somebody closes it.

    /...watch=true, /...follow=true    an answer in chunks, of which the first comes
    Upgrade: ...                       101, then nothing
    /app/events                        server-sent events
    /app/slow                          an answer with a length, of which the first bytes come
    /app/pending                       no answer at all
    POST, PUT                          no answer either: the body is read for as long as it comes
    /large                             five megabytes, as quickly as they are taken
    anything else                      200

Every request names itself in ``X-Test-Id``; the test waits for its beginning and its end by that name.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from concurrent.futures import Future
from contextlib import suppress

SECONDS = 30.0
_CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n"
_LARGE = b"x" * 5_000_000
_ENDED = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class HoldingUpstream:
    """``with HoldingUpstream() as upstream``; in a thread with a loop of its own."""

    def __init__(self) -> None:
        self._begun: dict[str, threading.Event] = defaultdict(threading.Event)
        self._ended: dict[str, threading.Event] = defaultdict(threading.Event)
        self._lock = threading.Lock()
        self._started: Future[int] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="upstream")

    def __enter__(self) -> HoldingUpstream:
        self._thread.start()
        self.port = self._started.result(SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(SECONDS)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def begun(self, name: str) -> threading.Event:
        """Set when the request of this name is here, with the first bytes of its body if it has one."""
        with self._lock:
            return self._begun[name]

    def ended(self, name: str) -> threading.Event:
        """Set when the other side of its connection has closed it."""
        with self._lock:
            return self._ended[name]

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512)
        self._started.set_result(server.sockets[0].getsockname()[1])
        await self._stop.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = ""
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    name = _header(head, b"x-test-id")
                    if not await self._answer(head, reader, writer):
                        break
                self.begun(name).set()
                while await reader.read(65536):
                    pass
        finally:
            self.ended(name).set()
            writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Begin to answer; whether that was all."""
        target, upgrade = head.split(b" ")[1], _header(head, b"upgrade")
        if upgrade:
            lines = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n\r\n"
            writer.write(lines.encode())
        elif b"watch=true" in target or b"follow=true" in target:
            writer.write(_CHUNKED % b"application/json")
        elif target.endswith(b"/events"):
            writer.write(_CHUNKED % b"text/event-stream")
        elif target.endswith(b"/slow"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nfirst")
        elif head.startswith((b"POST", b"PUT")):
            await reader.read(1)
        elif target == b"/large":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(_LARGE) + _LARGE)
            await writer.drain()
            return True
        elif not target.endswith(b"/pending"):
            writer.write(_ENDED)
            return True
        return False


def _header(head: bytes, name: bytes) -> str:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.lower() == name:
            return value.strip().decode()
    return ""
