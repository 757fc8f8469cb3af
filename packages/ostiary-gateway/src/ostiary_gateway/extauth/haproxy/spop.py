"""The bytes of SPOP, in which HAProxy asks its agents: frames, numbers of variable length, typed values. Pure.

    frame    4 bytes of length, a byte of type, 4 bytes of flags, the number of the stream, the number of the frame
    NOTIFY   messages: a name, a byte that counts arguments, and as many names with typed values
    ACK      actions: set a variable, with a scope, a name and a typed value

Called by the connection, the question and the answers. Whatever is cut off, too long or of an unknown type raises
`SpopError`; nothing is read past the end of what was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import NoReturn

HAPROXY_HELLO, HAPROXY_DISCONNECT, NOTIFY = 1, 2, 3
AGENT_HELLO, AGENT_DISCONNECT, ACK = 101, 102, 103
FIN = 1
# Why a connection ends.
NORMAL, TIMED_OUT, TOO_BIG, INVALID, NO_VERSION, NO_FRAME_SIZE = 0, 2, 3, 4, 5, 6
UNSUPPORTED_VERSION, BAD_FRAME_SIZE, NO_FRAGMENTS, UNKNOWN = 8, 9, 10, 99
# HAProxy asks about one request with one message of six arguments. More is not ours.
MOST_MESSAGES, MOST_ARGUMENTS, MOST_HEADERS = 4, 32, 1000

Value = None | bool | int | str | bytes | IPv4Address | IPv6Address

_NULL, _BOOL, _INT32, _UINT32, _INT64, _UINT64, _IPV4, _IPV6, _STRING, _BINARY = range(10)
_TRUE = 0x10
# A typed value.
TRUE = bytes((_BOOL | _TRUE,))
_SET_VAR, _TRANSACTION = 1, 2
# Ten bytes hold every number of 64 bits.
_LONGEST_NUMBER = 10


class SpopError(ValueError):
    """The bytes are no frame that can be understood. `code` is what HAProxy is told."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def _refuse(message: str) -> NoReturn:
    raise SpopError(INVALID, message)


@dataclass(frozen=True, slots=True)
class Message:
    """One question of HAProxy."""

    name: bytes
    arguments: dict[bytes, Value]


# --- reading ---


def read_number(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at *at*, and where it ends."""
    try:
        number = data[at]
        at += 1
        if number < 240:
            return number, at
        shift = 4
        for _ in range(_LONGEST_NUMBER):
            byte = data[at]
            at += 1
            number += byte << shift
            if byte < 128:
                return number, at
            shift += 7
    except IndexError:
        _refuse("a number is cut off")
    _refuse("a number is too long")


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """The text that begins at *at* with its length, and where it ends."""
    size, at = read_number(data, at)
    end = at + size
    if end > len(data):
        _refuse("a text is cut off")
    return data[at:end], end


def read_value(data: bytes, at: int) -> tuple[Value, int]:
    """The typed value that begins at *at*, and where it ends. Texts are bytes: HAProxy does not say how they read."""
    if at >= len(data):
        _refuse("a value is cut off")
    kind, flags = data[at] & 0x0F, data[at] & 0xF0
    at += 1
    match kind:
        case 0:  # _NULL
            return None, at
        case 1:  # _BOOL
            return bool(flags & _TRUE), at
        case 2 | 3 | 4 | 5:
            return read_number(data, at)
        case 6:
            return IPv4Address(_exactly(data, at, 4)), at + 4
        case 7:
            return IPv6Address(_exactly(data, at, 16)), at + 16
        case 8 | 9:
            return read_bytes(data, at)
    _refuse("a value has an unknown type")


def read_pairs(data: bytes, at: int, count: int | None = None) -> tuple[dict[bytes, Value], int]:
    """So many names with their values; all that are left if *count* is None. No name may come twice."""
    pairs: dict[bytes, Value] = {}
    while len(pairs) != count and (count is not None or at < len(data)):
        name, at = read_bytes(data, at)
        value, at = read_value(data, at)
        if name in pairs:
            _refuse("a name is there twice")
        if len(pairs) >= MOST_ARGUMENTS:
            _refuse("there are too many names")
        pairs[name] = value
    return pairs, at


def read_messages(payload: bytes) -> list[Message]:
    """The messages of a NOTIFY frame."""
    messages: list[Message] = []
    at = 0
    while at < len(payload):
        name, at = read_bytes(payload, at)
        if at >= len(payload):
            _refuse("a message is cut off")
        arguments, at = read_pairs(payload, at + 1, payload[at])
        messages.append(Message(name, arguments))
        if len(messages) > MOST_MESSAGES:
            _refuse("there are too many messages")
    return messages


def read_headers(data: bytes) -> list[tuple[bytes, bytes]]:
    """What the fetch ``req.hdrs_bin`` says: names and values, ended by an empty name with an empty value."""
    headers: list[tuple[bytes, bytes]] = []
    at = 0
    while True:
        name, at = read_bytes(data, at)
        value, at = read_bytes(data, at)
        if not name:
            if value or at != len(data):
                _refuse("a header has no name")
            return headers
        if len(headers) >= MOST_HEADERS:
            _refuse("there are too many headers")
        headers.append((name, value))


def _exactly(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        _refuse("a value is cut off")
    return data[at : at + size]


# --- writing ---


def number(value: int) -> bytes:
    if value < 240:
        return bytes((value,))
    parts = [(value & 0x0F) | 0xF0]
    value = (value - 240) >> 4
    while value >= 128:
        parts.append((value & 0x7F) | 0x80)
        value = (value - 128) >> 7
    parts.append(value)
    return bytes(parts)


def text(value: bytes) -> bytes:
    return number(len(value)) + value


def string(value: bytes) -> bytes:
    """A typed value."""
    return b"\x08" + text(value)


def uint32(value: int) -> bytes:
    """A typed value."""
    return b"\x03" + number(value)


def set_variable(name: bytes, typed: bytes) -> bytes:
    """The action that sets ``txn.<prefix>.<name>``."""
    return bytes((_SET_VAR, 3, _TRANSACTION)) + text(name) + typed


def pairs(values: dict[bytes, bytes]) -> bytes:
    """Names with typed values."""
    return b"".join([text(name) + typed for name, typed in values.items()])


def frame(kind: int, stream: int, number_of_frame: int, payload: bytes) -> bytes:
    head = bytes((kind, 0, 0, 0, FIN)) + number(stream) + number(number_of_frame)
    return (len(head) + len(payload)).to_bytes(4, "big") + head + payload
