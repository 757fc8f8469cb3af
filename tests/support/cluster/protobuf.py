"""What kubectl sends in Kubernetes' binary form: reviews of oneself, and what some of its create commands make.

It takes JSON for an answer.

After four magic bytes stands a message with the type and, inside, the object (``runtime.Unknown``). Field numbers are
those of the published ``generated.proto`` files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

# field number -> name of a text, or name and fields of a message
_Fields = Mapping[int, "str | tuple[str, _Fields]"]
_RESOURCE: _Fields = dict(enumerate(("namespace", "verb", "group", "version", "resource", "subresource", "name"), 1))
_PATH: _Fields = {1: "path", 2: "verb"}
_METADATA: _Fields = {1: ("metadata", {1: "name", 3: "namespace"})}
_SPECS: Mapping[str, _Fields] = {
    "SelfSubjectReview": {},
    "SelfSubjectAccessReview": {
        2: ("spec", {1: ("resourceAttributes", _RESOURCE), 2: ("nonResourceAttributes", _PATH)})
    },
    "SelfSubjectRulesReview": {2: ("spec", {1: "namespace"})},
    "ConfigMap": _METADATA,
    "Namespace": _METADATA,
    "ServiceAccount": _METADATA,
    "TokenRequest": {},
}


def decode(body: bytes) -> dict[str, Any]:
    """The object as JSON would give it; raises ValueError for a kind that is not known here."""
    if not body.startswith(MAGIC):
        raise ValueError("it does not begin as Kubernetes' protobuf does")
    envelope = dict(_fields(body[len(MAGIC) :]))
    type_ = {number: value.decode() for number, value in _fields(envelope[1])}
    kind = type_[2]
    if kind not in _SPECS:
        raise ValueError(f"the fields of {kind} are not known")
    return {"kind": kind, "apiVersion": type_[1], **_message(envelope[2], _SPECS[kind])}


def _message(data: bytes, known: _Fields) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, value in _fields(data):
        match known.get(number):
            case str() as name:
                found |= {name: value.decode()} if value else {}
            case (str() as name, inner):
                found[name] = _message(value, inner)
    return found


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Fields that have a length, which all that matter here do; the others are stepped over."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == BYTES:
            length, position = _varint(data, position)
            yield tag >> 3, data[position : position + length]
            position += length
        elif kind == VARINT:
            _, position = _varint(data, position)
        elif kind in (FIXED32, FIXED64):
            position += 4 if kind == FIXED32 else 8
        else:
            raise ValueError("a field is of no known kind")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
