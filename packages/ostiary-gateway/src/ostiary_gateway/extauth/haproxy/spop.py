"""Encoding and decoding of SPOP frames, the protocol between HAProxy and its SPOE agents. Pure.

    frame    4 bytes of length, 1 byte of type, 4 bytes of flags, stream number, frame number
    NOTIFY   messages: a name, 1 byte with the number of arguments, then names with typed values
    ACK      actions: set a variable, with a scope, a name and a typed value

Truncated, oversized or unknown data raises `SpopError`. Nothing is read past the end of the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import NoReturn

HAPROXY_HELLO, HAPROXY_DISCONNECT, NOTIFY = 1, 2, 3
AGENT_HELLO, AGENT_DISCONNECT, ACK = 101, 102, 103
FIN = 1
# Status codes of a disconnect.
NORMAL, TIMED_OUT, TOO_BIG, INVALID, NO_VERSION, NO_FRAME_SIZE = 0, 2, 3, 4, 5, 6
UNSUPPORTED_VERSION, BAD_FRAME_SIZE, NO_FRAGMENTS, UNKNOWN = 8, 9, 10, 99
# Limits. HAProxy sends one message of six arguments for each request.
MOST_MESSAGES, MOST_ARGUMENTS, MOST_HEADERS = 4, 32, 1000

Value = None | bool | int | str | bytes | IPv4Address | IPv6Address

_NULL, _BOOL, _INT32, _UINT32, _INT64, _UINT64, _IPV4, _IPV6, _STRING, _BINARY = range(10)
_TRUE = 0x10
# A typed value.
TRUE = bytes((_BOOL | _TRUE,))
_SET_VAR, _TRANSACTION = 1, 2
# Ten bytes encode every 64-bit number.
_LONGEST_NUMBER = 10


class SpopError(ValueError):
    """The bytes are not a valid frame. `code` is the status code for HAProxy."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def _refuse(message: str) -> NoReturn:
    raise SpopError(INVALID, message)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of HAProxy."""

    name: bytes
    arguments: dict[bytes, Value]


# --- decoding ---


def read_number(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at *at*, and the position after it."""
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
    """Return the length-prefixed bytes at *at*, and the position after them."""
    size, at = read_number(data, at)
    end = at + size
    if end > len(data):
        _refuse("a text is cut off")
    return data[at:end], end


def read_value(data: bytes, at: int) -> tuple[Value, int]:
    """Return the typed value at *at*, and the position after it. Strings are bytes: SPOP defines no encoding."""
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
    """Return *count* names with their values, or all that are left if it is None. Duplicate names are rejected."""
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
    """Return the messages of a NOTIFY frame."""
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
    """Return the headers of the fetch ``req.hdrs_bin``.

    It has names and values, and ends with an empty name and an empty value.
    """
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


# --- encoding ---


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
    """Encode a typed string."""
    return b"\x08" + text(value)


def uint32(value: int) -> bytes:
    """Encode a typed number."""
    return b"\x03" + number(value)


def set_variable(name: bytes, typed: bytes) -> bytes:
    """Encode the action that sets ``txn.<prefix>.<name>``."""
    return bytes((_SET_VAR, 3, _TRANSACTION)) + text(name) + typed


def pairs(values: dict[bytes, bytes]) -> bytes:
    """Encode names with typed values."""
    return b"".join([text(name) + typed for name, typed in values.items()])


def frame(kind: int, stream: int, number_of_frame: int, payload: bytes) -> bytes:
    head = bytes((kind, 0, 0, 0, FIN)) + number(stream) + number(number_of_frame)
    return (len(head) + len(payload)).to_bytes(4, "big") + head + payload
