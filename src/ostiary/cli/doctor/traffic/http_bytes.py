"""Reads HTTP/1.1 from bytes as a lenient application would, and keeps what it could not read. Pure.

Used by the echo for what a proxy sends, and by the client's side for answers. It is no parser to serve people with: it
must take what a proxy should not have let pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostiary.cli.doctor.traffic.observed import Pairs


class Incomplete(Exception):
    """There must be more bytes before this can be read."""


@dataclass(frozen=True, slots=True)
class Message:
    """One request or answer: `first` is its first line. `rest` is what comes after it."""

    head: bytes
    first: bytes
    headers: Pairs
    body: bytes
    trailers: Pairs
    rest: bytes


def read_message(data: bytes, *, has_body: bool = True, ends_with_connection: bool = False) -> Message:
    """The first message of *data*; raises `Incomplete`. A body that nobody can measure is empty."""
    head, body_start = _head(data)
    first, *lines = head.replace(b"\r\n", b"\n").split(b"\n")
    headers = pairs(lines)
    values = {name.strip().lower(): value for name, value in headers}
    after = data[body_start:]
    body: bytes = b""
    trailers: Pairs = ()
    rest = after
    if not has_body:
        pass
    elif b"chunked" in values.get(b"transfer-encoding", b"").lower():
        body, trailers, rest = _chunks(after)
    elif b"content-length" in values:
        size = _number(values[b"content-length"])
        if len(after) < size:
            raise Incomplete
        body, rest = after[:size], after[size:]
    elif ends_with_connection:
        body, rest = after, b""
    return Message(head, first, headers, body, trailers, rest)


def pairs(lines: list[bytes]) -> Pairs:
    """Header lines as names and values. A line that continues another stays a line of its own."""
    split = (line.partition(b":") for line in lines if line)
    return tuple((name, value.strip()) for name, _, value in split)


def _head(data: bytes) -> tuple[bytes, int]:
    ends = [(data.find(end), len(end)) for end in (b"\r\n\r\n", b"\n\n") if end in data]
    if not ends:
        raise Incomplete
    at, size = min(ends)
    return data[:at], at + size


def _number(value: bytes) -> int:
    text = value.strip().lstrip(b"+")
    return int(text) if text.isdigit() and len(text) < 10 else 0


def _chunks(data: bytes) -> tuple[bytes, Pairs, bytes]:
    body = b""
    while True:
        line, end, data = data.partition(b"\n")
        if not end:
            raise Incomplete
        size = _size(line)
        if size == 0:
            return body, *_trailers(data)
        if len(data) < size:
            raise Incomplete
        body, data = body + data[:size], data[size:]
        data = data.removeprefix(b"\r").removeprefix(b"\n")


def _size(line: bytes) -> int:
    text = line.partition(b";")[0].strip()
    try:
        return int(text, 16) if len(text) < 9 else 0
    except ValueError:
        return 0


def _trailers(data: bytes) -> tuple[Pairs, bytes]:
    lines: list[bytes] = []
    while True:
        line, end, data = data.partition(b"\n")
        if not end:
            raise Incomplete
        line = line.removesuffix(b"\r")
        if not line:
            return pairs(lines), data
        lines.append(line)
