"""The protobuf encoding of Kubernetes, for the reviews: what clients send, as plain values, and our answers to it.

Called by `ostiary.wire.self_reviews` and `ostiary.wire.codec.encodings`. Pure. kubectl 1.33 asks ``auth can-i`` and
``auth whoami`` in this encoding. Only the messages that reviews are made of are known here, by the numbers in the
published ``generated.proto`` files; unknown fields are skipped, as any reader of protobuf does.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from ostiary.wire.codec.protobuf_fields import ProtobufError, bytes_field, fields_of, number_field

_MAGIC = b"k8s\x00"


class _Field(NamedTuple):
    """`message` is None for text, and the types bool, int and datetime for numbers, flags and times.

    `optional`: left out where it is not given. Kubernetes writes all others, empty or not.
    """

    name: str
    message: _Message | type[Any] | None = None
    repeated: bool = False
    optional: bool = False
    # A map of text to lists of text: the only one in these messages besides those of the metadata.
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


# --- reading ---


def decode(data: bytes, kind: str) -> dict[str, Any]:
    """The object in *data*, which is a *kind* where it does not say so itself; raises `ProtobufError`.

    Of its metadata only what stands in a message here is read.
    """
    if not data.startswith(_MAGIC):
        raise ProtobufError("it is not the protobuf encoding of Kubernetes")
    parts = {number: value for number, value in fields_of(data[len(_MAGIC) :]) if isinstance(value, bytes)}
    if parts.get(3):
        raise ProtobufError("its content is encoded once more")
    about = _decode(_TYPE, parts.get(1, b""))
    message = _MESSAGES.get(str(about.get("kind") or kind))
    # What is of another kind is refused by whoever asked, with its name.
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
        # A time that a client made up means nothing here.
        return ""
    return _decode(known.message, raw)


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ProtobufError("a text is not UTF-8") from None


# --- writing ---


def encode(value: Mapping[str, Any]) -> bytes:
    """An object of one of the kinds above, in the envelope that says what it is."""
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
