"""One HTTP/2 request in bytes, as it is written, and whether its answer is over. Pure.

Header lists are encoded literally, without any check: a proxy that makes HTTP/1.1 of them must not believe a line break
in a value. Of an answer only its end is of interest, and its status as far as that is one number.
"""

from __future__ import annotations

from collections.abc import Iterator

from ostiary.cli.doctor.traffic.observed import Pairs

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0x0, 0x1, 0x3, 0x4, 0x7
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
SETTINGS_ACK = b"\0\0\0" + bytes([SETTINGS, ACK]) + b"\0\0\0\0"
_STREAM = 1
_HEAD_SIZE = 9
# The entries of HPACK's static table that are a status, with the bit of an indexed field.
_STATUSES = {0x88: 200, 0x89: 204, 0x8A: 206, 0x8B: 304, 0x8C: 400, 0x8D: 404, 0x8E: 500}


def request_frames(headers: Pairs, body: bytes) -> bytes:
    """The beginning of a connection, and one request on it."""
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers)
    flags = END_HEADERS if body else END_HEADERS | END_STREAM
    frames = _frame(SETTINGS, 0, 0, b"") + _frame(HEADERS, flags, _STREAM, block)
    if body:
        frames += _frame(DATA, END_STREAM, _STREAM, body)
    return PREFACE + frames


def frames(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and content of each whole frame in *data*."""
    while len(data) >= _HEAD_SIZE:
        size = int.from_bytes(data[:3], "big")
        if len(data) < _HEAD_SIZE + size:
            return
        yield data[3], data[4], int.from_bytes(data[5:9], "big") & 0x7FFFFFFF, data[9 : 9 + size]
        data = data[9 + size :]


def is_over(data: bytes) -> bool:
    """Whether nothing more comes for our request."""
    return any(_is_last(kind, flags, stream) for kind, flags, stream, _ in frames(data))


def _is_last(kind: int, flags: int, stream: int) -> bool:
    if kind == GOAWAY:
        return True
    ends = kind == RST_STREAM or (kind in (DATA, HEADERS) and bool(flags & END_STREAM))
    return stream == _STREAM and ends


def wants_ack(data: bytes) -> bool:
    return any(kind == SETTINGS and not flags & ACK for kind, flags, _, _ in frames(data))


def status_of(data: bytes) -> int:
    """The status of the answer; 0 if there is none, or one that is not in HPACK's static table."""
    blocks = [block for kind, _, stream, block in frames(data) if kind == HEADERS and stream == _STREAM]
    # An update of the size of the dynamic table may come before it.
    first = next((byte for byte in blocks[0][:3] if byte & 0xE0 != 0x20), 0) if blocks else 0
    return _STATUSES.get(first, 0)


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


def _text(text: bytes) -> bytes:
    return _number(len(text)) + text


def _number(number: int) -> bytes:
    """A number with a prefix of seven bits (RFC 7541, section 5.1); the eighth, for Huffman's code, is not set."""
    if number < 0x7F:
        return bytes([number])
    number -= 0x7F
    encoded = bytearray([0x7F])
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
