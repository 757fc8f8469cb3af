"""``credentialprovider.kubelet.k8s.io``: the input and output of credential providers.

Three shipped versions, and the dialect of the first proposal. Pure. Errors never quote what a provider printed: the
part that cannot be decoded may be the password.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from ostiary.core.duration import DurationError, format_duration, parse_duration
from ostiary.core.go_text import decode_like_go, without_surrogates
from ostiary.errors import ConfigurationError
from ostiary.model import Secret
from ostiary.wire.go_json import go_json

GROUP = "credentialprovider.kubelet.k8s.io"
V1 = f"{GROUP}/v1"
V1ALPHA1 = f"{GROUP}/v1alpha1"
V1BETA1 = f"{GROUP}/v1beta1"
API_VERSIONS = (V1, V1ALPHA1, V1BETA1)
# The path of our credential server, followed by the repository.
CREDENTIALS_PATH = "/v1/credentials/"

REQUEST_KIND = "CredentialProviderRequest"
RESPONSE_KIND = "CredentialProviderResponse"

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)", re.ASCII)


class ProviderDialect(Enum):
    """The protocol of a provider: the one that shipped, or that of the first proposal."""

    KUBELET = "kubelet"
    PROPOSAL = "proposal"


class CacheKeyType(Enum):
    """The other images for which a response is valid."""

    IMAGE = "Image"
    REGISTRY = "Registry"
    GLOBAL = "Global"


@dataclass(frozen=True, slots=True)
class Request:
    """The input of a provider. `image` is a repository: without tag and digest."""

    image: str
    api_version: str = V1
    dialect: ProviderDialect = ProviderDialect.KUBELET
    service_account_token: Secret | None = None
    service_account_annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BasicAuth:
    username: str
    password: Secret


@dataclass(frozen=True, slots=True)
class Response:
    """The output of a provider. The keys of `auth` are patterns, in the order they were printed.

    Without a `cache_duration` the configuration's default applies.
    """

    cache_key_type: CacheKeyType
    cache_duration: timedelta | None = None
    auth: Mapping[str, BasicAuth] = field(default_factory=dict)

    def gives_back(self, token: Secret) -> bool:
        """Return whether a password in it is the service account's *token*, which only some caches may hold."""
        return any(basic.password == token for basic in self.auth.values())


class ResponseRefused(Exception):
    """The output of a provider cannot be used. `code` is one of ours; `rule` names the broken rule."""

    def __init__(self, cause: str, *, hint: str, rule: str, code: str = "credential-provider-answer-invalid") -> None:
        super().__init__(cause)
        self.cause, self.hint, self.rule, self.code = cause, hint, rule, code


# --- requests, written by the kubelet ---


def _line(value: Any) -> bytes:
    # Half of a surrogate pair cannot be encoded; Go would write a replacement too.
    return go_json(value).encode("utf-8", "replace") + b"\n"


def encode_request(request: Request) -> bytes:
    """Return one line of JSON, byte for byte as the kubelet writes it. Service accounts are included since v1."""
    fields: dict[str, Any] = {"image": request.image}
    if request.dialect is ProviderDialect.KUBELET:
        fields = {"kind": REQUEST_KIND, "apiVersion": request.api_version, **fields}
        if request.api_version == V1:
            fields |= _service_account_fields(request)
    return _line(fields)


def _service_account_fields(request: Request) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if request.service_account_token:
        fields["serviceAccountToken"] = request.service_account_token.reveal()
    if request.service_account_annotations:
        fields["serviceAccountAnnotations"] = dict(sorted(request.service_account_annotations.items()))
    return fields


# --- requests, read by the provider ---


def decode_request(stdin: bytes) -> Request:
    """Decode the kubelet's request; raises `ConfigurationError`. Fields of later versions are ignored."""
    fields, problem = _json_object(stdin)
    if fields is None:
        raise _unusable_request(f"what came on stdin {problem}")
    if fields.get("apiVersion") not in API_VERSIONS:
        raise _unusable_request("its apiVersion is not known", hint=f"use one of {', '.join(API_VERSIONS)}")
    if fields.get("kind") != REQUEST_KIND:
        raise _unusable_request(f"it is not of kind {REQUEST_KIND}")
    image, token = fields.get("image"), fields.get("serviceAccountToken")
    annotations = fields.get("serviceAccountAnnotations") or {}
    if not isinstance(image, str) or not image:
        raise _unusable_request("it names no image")
    if not isinstance(token, (str, type(None))) or not _is_text_map(annotations):
        raise _unusable_request("what it says of the service account has the wrong type")
    return Request(image, fields["apiVersion"], ProviderDialect.KUBELET, Secret(token) if token else None, annotations)


def _is_text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _unusable_request(cause: str, *, hint: str | None = None) -> ConfigurationError:
    return ConfigurationError(
        f"the {REQUEST_KIND} on stdin cannot be used",
        cause=cause,
        hint=hint or "the kubelet sends it; to try a provider by hand: ostiary registry check COMMAND",
        code="credential-provider-request-invalid",
    )


# --- responses, written by the provider ---


def encode_response(response: Response, *, api_version: str = V1) -> bytes:
    """Encode *response* as JSON, with a newline. It contains the passwords."""
    fields: dict[str, Any] = {
        "kind": RESPONSE_KIND,
        "apiVersion": api_version,
        "cacheKeyType": response.cache_key_type.value,
    }
    if response.cache_duration is not None:
        fields["cacheDuration"] = format_duration(response.cache_duration)
    auth = {
        key: {"username": basic.username, "password": basic.password.reveal()} for key, basic in response.auth.items()
    }
    return _line({**fields, "auth": auth} if auth else fields)


# --- responses, read by the kubelet ---


def decode_response(stdout: bytes, request: Request, *, now: datetime) -> Response:
    """Decode the output of a provider; raises `ResponseRefused`, which describes the error without quoting the output.

    *now* is used to convert the proposal's ``expirationTimestamp`` to a duration.
    """
    fields = _response_object(stdout)
    refused = next(_mistakes(fields, request), None)
    if refused is not None:
        raise refused
    return _proposed_response(fields, request, now) if _is_proposed(request) else _response(fields)


def refusals(stdout: bytes, request: Request) -> Iterator[ResponseRefused]:
    """Yield every rule that a response breaks; none if `decode_response` would accept it."""
    try:
        fields = _response_object(stdout)
    except ResponseRefused as refused:
        yield refused
        return
    yield from _mistakes(fields, request)


class _Object(dict[str, Any]):
    """A JSON object. Of a repeated key the last value counts, and `repeats` lists the key."""

    repeats = False


def _object_of_pairs(pairs: list[tuple[str, Any]]) -> _Object:
    fields = _Object((without_surrogates(name), _text_or(value)) for name, value in pairs)
    fields.repeats = len(fields) < len(pairs)
    return fields


def _text_or(value: Any) -> Any:
    return without_surrogates(value) if isinstance(value, str) else value


def _no_constant(_: str) -> Any:
    raise ValueError("NaN and Infinity are not JSON")


def _json_object(data: bytes) -> tuple[_Object | None, str]:
    """Return the one object in *data*, or why there is none, as the end of a sentence."""
    if not data.strip():
        return None, "is empty"
    try:
        document = json.loads(decode_like_go(data), object_pairs_hook=_object_of_pairs, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        extra = error.msg == "Extra data"
        where = f"(line {error.lineno}, column {error.colno})"
        return None, f"has text after the JSON object {where}" if extra else f"is not JSON {where}"
    except (ValueError, RecursionError):
        return None, "is not JSON"
    return (document, "") if isinstance(document, _Object) else (None, "is not one JSON object")


def _response_object(stdout: bytes) -> _Object:
    fields, problem = _json_object(stdout)
    if fields is None:
        raise ResponseRefused(
            f"what it printed on stdout {problem}",
            hint=f"print one {RESPONSE_KIND} as JSON on stdout, and messages on stderr",
            rule="one-object-on-stdout",
            code="credential-provider-answer-undecodable",
        )
    return fields


def _is_proposed(request: Request) -> bool:
    return request.dialect is ProviderDialect.PROPOSAL


def _mistakes(fields: _Object, request: Request) -> Iterator[ResponseRefused]:
    if _is_proposed(request):
        yield from _proposal_mistakes(fields)
        return
    yield from _version_mistakes(fields, request.api_version)
    yield from _strictness_mistakes(fields, _RESPONSE_FIELDS, "the answer")
    yield from _cache_mistakes(fields)
    yield from _auth_mistakes(fields.get("auth"))


_RESPONSE_FIELDS = ("kind", "apiVersion", "cacheKeyType", "cacheDuration", "auth")
_AUTH_FIELDS = ("username", "password")
_KEY_TYPES = tuple(kind.value for kind in CacheKeyType)


def _version_mistakes(fields: _Object, wanted: str) -> Iterator[ResponseRefused]:
    version = fields.get("apiVersion")
    if version != wanted:
        actual = version if version in API_VERSIONS else "another one" if version else "none"
        yield ResponseRefused(
            f"the apiVersion of its answer did not match expected apiVersion {wanted}, actual apiVersion {actual}",
            hint="answer in the apiVersion of the request, or change the provider's apiVersion in the configuration",
            rule="api-version",
            code="credential-provider-answer-version",
        )
    if fields.get("kind") != RESPONSE_KIND:
        yield ResponseRefused(
            f"its answer is not of kind {RESPONSE_KIND}",
            hint=f'answer with "kind": "{RESPONSE_KIND}"',
            rule="kind",
            code="credential-provider-answer-version",
        )


def _strictness_mistakes(fields: _Object, known: Iterable[str], where: str) -> Iterator[ResponseRefused]:
    if not fields.keys() <= set(known):
        # The name is not quoted: it comes from the same stdout as the password.
        hint = f"the fields are {', '.join(known)}, in exactly this spelling"
        yield ResponseRefused(f"there is an unknown field in {where}", hint=hint, rule="known-fields")
    if fields.repeats:
        yield ResponseRefused(f"a field stands twice in {where}", hint="print each field once", rule="fields-once")


def _cache_mistakes(fields: _Object) -> Iterator[ResponseRefused]:
    if fields.get("cacheKeyType") not in _KEY_TYPES:
        yield ResponseRefused(
            "its cacheKeyType is missing or not known, so the whole answer goes unused",
            hint=f"use one of {', '.join(_KEY_TYPES)}; ServiceAccount and Token are cacheTypes of the configuration",
            rule="cache-key-type",
        )
    duration = fields.get("cacheDuration")
    if duration is None:
        return
    if not isinstance(duration, str):
        hint = 'write it as text with its unit, as in "10m"; leave it out to use the configured default'
        yield ResponseRefused("cacheDuration is not a duration", hint=hint, rule="cache-duration")
        return
    try:
        parse_duration(duration)
    except DurationError as error:
        yield ResponseRefused(f"cacheDuration is not a duration: {error}", hint=error.hint, rule="cache-duration")


def _auth_mistakes(auth: Any) -> Iterator[ResponseRefused]:
    if auth is None:
        return
    hint = 'write "auth": {"registry.example.com": {"username": "...", "password": "..."}}'
    if not isinstance(auth, _Object):
        yield ResponseRefused("auth is not an object", hint=hint, rule="auth-shape")
        return
    if auth.repeats:
        yield ResponseRefused("a key stands twice in auth", hint="print each key once", rule="fields-once")
    for entry in auth.values():
        if isinstance(entry, _Object):
            yield from _strictness_mistakes(entry, _AUTH_FIELDS, "an entry of auth")
            yield from _text_mistakes(entry, _AUTH_FIELDS)
        elif entry is not None:
            yield ResponseRefused("an entry of auth is not an object", hint=hint, rule="auth-shape")


def _text_mistakes(fields: _Object, names: Iterable[str]) -> Iterator[ResponseRefused]:
    for name in names:
        value = fields.get(name)
        if not isinstance(value, (str, type(None))):
            yield ResponseRefused(f"{name} is not a string", hint=f"put {name} in quotes", rule="field-types")


def _response(fields: _Object) -> Response:
    duration = fields.get("cacheDuration")
    return Response(
        CacheKeyType(fields["cacheKeyType"]),
        None if duration is None else parse_duration(duration),
        {key: _basic_auth(entry or {}) for key, entry in (fields.get("auth") or {}).items()},
    )


def _basic_auth(fields: Mapping[str, Any]) -> BasicAuth:
    return BasicAuth(fields.get("username") or "", Secret(fields.get("password") or ""))


# --- the proposal's dialect: one username and password, and their expiry ---


def _proposal_mistakes(fields: _Object) -> Iterator[ResponseRefused]:
    if "auth" in fields:
        yield ResponseRefused(
            "it answered in the shipped protocol, and the configuration asks for that of the proposal",
            hint="turn the configuration into CredentialProviderConfig: ostiary registry migrate",
            rule="api-version",
            code="credential-provider-answer-version",
        )
    if fields.repeats:
        yield ResponseRefused("a field stands twice in the answer", hint="print each field once", rule="fields-once")
    yield from _text_mistakes(fields, _AUTH_FIELDS)
    value = fields.get("expirationTimestamp")
    if value is not None and _moment(value) is None:
        yield ResponseRefused(
            "expirationTimestamp is not a time of RFC 3339 with its zone",
            hint="write it like 2030-01-31T12:00:00Z; leave it out if the credential is not to be kept",
            rule="expiration-timestamp",
        )


def _proposed_response(fields: _Object, request: Request, now: datetime) -> Response:
    expires_at = _moment(fields.get("expirationTimestamp"))
    remaining = timedelta(0) if expires_at is None else max(timedelta(0), expires_at - now)
    basic = _basic_auth(fields)
    auth = {_auth_key(request.image): basic} if basic.username or basic.password else {}
    return Response(CacheKeyType.IMAGE, remaining, auth)


def _auth_key(image: str) -> str:
    registry, _, path = image.partition("/")
    # At the start of a key's path, v1/ and v2/ count as the registry's API version and are dropped, so such an image
    # would not match its own name.
    return registry if path.startswith(("v1/", "v2/")) else image


def _moment(value: Any) -> datetime | None:
    if not isinstance(value, str) or not _RFC3339.fullmatch(value):
        return None
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        return None
