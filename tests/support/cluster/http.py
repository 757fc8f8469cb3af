"""HTTP/1.1 as the cluster speaks it: one request in, one answer out, and every byte of the head kept.

Read by `server`. What a proxy may have touched is recorded as it arrived: the target is not decoded, header names
keep their case and their order, and nothing is joined.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote

from ostiary.model import UserInfo
from ostiary.wire.go_json import go_json

MAX_HEAD = 1 << 20
Header = tuple[bytes, bytes]


def text(value: bytes) -> str:
    """A header's value as Go takes it: its bytes are UTF-8, and what is not survives the round trip."""
    return value.decode("utf-8", "surrogateescape")


class Malformed(Exception):
    """The bytes are no HTTP/1.1 request, or one whose end two readers could see differently."""


class Disconnected(Exception):
    """The client went away."""


@dataclass(eq=False)
class Record:
    """One request, as it arrived, and what became of it. It is listed as soon as its head is here."""

    connection: int
    """Counts the connections of this cluster: equal numbers came over one connection."""
    head: bytes
    method: str
    target: bytes
    headers: list[Header]
    certificate: str | None
    """The common name of the client certificate."""
    body: bytes = b""
    authenticated: UserInfo | None = None
    """Whose credential it was."""
    user: UserInfo | None = None
    """Who the request was carried out as: the same, unless it impersonated somebody."""
    status: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when the answer is complete or the stream was cut."""

    @property
    def path(self) -> str:
        return unquote(self.target.partition(b"?")[0].decode("latin-1"))

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(self.target.partition(b"?")[2].decode("latin-1"), keep_blank_values=True)

    def values(self, name: str) -> list[str]:
        """All lines of a header, one string each."""
        wanted = name.lower().encode()
        return [text(value) for key, value in self.headers if key.lower() == wanted]

    def value(self, name: str) -> str | None:
        return next(iter(self.values(name)), None)

    def tokens(self, name: str) -> list[str]:
        """The members of a header that is a comma-separated list, over all its lines."""
        return [token.strip() for value in self.values(name) for token in value.split(",") if token.strip()]

    def parameter(self, name: str, default: str = "") -> str:
        return self.query.get(name, [default])[0]

    def flag(self, name: str) -> bool:
        return self.parameter(name) in ("1", "t", "T", "true", "TRUE", "True")


async def read_head(reader: asyncio.StreamReader, *, connection: int, certificate: str | None) -> Record | None:
    """The head of the next request; None when the client closed between two."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise Disconnected from None
        return None
    except asyncio.LimitOverrunError:
        raise Malformed("the head is too long") from None
    request_line, *lines = head[:-4].split(b"\r\n")
    try:
        method, target, version = request_line.split(b" ")
    except ValueError:
        raise Malformed("the request line has not three parts") from None
    if version != b"HTTP/1.1":
        raise Malformed("it is not HTTP/1.1")
    headers = [_header(line) for line in lines]
    return Record(connection, head, method.decode("latin-1"), target, headers, certificate)


def _header(line: bytes) -> Header:
    name, colon, value = line.partition(b":")
    if not colon or not name or name != name.strip():
        raise Malformed("a header line is malformed")
    return name, value.strip(b" \t")


async def read_body(record: Record, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    lengths, codings = record.values("Content-Length"), record.tokens("Transfer-Encoding")
    if (lengths and codings) or len(lengths) > 1:
        raise Malformed("the length of the body is ambiguous")
    if (record.value("Expect") or "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        if codings:
            record.body = b"".join([chunk async for chunk in _chunks(codings, reader)])
        elif lengths:
            record.body = await reader.readexactly(_number(lengths[0].encode(), base=10))
    except asyncio.IncompleteReadError:
        raise Disconnected from None


async def _chunks(codings: list[str], reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    if [coding.lower() for coding in codings] != ["chunked"]:
        raise Malformed("the transfer coding is unknown")
    while size := _number((await reader.readuntil(b"\r\n")).partition(b";")[0].strip(), base=16):
        yield await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise Malformed("a chunk is longer than it says")
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass


def _number(digits: bytes, *, base: int) -> int:
    # int() would also read signs, spaces and underscores.
    if not digits.isalnum():
        raise Malformed("a length is no number")
    try:
        return int(digits, base)
    except ValueError:
        raise Malformed("a length is no number") from None


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def json_answer(status: int, value: Any, headers: Mapping[str, str] | None = None) -> Answer:
    """*value* as Go's encoder writes it, with its newline."""
    body = go_json(value).encode() + b"\n"
    return Answer(status, body, {"Content-Type": "application/json", **(headers or {})})


def text_answer(status: int, text: str) -> Answer:
    headers = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
    return Answer(status, text.encode(), headers)


class Exchange:
    """One request and the connection it came on: what a handler answers by.

    A handler calls exactly one of `answer`, `stream` and `switch`.
    """

    def __init__(self, record: Record, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.record, self.reader, self.writer = record, reader, writer
        self.reusable = True
        """Whether the connection can carry another request after this one."""

    async def answer(self, answer: Answer) -> None:
        self._head(answer.status, {**answer.headers, "Content-Length": str(len(answer.body))})
        if self.record.method != "HEAD":
            self.writer.write(answer.body)
        await self.writer.drain()

    async def stream(self, content_type: str, chunks: AsyncIterator[bytes]) -> None:
        """Send *chunks* as they come; stops, too, when the client goes away."""
        self._head(200, {"Content-Type": content_type, "Transfer-Encoding": "chunked"})
        self.reusable = False
        # Nothing may follow a request for a stream, so any byte, and the end, means that nobody listens.
        await first_of(self._send(chunks), self.reader.read(1))
        if self.reusable:
            # Only now that no more is read here: the next byte may belong to the next request.
            self.writer.write(b"0\r\n\r\n")
            await self.writer.drain()

    async def _send(self, chunks: AsyncIterator[bytes]) -> None:
        await self.writer.drain()
        async for chunk in chunks:
            self.writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            await self.writer.drain()
        self.reusable = True

    async def switch(self, headers: Mapping[str, str]) -> None:
        """Answer 101: from here on the connection speaks another protocol."""
        self.reusable = False
        self._head(101, {"Connection": "Upgrade", **headers})
        await self.writer.drain()

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.record.status = status
        audit_id = self.record.value("Audit-ID") or str(uuid.uuid4())
        common = {"Audit-Id": audit_id, **({} if status == 101 else {"Cache-Control": "no-cache, private"})}
        lines = [f"{name}: {value}" for name, value in {**common, **headers}.items()]
        self.writer.write("\r\n".join([f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *lines, "", ""]).encode())


async def first_of(*coroutines: Coroutine[Any, Any, Any]) -> None:
    """Run them until the first has ended; the others are cancelled. Its exception is raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
