"""Protobuf: the wire format, the messages of Kubernetes reviews, and responses as JSON, YAML or protobuf. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import yaml

from ostiary.wire.go_json import go_json, indented_go_json
from ostiary_gateway.wire.negotiation import PROTOBUF, YAML, Representation

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}


class ProtobufError(ValueError):
    """The bytes are not the expected message. The text does not quote them."""


# Wire format: reading.


def fields_of(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the number and the value of each field: texts and messages as bytes, and numbers. Others are skipped."""
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


# Wire format: writing.


def bytes_field(number: int, content: bytes) -> bytes:
    """Encode a text or a message."""
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


# The protobuf encoding of Kubernetes, for reviews. kubectl 1.33 uses it for ``auth can-i`` and ``auth whoami``. Only
# the
# messages of reviews are defined here, by the numbers in the published ``generated.proto`` files; unknown fields are
# skipped, as in any protobuf reader.

_MAGIC = b"k8s\x00"


class _Field(NamedTuple):
    """A field. `message` is None for text, and bool, int or datetime for flags, numbers and times.

    `optional`: omitted if it is absent. Kubernetes writes all others, empty or not.
    """

    name: str
    message: _Message | type[Any] | None = None
    repeated: bool = False
    optional: bool = False
    # A map of text to lists of text: the only map in these messages apart from those of the metadata.
    lists_by_name: bool = False


_Message: TypeAlias = Mapping[int, _Field]

_REQUIREMENT: _Message = {1: _Field("key"), 2: _Field("operator"), 3: _Field("values", repeated=True)}
_SELECTOR: _Message = {1: _Field("rawSelector"), 2: _Field("requirements", _REQUIREMENT, repeated=True)}
_RESOURCE: _Message = {
    number: _Field(name)
    for number, name in enumerate(("namespace", "verb", "group", "version", "resource", "subresource", "name"), 1)
} | {8: _Field("fieldSelector", _SELECTOR, optional=True), 9: _Field("labelSelector", _SELECTOR, optional=True)}
_NON_RESOURCE: _Message = {1: _Field("path"), 2: _Field("verb")}
_ACCESS_SPEC: _Message = {
    1: _Field("resourceAttributes", _RESOURCE, optional=True),
    2: _Field("nonResourceAttributes", _NON_RESOURCE, optional=True),
}
_ACCESS_STATUS: _Message = {
    1: _Field("allowed", bool),
    2: _Field("reason"),
    3: _Field("evaluationError"),
    4: _Field("denied", bool),
}
_RESOURCE_RULE: _Message = {
    number: _Field(name, repeated=True)
    for number, name in enumerate(("verbs", "apiGroups", "resources", "resourceNames"), 1)
}
_PATH_RULE: _Message = {1: _Field("verbs", repeated=True), 2: _Field("nonResourceURLs", repeated=True)}
_RULES_STATUS: _Message = {
    1: _Field("resourceRules", _RESOURCE_RULE, repeated=True),
    2: _Field("nonResourceRules", _PATH_RULE, repeated=True),
    3: _Field("incomplete", bool),
    4: _Field("evaluationError"),
}
_USER: _Message = {
    1: _Field("username"),
    2: _Field("uid"),
    3: _Field("groups", repeated=True),
    4: _Field("extra", lists_by_name=True),
}
_METADATA: _Message = {
    **{
        number: _Field(name)
        for number, name in enumerate(("name", "generateName", "namespace", "selfLink", "uid", "resourceVersion"), 1)
    },
    7: _Field("generation", int),
    8: _Field("creationTimestamp", datetime),
}
_CAUSE: _Message = {1: _Field("reason"), 2: _Field("message"), 3: _Field("field")}
_DETAILS: _Message = {
    1: _Field("name"),
    2: _Field("group"),
    3: _Field("kind"),
    4: _Field("causes", _CAUSE, repeated=True),
    5: _Field("retryAfterSeconds", int),
    6: _Field("uid"),
}
_LIST_METADATA: _Message = {1: _Field("selfLink"), 2: _Field("resourceVersion"), 3: _Field("continue")}
_TOKEN_SPEC: _Message = {1: _Field("token"), 2: _Field("audiences", repeated=True)}
_TOKEN_STATUS: _Message = {
    1: _Field("authenticated", bool),
    2: _Field("user", _USER),
    3: _Field("error"),
    4: _Field("audiences", repeated=True),
}
_MESSAGES: dict[str, _Message] = {
    "SelfSubjectAccessReview": {
        1: _Field("metadata", _METADATA),
        2: _Field("spec", _ACCESS_SPEC),
        3: _Field("status", _ACCESS_STATUS),
    },
    "SelfSubjectRulesReview": {
        1: _Field("metadata", _METADATA),
        2: _Field("spec", {1: _Field("namespace")}),
        3: _Field("status", _RULES_STATUS),
    },
    "SelfSubjectReview": {1: _Field("metadata", _METADATA), 2: _Field("status", {1: _Field("userInfo", _USER)})},
    "TokenReview": {
        1: _Field("metadata", _METADATA),
        2: _Field("spec", _TOKEN_SPEC),
        3: _Field("status", _TOKEN_STATUS),
    },
    "PartialObjectMetadata": {1: _Field("metadata", _METADATA)},
    "Status": {
        1: _Field("metadata", _LIST_METADATA),
        2: _Field("status"),
        3: _Field("message"),
        4: _Field("reason"),
        5: _Field("details", _DETAILS, optional=True),
        6: _Field("code", int),
    },
}
_TYPE: _Message = {1: _Field("apiVersion"), 2: _Field("kind")}


# Messages: reading.


def decode(data: bytes, kind: str) -> dict[str, Any]:
    """Decode the object in *data*, which is a *kind* unless it says otherwise; raises `ProtobufError`.

    Only metadata fields that are defined here are read.
    """
    if not data.startswith(_MAGIC):
        raise ProtobufError("it is not the protobuf encoding of Kubernetes")
    parts = {number: value for number, value in fields_of(data[len(_MAGIC) :]) if isinstance(value, bytes)}
    if parts.get(3):
        raise ProtobufError("its content is encoded once more")
    about = _decode(_TYPE, parts.get(1, b""))
    message = _MESSAGES.get(str(about.get("kind") or kind))
    # The caller rejects another kind, with its name.
    return {**about, **(_decode(message, parts.get(2, b"")) if message is not None else {})}


def _decode(message: _Message, data: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for number, raw in fields_of(data):
        description = message.get(number)
        if description is None or description.lists_by_name:
            continue
        value = _value(description, raw)
        if description.repeated:
            fields.setdefault(description.name, []).append(value)
        elif description.name in fields:
            # Encoders write a field once; readers differ in whether they merge, or take the last.
            raise ProtobufError("a field stands twice")
        elif value != "":
            fields[description.name] = value
    return fields


def _value(known: _Field, raw: bytes | int) -> Any:
    if isinstance(raw, int) != (known.message in (bool, int)):
        raise ProtobufError("a field has another type than it should")
    if isinstance(raw, int):
        return bool(raw) if known.message is bool else raw
    if known.message is None:
        return _text(raw)
    if isinstance(known.message, type):
        # A time set by the client is ignored.
        return ""
    return _decode(known.message, raw)


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ProtobufError("a text is not UTF-8") from None


# Messages: writing.


def encode(value: Mapping[str, Any]) -> bytes:
    """Encode an object of one of the kinds above, in the envelope that contains its type."""
    message = _MESSAGES[value["kind"]]
    about = _encode(_TYPE, value)
    content = _encode(message, value)
    # The encoding and the type of the content are empty.
    return _MAGIC + bytes_field(1, about) + bytes_field(2, content) + bytes_field(3, b"") + bytes_field(4, b"")


def _encode(message: _Message, value: Mapping[str, Any]) -> bytes:
    return b"".join(
        _encode_field(number, description, value.get(description.name)) for number, description in message.items()
    )


def _encode_field(number: int, known: _Field, value: Any) -> bytes:
    if known.lists_by_name:
        return b"".join(bytes_field(number, _named_list(name, texts)) for name, texts in (value or {}).items())
    if known.repeated:
        return b"".join(bytes_field(number, _encode_one(known, item)) for item in value or ())
    if known.optional and value is None:
        return b""
    if known.message in (bool, int):
        return number_field(number, int(value or 0))
    return bytes_field(number, _encode_one(known, value))


def _encode_one(known: _Field, value: Any) -> bytes:
    if known.message is None:
        return (value or "").encode("utf-8", "replace")
    if isinstance(known.message, type):
        return _time(value) if value else b""
    return _encode(known.message, value or {})


def _named_list(name: str, texts: Any) -> bytes:
    items = b"".join(bytes_field(1, text.encode("utf-8", "replace")) for text in texts)
    return bytes_field(1, name.encode("utf-8", "replace")) + bytes_field(2, items)


def _time(text: str) -> bytes:
    seconds = int(datetime.fromisoformat(text).timestamp())
    return number_field(1, seconds) + number_field(2, 0)


# Responses: JSON, YAML or protobuf, as kube-apiserver writes them.


def encode_as(value: dict[str, Any], wanted: Representation) -> tuple[str, bytes]:
    """Return the content type and the bytes."""
    if wanted.media_type == YAML:
        return YAML, as_yaml(value)
    if wanted.media_type == PROTOBUF:
        return PROTOBUF, encode(value)
    return "application/json", as_json(value, pretty=wanted.pretty)


def as_json(value: Any, *, pretty: bool = False) -> bytes:
    text = indented_go_json(value) if pretty else go_json(value) + "\n"
    return text.encode("utf-8", "replace")


class _GoYamlDumper(yaml.SafeDumper):
    """Writes YAML like Go: lists are not indented, keys are sorted, and quotes are double."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _string(dumper: _GoYamlDumper, text: str) -> yaml.ScalarNode:
    style = None if _is_plain(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


# Calling the dumper is slow, and a list of rules repeats the same few words a thousand times.
@lru_cache(maxsize=1024)
def _is_plain(text: str) -> bool:
    """Whether *text* needs no quotes.

    Groups of letters and digits are decided without the dumper, if a letter is first and the word has no other meaning
    in YAML.
    """
    if _WORDS.fullmatch(text) and text.lower() not in _NOT_WORDS:
        return True
    return yaml.safe_dump(text, default_flow_style=True, width=float("inf"), allow_unicode=True).startswith(text)


_WORDS = re.compile(r"[a-zA-Z][a-zA-Z0-9]*(?:[-./][a-zA-Z0-9]+)*")
_NOT_WORDS = frozenset(("y", "n", "yes", "no", "true", "false", "on", "off", "null"))


_GoYamlDumper.add_representer(str, _string)


def as_yaml(value: Any) -> bytes:
    # Converts tuples and the like to lists.
    plain = json.loads(json.dumps(value))
    text = yaml.dump(plain, Dumper=_GoYamlDumper, default_flow_style=False, width=float("inf"), allow_unicode=True)
    return text.encode("utf-8", "replace")
