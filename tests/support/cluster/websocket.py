"""The server's side of WebSockets (RFC 6455): messages in, messages out, pings answered.

A proxy passes these bytes on unread, so nothing more is needed than a true endpoint.
"""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64encode

from tests.support.cluster.http import Disconnected, Record

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # section 1.3
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FINAL, MASKED = 0x80, 0x80
NORMAL_CLOSURE = (1000).to_bytes(2, "big")


def is_upgrade(record: Record) -> bool:
    return _asks(record, "websocket") and record.value("Sec-WebSocket-Key") is not None


def agreement(record: Record, protocol: str) -> dict[str, str]:
    """The headers of the 101."""
    digest = hashlib.sha1(((record.value("Sec-WebSocket-Key") or "") + GUID).encode()).digest()
    return {
        "Upgrade": "websocket",
        "Sec-WebSocket-Accept": b64encode(digest).decode(),
        "Sec-WebSocket-Protocol": protocol,
    }


def _asks(record: Record, protocol: str) -> bool:
    upgrades = [each.lower() for each in record.tokens("Upgrade")]
    return protocol in upgrades and "upgrade" in [each.lower() for each in record.tokens("Connection")]


class WebSocket:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def receive(self) -> bytes:
        """The next message; raises `Disconnected` when the client closes."""
        message = b""
        while True:
            final, kind, payload = await self._frame()
            if kind == CLOSE:
                raise Disconnected
            if kind == PING:
                await self._send(PONG, payload)
            elif kind in (CONTINUATION, TEXT, BINARY):
                message += payload
                if final:
                    return message

    async def send(self, message: bytes) -> None:
        await self._send(BINARY, message)

    async def say_goodbye(self) -> None:
        """The client answers with its own, once it has read all that was sent; `receive` then raises."""
        await self._send(CLOSE, NORMAL_CLOSURE)

    async def _frame(self) -> tuple[bool, int, bytes]:
        try:
            first, second = await self._reader.readexactly(2)
            length = second & ~MASKED
            if length >= 126:
                length = int.from_bytes(await self._reader.readexactly(2 if length == 126 else 8), "big")
            if not second & MASKED:
                raise Disconnected("a client must mask its frames")
            mask = await self._reader.readexactly(4)
            payload = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Disconnected from None
        return bool(first & FINAL), first & 0x0F, _unmasked(payload, mask)

    async def _send(self, kind: int, payload: bytes) -> None:
        length = len(payload)
        if length < 126:
            size = bytes([length])
        elif length < 1 << 16:
            size = bytes([126]) + length.to_bytes(2, "big")
        else:
            size = bytes([127]) + length.to_bytes(8, "big")
        try:
            self._writer.write(bytes([FINAL | kind]) + size + payload)
            await self._writer.drain()
        except ConnectionError:
            raise Disconnected from None


def _unmasked(payload: bytes, mask: bytes) -> bytes:
    key = (mask * (len(payload) // 4 + 1))[: len(payload)]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(len(payload), "big")
