"""The registry door decides as the kubelet does, line by line of what the kubelet itself decided."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

from ostiary.core.duration import format_duration, parse_duration
from ostiary.core.go_text import bytes_of
from ostiary.errors import ConfigurationError, ImageNameError
from ostiary.model import Secret
from ostiary.registry.credentials import Credentials, Provenance, RegistryLogin, SourceKind, unite
from ostiary.registry.docker_config import parse_config_json, parse_dockercfg
from ostiary.registry.image_matching import Reason, why_not
from ostiary.registry.image_name import parse_image_name
from ostiary.registry.kubelet.config import loads
from ostiary.registry.kubelet.model import ProviderConfig, TokenAttributes
from ostiary.wire.credential_provider import GROUP, Request, ResponseRefused, decode_response
from tests.support.vectors import Vector, replay, source_of

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def compared(actual: Any, expected: Any) -> str | None:
    return None if actual == expected else f"{actual!r}, expected {expected!r}"


def as_text(value: str) -> Any:
    """A string as the vectors write it: base64 where it is not UTF-8."""
    data = bytes_of(value)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


# --- images ---


def match_difference(vector: Vector) -> str | None:
    mismatch = why_not(vector["pattern"], vector["image"])
    is_error = mismatch is not None and mismatch.reason in (Reason.PATTERN_UNPARSABLE, Reason.IMAGE_UNPARSABLE)
    actual, expected = (mismatch is None, is_error), (vector["match"], "error" in vector)
    return None if actual == expected else f"{vector['pattern']!r}, {vector['image']!r}: {actual}, not {expected}"


def test_every_pattern_matches_what_it_matches_for_the_kubelet() -> None:
    """I12, I13, I14, I15, I16, I29."""
    replay("image-match", match_difference)


def name_difference(vector: Vector) -> str | None:
    try:
        name = parse_image_name(vector["image"])
    except ImageNameError as error:
        return None if "error" in vector else f"{vector['image']!r} is refused: {error}"
    if "error" in vector:
        return f"{vector['image']!r} is taken"
    expected = tuple(vector.get(field, "") for field in ("repo", "tag", "digest"))
    return compared((name.repository, name.tag or "", name.digest or ""), expected)


def test_every_image_name_is_taken_apart_as_by_the_kubelet() -> None:
    replay("image-name", name_difference)


# --- providers ---


def as_vector(provider: ProviderConfig) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": provider.name,
        "matchImages": list(provider.match_images),
        "defaultCacheDuration": format_duration(provider.default_cache_duration),
        "apiVersion": provider.api_version,
        "args": list(provider.args),
        "env": [{"name": name, "value": value} for name, value in provider.env],
        "tokenAttributes": provider.token_attributes and attributes_as_vector(provider.token_attributes),
    }
    return dict(without_empty(fields))


def attributes_as_vector(attributes: TokenAttributes) -> dict[str, Any]:
    return {
        "serviceAccountTokenAudience": attributes.audience,
        "cacheType": attributes.cache_type,
        "requireServiceAccount": attributes.require_service_account,
        "requiredServiceAccountAnnotationKeys": list(attributes.required_annotation_keys),
        "optionalServiceAccountAnnotationKeys": list(attributes.optional_annotation_keys),
    }


def without_empty(value: Any) -> Any:
    """Without empty and false fields, at any depth: the vectors leave them out."""
    if isinstance(value, dict):
        return {key: inner for key, item in value.items() if (inner := without_empty(item)) or inner == {}}
    return [without_empty(item) for item in value] if isinstance(value, list) else value


def config_difference(vector: Vector) -> str | None:
    gate = vector.get("service_account_tokens", True)
    try:
        config = loads(source_of(vector), service_account_tokens=gate)
    except ConfigurationError as error:
        return f"refused: {error}\n{vector['text']}" if vector["accepted"] else None
    if not vector["accepted"]:
        return f"taken: {source_of(vector)!r} {vector['errors']}"
    expected = without_empty(vector["providers"])
    return compared([as_vector(provider) for provider in config.providers], expected)


def test_every_provider_config_is_read_or_refused_as_by_the_kubelet() -> None:
    replay("provider-config", config_difference)


def response_difference(vector: Vector) -> str | None:
    request = Request("registry.example.com/app", f"{GROUP}/{vector['requested_api_version']}")
    try:
        response = decode_response(source_of(vector), request, now=NOW)
    except ResponseRefused as refused:
        return f"refused: {refused}\n{source_of(vector)!r}" if vector["accepted"] else None
    if not vector["accepted"]:
        return f"taken: {source_of(vector)!r} {vector['error']}"
    nanoseconds = vector.get("cacheDuration_ns")
    duration = None if nanoseconds is None else parse_duration(f"{nanoseconds}ns")
    expected = (vector.get("cacheKeyType"), duration, vector.get("auth") or {})
    auth = {
        key: {"username": as_text(basic.username), "password": as_text(basic.password.reveal())}
        for key, basic in response.auth.items()
    }
    actual = (response.cache_key_type.value, response.cache_duration, auth)
    return compared(actual, expected)


def test_every_answer_of_a_provider_is_taken_or_refused_as_by_the_kubelet() -> None:
    replay("provider-response", response_difference)


# --- docker configurations ---


def docker_difference(vector: Vector) -> str | None:
    parse = parse_config_json if vector["kind"] == "config.json" else parse_dockercfg
    source = source_of(vector)
    try:
        config = parse(source)
    except ConfigurationError as error:
        return None if "error" in vector else f"refused: {error}\n{source!r}"
    if "error" in vector:
        return f"taken: {source!r}"
    expected = {
        key: {name: entry[name] for name in ("username", "password", "email") if entry.get(name)}
        for key, entry in (vector.get("entries") or {}).items()
    }
    actual = {
        key: without_empty(
            {
                "username": as_text(login.username),
                "password": as_text(login.password.reveal()),
                "email": as_text(login.email),
            }
        )
        for key, login in config.logins.items()
    }
    return compared(actual, expected)


def test_every_docker_config_has_the_logins_that_the_kubelet_reads() -> None:
    replay("docker-config", docker_difference)


def login_of(entry: dict[str, str]) -> tuple[str, RegistryLogin]:
    return entry["key"], RegistryLogin(
        entry.get("username", ""), Secret(entry.get("password", "")), entry.get("email", "")
    )


def keyring_difference(vector: Vector) -> str | None:
    source = Provenance(SourceKind.FILE, "config.json")
    blocks = [Credentials([login_of(entry) for entry in entries], source) for entries in vector["maps"]]
    actual = [
        without_empty({"username": one.username, "password": one.password.reveal(), "email": one.email})
        for one in unite(blocks, vector["image"])
    ]
    expected = [without_empty(entry) for entry in vector.get("credentials") or []]
    return compared(actual, expected) and f"{vector['image']!r}, {vector['maps']}: {actual}, not {expected}"


def test_every_image_gets_the_credentials_that_the_kubelet_tries_in_its_order() -> None:
    """I24."""
    replay("keyring", keyring_difference)
