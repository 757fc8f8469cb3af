"""The fields of a protobuf message, without any knowledge of what they mean. Pure.

Used by `wire.codec.protobuf` and `wire.envoy_check`, which know their messages by the numbers of the fields.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}


class ProtobufError(ValueError):
    """Bytes are not the message that they should be. The text does not quote them."""


# --- reading ---


def fields_of(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The number and the value of each field: texts and messages as bytes, and numbers. Others are left out."""
    position, size = 0, len(data)
    while position < size:
        # Nearly every tag and length is one byte.
        tag = data[position]
        position += 1
        if tag > 0x7F:
            tag, position = _varint(data, position - 1)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if kind == _BYTES:
            length, position = _varint(data, position)
        elif kind in _SIZES:
            length = _SIZES[kind]
        else:
            raise ProtobufError("a field has an unknown type")
        end = position + length
        if end > size:
            raise ProtobufError("it ends too early")
        if kind == _BYTES:
            yield number, data[position:end]
        position = end


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ProtobufError("it ends too early")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ProtobufError("a number is too long")


# --- writing ---


def bytes_field(number: int, content: bytes) -> bytes:
    """A text or a message."""
    return _number(number << 3 | _BYTES) + _number(len(content)) + content


def number_field(number: int, value: int) -> bytes:
    return _number(number << 3 | _VARINT) + _number(value)


def _number(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
