"""The reviews that kubectl sends in the protobuf encoding of Kubernetes, as the JSON that means the same.

Called by `ostiary.gateway.self_reviews`. Pure. kubectl 1.33 asks ``auth can-i`` and ``auth whoami`` in this encoding
and does not ask again in another; it reads JSON answers. Only the fields that a review is made of are known here, by
their numbers in the published ``generated.proto`` files; others are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import msgspec

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}


class ProtobufError(ValueError):
    """Bytes are not a review in protobuf. The message does not quote them."""


class _Field(NamedTuple):
    """`message` is None for text."""

    name: str
    message: _Message | None = None
    repeated: bool = False


_Message: TypeAlias = dict[int, _Field]

_REQUIREMENT: _Message = {1: _Field("key"), 2: _Field("operator"), 3: _Field("values", repeated=True)}
_SELECTOR: _Message = {1: _Field("rawSelector"), 2: _Field("requirements", _REQUIREMENT, repeated=True)}
_RESOURCE: _Message = {
    number: _Field(name)
    for number, name in enumerate(("namespace", "verb", "group", "version", "resource", "subresource", "name"), 1)
} | {8: _Field("fieldSelector", _SELECTOR), 9: _Field("labelSelector", _SELECTOR)}
_NON_RESOURCE: _Message = {1: _Field("path"), 2: _Field("verb")}
_ACCESS_SPEC: _Message = {
    1: _Field("resourceAttributes", _RESOURCE),
    2: _Field("nonResourceAttributes", _NON_RESOURCE),
}
_REVIEWS: dict[str, _Message] = {
    "SelfSubjectAccessReview": {2: _Field("spec", _ACCESS_SPEC)},
    "SelfSubjectRulesReview": {2: _Field("spec", {1: _Field("namespace")})},
    "SelfSubjectReview": {},
}
_TYPE: _Message = {1: _Field("apiVersion"), 2: _Field("kind")}
_encode = msgspec.json.Encoder().encode


def review_as_json(data: bytes) -> bytes:
    """The review in *data* as JSON; raises `ProtobufError`."""
    if not data.startswith(_MAGIC):
        raise ProtobufError("it is not the protobuf encoding of Kubernetes")
    parts = {number: value for number, value in _fields(data[len(_MAGIC) :]) if isinstance(value, bytes)}
    if parts.get(3):
        raise ProtobufError("its content is encoded once more")
    about = _decode(_TYPE, parts.get(1, b""))
    message = _REVIEWS.get(str(about.get("kind")))
    if message is None:
        raise ProtobufError("it is no review that can be answered here")
    return _encode({**about, **_decode(message, parts.get(2, b""))})


def _decode(message: _Message, data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, raw in _fields(data):
        known = message.get(number)
        if known is None:
            continue
        if not isinstance(raw, bytes):
            raise ProtobufError("a field has another type than it should")
        value = _text(raw) if known.message is None else _decode(known.message, raw)
        if known.repeated:
            found.setdefault(known.name, []).append(value)
        elif known.name in found:
            # Encoders write a field once; readers differ in whether they merge, or take the last.
            raise ProtobufError("a field stands twice")
        else:
            found[known.name] = value
    return found


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ProtobufError("a text is not UTF-8") from None


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if kind == _BYTES:
            size, position = _varint(data, position)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise ProtobufError("a field has an unknown type")
        end = position + size
        if end > len(data):
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
