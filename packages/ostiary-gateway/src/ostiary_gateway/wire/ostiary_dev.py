"""Requests to the gateway's own API group, ``ostiary.dev/v1``: decode and validate them. Pure.

Every decoder raises `ValueError` with a message that may be shown to the client. An unknown field is an error: what the
client requested must not be ignored silently.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ostiary.model import RequestInfo
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.wire.token_format import digest_hex

# Revocations and subject searches, of the API and of the forms of the administration pages.

API_VERSION = "ostiary.dev/v1"
PREFIX = "/apis/ostiary.dev/v1"
NOW = "now"
# Without ORIGIN: an origin is a digest that only the gateway can compute.
_OPERATORS_KINDS = tuple(kind for kind in RevocationKind if kind is not RevocationKind.ORIGIN)


def decode_body(body: bytes) -> Any:
    """Return the JSON value of a body. NaN and Infinity are not JSON."""
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ValueError("the body is not valid JSON") from None


def _refuse_constant(constant: str) -> Any:
    raise ValueError(constant)


def decode_subject_search(value: Any) -> RequestInfo:
    """Return the request that a SubjectSearch is about: a verb, and a resource or a path."""
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
    """Return the kind of a revocation, its value, and a time for ``before``."""
    fields = _object(value)
    moment = _text(fields, "before")
    if fields.get("type") == RevocationKind.BEFORE.value and not moment:
        raise ValueError('before needs a time, or "now"')
    # No time for "now": the store's sequence number replaces it, because the client's clock may differ.
    return *decode_revocation_subject(fields), _time(moment) if moment and moment != NOW else None


def decode_revocation_subject(fields: Mapping[str, Any]) -> tuple[RevocationKind, str]:
    """Return the kind of a revocation and its value; a token is identified by its digest."""
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


# Fields of a body.


def check_kind(fields: Mapping[str, Any], *kinds: str) -> None:
    if fields.get("kind", kinds[0]) not in kinds:
        raise ValueError(f"the kind must be {' or '.join(kinds)}")


def object_fields(value: object, what: str, known: Sequence[str]) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not a JSON object")
    unknown = sorted(set(value) - set(known))
    if unknown:
        raise ValueError(f"{what} has an unknown field; known are {', '.join(known)}")
    return value


def text_field(fields: Mapping[str, Any], key: str, what: str, longest: int) -> str | None:
    value = fields.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{what} is not a string")
    if len(value) > longest:
        raise ValueError(f"{what} is longer than {longest} characters")
    if not value.isprintable():
        raise ValueError(f"{what} contains a character that cannot be shown")
    return value


LONGEST_SECONDS = 100 * 366 * 24 * 3600
LONGEST_DESCRIPTION = 500
LONGEST_TOKEN_NAME = 100


@dataclass(frozen=True, slots=True)
class AccountRequest:
    """The fields of an account in a body; None if absent."""

    name: str | None = None
    namespace: str | None = None
    description: str | None = None
    disabled: bool | None = None


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A token request. `name` requests a named API token, `scope` a scoped token."""

    lifetime: timedelta | None = None
    scope: str = ""
    name: str = ""


def decode_account_request(value: Any) -> AccountRequest:
    fields = object_fields(value, "the body", ("kind", "apiVersion", "metadata", "spec"))
    check_kind(fields, "ServiceAccount")
    metadata = object_fields(fields.get("metadata", {}), "metadata", ("name", "namespace"))
    spec = object_fields(fields.get("spec", {}), "spec", ("description", "disabled"))
    disabled = spec.get("disabled")
    if disabled is not None and not isinstance(disabled, bool):
        raise ValueError("spec.disabled is not true or false")
    description = text_field(spec, "description", "spec.description", LONGEST_DESCRIPTION)
    return AccountRequest(
        text_field(metadata, "name", "metadata.name", 253),
        text_field(metadata, "namespace", "metadata.namespace", 63),
        description,
        disabled,
    )


def decode_token_request(value: Any) -> TokenRequest:
    """Decode a ``TokenRequest`` as in Kubernetes, without audiences: these tokens are for this gateway."""
    fields = object_fields(value, "the body", ("kind", "apiVersion", "metadata", "spec", "status"))
    check_kind(fields, "TokenRequest", "APIToken")
    spec = object_fields(fields.get("spec", {}), "spec", ("expirationSeconds", "scope", "name"))
    return TokenRequest(
        _lifetime(spec.get("expirationSeconds")),
        text_field(spec, "scope", "spec.scope", 8192) or "",
        text_field(spec, "name", "spec.name", LONGEST_TOKEN_NAME) or "",
    )


def _lifetime(seconds: object) -> timedelta | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 1 <= seconds <= LONGEST_SECONDS:
        raise ValueError("spec.expirationSeconds is not a number of seconds")
    return timedelta(seconds=seconds)


# Encoding.


def time_text(moment: datetime) -> str:
    """Return a time as Kubernetes writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def list_json(kind: str, items: Sequence[Mapping[str, object]], *, after: str = "") -> dict[str, object]:
    metadata = {"continue": after} if after else {}
    return {"kind": kind, "apiVersion": API_VERSION, "metadata": metadata, "items": list(items)}


# API plugins. The registration validates the values.

API_PLUGIN_KIND = "APIPlugin"
LONGEST_CA = 32 * 1024
MOST_ENTRIES = 16
_SPEC = ("upstream", "group", "versions", "server", "ca", "pins", "serverName", "health")


@dataclass(frozen=True, slots=True)
class PluginRequest:
    """A plugin in a body. `name` is empty if absent: it is derived from upstream and group."""

    name: str
    upstream: str
    group: str
    versions: tuple[str, ...]
    server: str
    ca: str = ""
    pins: tuple[str, ...] = ()
    server_name: str = ""
    health: str = ""


def decode_plugin_request(value: Any) -> PluginRequest:
    fields = object_fields(value, "the body", ("kind", "apiVersion", "metadata", "spec"))
    check_kind(fields, API_PLUGIN_KIND)
    metadata = object_fields(fields.get("metadata", {}), "metadata", ("name",))
    spec = object_fields(fields.get("spec", {}), "spec", _SPEC)
    texts = {key: text_field(spec, key, f"spec.{key}", 1024) or "" for key in ("upstream", "group", "server")}
    for key, text in texts.items():
        if not text:
            raise ValueError(f"spec.{key} is missing")
    return PluginRequest(
        text_field(metadata, "name", "metadata.name", 512) or "",
        **texts,
        versions=_texts(spec, "versions"),
        ca=_pem(spec),
        pins=_texts(spec, "pins"),
        server_name=text_field(spec, "serverName", "spec.serverName", 253) or "",
        health=text_field(spec, "health", "spec.health", 1024) or "",
    )


def _pem(spec: Mapping[str, Any]) -> str:
    text = spec.get("ca") or ""
    if not isinstance(text, str) or len(text) > LONGEST_CA or not text.isascii():
        raise ValueError(f"spec.ca is not PEM of {LONGEST_CA} characters at most")
    return text


def _texts(spec: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = spec.get(key) or []
    if not isinstance(values, list) or len(values) > MOST_ENTRIES or not all(isinstance(each, str) for each in values):
        raise ValueError(f"spec.{key} is not a list of {MOST_ENTRIES} strings at most")
    return tuple(values)
