"""SPDY/3.1, the server's side, as far as exec and port-forward need it.

Frames, the compressed headers, and streams that the client opens. There is no flow control: the implementation in
kubectl has none either. Bytes come and go through two functions, so that the same session runs on a plain connection
and inside a WebSocket.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping

from tests.support.cluster.http import Disconnected

CONTROL, VERSION = 0x80, 3
SYN_STREAM, SYN_REPLY, RST_STREAM, SETTINGS, PING, GOAWAY, HEADERS, WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9
FIN = 0x01
MAX_DATA = 1 << 15

# The dictionary of the SPDY/3 specification (2.6.10.1): common words, each with its length before it, and some that
# stand bare. Its Adler-32 is in every stream, so a slip in it would not stay unnoticed.
_WORDS = """options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age
allow authorization cache-control connection content-base content-encoding content-language content-length
content-location content-md5 content-range content-type date etag expect expires from host if-match if-modified-since
if-none-match if-range if-unmodified-since last-modified location max-forwards pragma proxy-authenticate
proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade user-agent vary via warning
www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin"""
_BARE = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    "403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    "text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _dictionary() -> bytes:
    words = [word.replace("_", " ").encode() for word in _WORDS.split()]
    return b"".join(_number(len(word)) + word for word in words) + _BARE.encode()


def _number(value: int) -> bytes:
    return value.to_bytes(4, "big")


DICTIONARY = _dictionary()


class HeaderCodec:
    """One direction's header compression: the state lives as long as the connection."""

    def __init__(self) -> None:
        self._compress = zlib.compressobj(zdict=DICTIONARY)
        self._decompress = zlib.decompressobj(zdict=DICTIONARY)

    def encode(self, headers: Mapping[str, str]) -> bytes:
        words = [word.encode() for pair in headers.items() for word in pair]
        block = _number(len(headers)) + b"".join(_number(len(word)) + word for word in words)
        return self._compress.compress(block) + self._compress.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes) -> dict[str, str]:
        block = self._decompress.decompress(data)
        words, position = [], 4
        while position < len(block):
            end = position + 4 + int.from_bytes(block[position : position + 4], "big")
            words.append(block[position + 4 : end].decode())
            position = end
        return dict(zip(words[::2], words[1::2], strict=True))


class Stream:
    """One stream that the client opened."""

    def __init__(self, session: Session, number: int, headers: dict[str, str]) -> None:
        self.headers = headers
        self._session, self._number = session, number
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()
        self._ended = False

    async def read(self) -> bytes:
        """What comes next; empty at the end, and ever after."""
        data = b"" if self._ended else await self._arrived.get()
        self._ended = self._ended or not data
        return data

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), MAX_DATA):
            await self._session.send_data(self._number, 0, data[start : start + MAX_DATA])

    async def close(self) -> None:
        """Nothing more will be written."""
        await self._session.send_data(self._number, FIN, b"")

    def deliver(self, data: bytes) -> None:
        self._arrived.put_nowait(data)


class Session:
    """`run` serves one connection; *opened* is told of each stream, after it has been accepted."""

    def __init__(self, read: Callable[[int], Awaitable[bytes]], write: Callable[[bytes], Awaitable[None]]) -> None:
        self._read, self._write = read, write
        self._headers = HeaderCodec()
        self._streams: dict[int, Stream] = {}

    async def run(self, opened: Callable[[Stream], None]) -> None:
        """Until the client has gone."""
        try:
            while True:
                head = await self._read(8)
                payload = await self._read(int.from_bytes(head[5:], "big"))
                if head[0] & CONTROL:
                    await self._control(int.from_bytes(head[2:4], "big"), head[4], payload, opened)
                else:
                    self._data(int.from_bytes(head[:4], "big"), head[4], payload)
        except (asyncio.IncompleteReadError, ConnectionError, Disconnected):
            pass
        finally:
            for stream in self._streams.values():
                stream.deliver(b"")

    async def _control(self, kind: int, flags: int, payload: bytes, opened: Callable[[Stream], None]) -> None:
        number = int.from_bytes(payload[:4], "big")
        if kind == SYN_STREAM:
            stream = self._streams[number] = Stream(self, number, self._headers.decode(payload[10:]))
            await self._send(SYN_REPLY, _number(number) + self._headers.encode({}))
            opened(stream)
            if flags & FIN:
                stream.deliver(b"")
        elif kind == HEADERS:
            self._headers.decode(payload[4:])  # keeps the decompressor in step
        elif kind == RST_STREAM and number in self._streams:
            self._streams[number].deliver(b"")
        elif kind == PING and number % 2:
            # Odd ones are the client's questions; an even one would answer a question of ours.
            await self._send(PING, payload)

    def _data(self, number: int, flags: int, payload: bytes) -> None:
        stream = self._streams.get(number)
        if stream is None:
            return
        if payload:
            stream.deliver(payload)
        if flags & FIN:
            stream.deliver(b"")

    async def send_data(self, number: int, flags: int, data: bytes) -> None:
        await self._write(_number(number) + bytes([flags]) + len(data).to_bytes(3, "big") + data)

    async def _send(self, kind: int, payload: bytes) -> None:
        head = bytes([CONTROL, VERSION]) + kind.to_bytes(2, "big") + bytes([0])
        await self._write(head + len(payload).to_bytes(3, "big") + payload)
