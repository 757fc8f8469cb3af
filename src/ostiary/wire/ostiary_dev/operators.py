"""Requests to the gateway's own API group, ``ostiary.dev/v1``: JSON to model.

Called by the API (`ostiary.gateway.doors.admin_api`) and by the administration pages, which ask the same questions
with forms. Pure. Every function raises `ValueError` with a message that the sender may read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ostiary.core.tokens.token_format import digest_hex
from ostiary.interfaces.token_store import RevocationKind
from ostiary.model import RequestInfo

API_VERSION = "ostiary.dev/v1"
PREFIX = "/apis/ostiary.dev/v1"
NOW = "now"
# An origin is a digest that only the gateway makes, of what an identity system calls a sign-in.
_OPERATORS_KINDS = tuple(kind for kind in RevocationKind if kind is not RevocationKind.ORIGIN)


def decode_body(body: bytes) -> Any:
    """The JSON value of a body. NaN and Infinity are not JSON."""
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ValueError("the body is not valid JSON") from None


def _refuse_constant(constant: str) -> Any:
    raise ValueError(constant)


def decode_subject_search(value: Any) -> RequestInfo:
    """The request that a SubjectSearch is about: a verb, and a resource or a path."""
    fields = _object(value)
    text = {
        key: _text(fields, key)
        for key in ("verb", "group", "resource", "subresource", "namespace", "name", "path", "upstream")
    }
    if not text["verb"] or bool(text["resource"]) == bool(text["path"]):
        raise ValueError("a request needs a verb, and either a resource or a path")
    if text["path"]:
        return RequestInfo(text["verb"], "", text["path"], upstream=text["upstream"])
    return RequestInfo(
        text["verb"],
        "",
        "",
        is_resource=True,
        api_group=text["group"],
        namespace=text["namespace"],
        resource=text["resource"],
        subresource=text["subresource"],
        name=text["name"],
        upstream=text["upstream"],
    )


def decode_revocation(value: Any) -> tuple[RevocationKind, str, datetime | None]:
    """What a Revocation ends: its kind, the value that belongs to the kind, and a time for ``before``."""
    fields = _object(value)
    moment = _text(fields, "before")
    if fields.get("type") == RevocationKind.BEFORE.value and not moment:
        raise ValueError('before needs a time, or "now"')
    # No time for "now": the store's sequence number marks it, because the sender's clock may differ from ours.
    return *decode_revocation_subject(fields), _time(moment) if moment and moment != NOW else None


def decode_revocation_subject(fields: Mapping[str, Any]) -> tuple[RevocationKind, str]:
    """The kind of a revocation and its value; a token is named by its digest."""
    kind = next((each for each in _OPERATORS_KINDS if each.value == _text(fields, "type")), None)
    if kind is None:
        raise ValueError(f"the type must be one of {', '.join(each.value for each in _OPERATORS_KINDS)}")
    name = _text(fields, "value")
    if (kind is RevocationKind.BEFORE) == bool(name):
        raise ValueError("before has no value" if name else "a value is missing")
    return kind, digest_hex(name) if kind is RevocationKind.TOKEN else name


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("the time is not RFC 3339") from None
    if moment.tzinfo is None:
        raise ValueError("the time has no zone")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("the time is out of range") from None


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("the body is not a JSON object")
    return value


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key, "")
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a string")
    if any(character < " " or "\x7f" <= character < "\xa0" or "\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{key} contains a character that is not allowed in a name")
    return value
