"""Parses one document of a ``CredentialProviderConfig``, or of the proposal's ``RegistryCredentialConfig``.

Every rule is the kubelet's. Unlike the kubelet, it reports every error with its position.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta

from ostiary.core.duration import DurationError, format_duration, parse_duration
from ostiary.core.redaction import redact
from ostiary.core.text import printable
from ostiary.core.yaml import ConfigReader, ConfigSection, Document
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem
from ostiary.registry.image_name import UnparsableAddress, parse_address
from ostiary.registry.kubelet.model import ProviderConfig, TokenAttributes
from ostiary.wire.credential_provider import API_VERSIONS, V1, V1ALPHA1, ProviderDialect

KIND = "CredentialProviderConfig"
GROUP = "kubelet.config.k8s.io"
CONFIG_V1 = f"{GROUP}/v1"
CONFIG_API_VERSIONS = (CONFIG_V1, f"{GROUP}/v1alpha1", f"{GROUP}/v1beta1")
# The proposal's type has the first name, the proposal's example the second.
PROPOSAL_KINDS = ("RegistryCredentialConfig", "credentialprovider")
PROPOSAL_API_VERSIONS = ("v1alpha1", f"{GROUP}/v1alpha1")
# The only argument that the proposal passes to every provider.
PROPOSAL_ARGUMENT = "get-credentials"

CACHE_TYPES = ("ServiceAccount", "Token")
GATE = "KubeletServiceAccountTokenForCredentialProviders"


def read_providers(document: Document, *, service_account_tokens: bool) -> tuple[list[ProviderConfig], list[Problem]]:
    reading = ConfigReader(document)
    kind, version = reading.root.string("kind"), reading.root.string("apiVersion")
    if kind == KIND and version in CONFIG_API_VERSIONS:
        reader = _ProviderReader(reading, has_token_attributes=version == CONFIG_V1, token_gate=service_account_tokens)
        providers = [reader.provider(index, item) for index, item in enumerate(reading.root.sections("providers"))]
    elif kind in PROPOSAL_KINDS and version in PROPOSAL_API_VERSIONS:
        reader = _ProviderReader(reading)
        sections = reading.root.sections("providers")
        providers = [reader.proposed_provider(index, item) for index, item in enumerate(sections)]
    else:
        return [], [*reading.problems, _unknown_kind(reading.root, kind, version)]
    return providers, _problems(reading)


def _unknown_kind(fields: ConfigSection, kind: str, version: str) -> Problem:
    hint = f"write apiVersion: {CONFIG_V1} and kind: {KIND}"
    for name, value in (("apiVersion", version), ("kind", kind)):
        if not value:
            return Problem(f"there is no {name}", fields.place(name), hint)
    is_known_kind = kind == KIND or kind in PROPOSAL_KINDS
    message = f'no kind "{printable(kind)}" is registered for version "{printable(version)}"'
    return Problem(message, fields.place("apiVersion" if is_known_kind else "kind"), hint)


_FIELD_HINTS = {
    "tokenAttributes": f"tokenAttributes exists only in apiVersion {CONFIG_V1}",
    "imageMatchers": "this kind calls it matchImages",
    "extraArgs": "this kind calls it env, a list of name and value",
    "matchImages": "this kind calls it imageMatchers",
    "env": "this kind calls it extraArgs",
}


def _problems(reading: ConfigReader) -> list[Problem]:
    """Return the errors of a document, including unknown and repeated fields: the kubelet is strict since 1.32."""
    try:
        reading.finish("", strict=True)
    except ConfigurationError as error:
        unknown, loose = reading.unknown_fields(), len(reading.problems)
        strict = [_strict_problem(problem, unknown) for problem in error.problems[loose:]]
        return sorted([*reading.problems, *strict], key=lambda problem: problem.place.line or 0)
    return []


def _strict_problem(problem: Problem, unknown: Iterable[Place]) -> Problem:
    hint = "keep one of the two"
    if problem.place in unknown:
        name = problem.place.path.rpartition(".")[2]
        hint = _FIELD_HINTS.get(name) or problem.hint or "the kubelet does not know this field: remove it"
    return replace(problem, message=f"strict decoding error: {problem.message}", hint=hint)


class _ProviderReader:
    """Reads the providers of one document, and validates each value at its position."""

    def __init__(self, reading: ConfigReader, *, has_token_attributes: bool = False, token_gate: bool = False) -> None:
        self._reading = reading
        self._has_token_attributes, self._token_gate = has_token_attributes, token_gate

    def provider(self, index: int, fields: ConfigSection) -> ProviderConfig:
        api_version = fields.string("apiVersion")
        self._check_api_version(fields, api_version)
        return ProviderConfig(
            name=self._name(fields),
            match_images=self._patterns(index, fields, "matchImages"),
            default_cache_duration=_duration(fields, "defaultCacheDuration"),
            api_version=api_version,
            args=fields.strings("args"),
            env=_env(fields.sections("env")),
            token_attributes=self._token_attributes(index, fields, api_version),
            place=fields.place(),
        )

    def proposed_provider(self, index: int, fields: ConfigSection) -> ProviderConfig:
        # The proposal gives every provider an unused kind and apiVersion.
        fields.ignore("kind", "apiVersion")
        return ProviderConfig(
            name=self._name(fields),
            match_images=self._patterns(index, fields, "imageMatchers"),
            api_version=V1ALPHA1,
            args=(PROPOSAL_ARGUMENT,),
            env=_extra_args(fields),
            place=fields.place(),
            dialect=ProviderDialect.PROPOSAL,
        )

    def _name(self, fields: ConfigSection) -> str:
        name = fields.string("name")
        hint = "it is the file name of an executable in the directory of the providers"
        if "/" in name:
            fields.problem("provider name cannot contain '/'", "name", hint)
        if " " in name:
            fields.problem("provider name cannot contain spaces", "name", hint)
        if name in (".", ".."):
            fields.problem(f"provider name cannot be '{name}'", "name", hint)
        return name

    def _check_api_version(self, fields: ConfigSection, api_version: str) -> None:
        hint = f"use one of {', '.join(API_VERSIONS)}"
        if not api_version:
            fields.problem("apiVersion is required for every provider", "apiVersion", hint)
        elif api_version not in API_VERSIONS:
            fields.problem(f'unsupported value: apiVersion "{printable(api_version)}"', "apiVersion", hint)

    def _patterns(self, index: int, fields: ConfigSection, key: str) -> tuple[str, ...]:
        patterns = fields.strings(key)
        if not patterns:
            hint = 'for example: ["*.registry.example.com"]'
            fields.problem(f"at least 1 item in {key} is required", key, hint)
        for number, pattern in enumerate(patterns):
            try:
                parse_address(pattern)
            except UnparsableAddress as error:
                message = f"match image is invalid: {_why_unparsable(pattern, error)}"
                hint = "a pattern is a host, with * in it, then maybe a port in digits and the beginning of a path"
                self._reading.add(message, self._place(index, key, number), hint)
        return patterns

    def _token_attributes(self, index: int, fields: ConfigSection, api_version: str) -> TokenAttributes | None:
        if not self._has_token_attributes:
            return None
        section = fields.optional_section("tokenAttributes")
        if section is None:
            return None
        if not self._token_gate:
            message = f"tokenAttributes is not supported when the feature gate {GATE} is disabled"
            fields.problem(message, "tokenAttributes")
        if api_version != V1:
            message = f"tokenAttributes is only supported for {V1} API version"
            fields.problem(message, "tokenAttributes", f"set the provider's apiVersion to {V1}")
        return self._attributes(index, section)

    def _attributes(self, index: int, fields: ConfigSection) -> TokenAttributes:
        required_key, optional_key = "requiredServiceAccountAnnotationKeys", "optionalServiceAccountAnnotationKeys"
        required = self._annotation_keys(index, fields, required_key)
        optional = self._annotation_keys(index, fields, optional_key)
        if both := sorted(set(required) & set(optional)):
            keys = ", ".join(f'"{printable(key)}"' for key in both)
            message = f"annotation keys cannot be both required and optional: {keys}"
            fields.problem(message, hint="keep each in one list")
        require = fields.optional_boolean("requireServiceAccount")
        if require is None:
            hint = "true: only pods with a service account are served; false: the others too, without a token"
            fields.problem("requireServiceAccount is required", "requireServiceAccount", hint)
        elif not require and required:
            message = f"requireServiceAccount cannot be false when {required_key} is set"
            fields.problem(message, required_key, "set requireServiceAccount to true")
        return TokenAttributes(_audience(fields), _cache_type(fields), bool(require), required, optional)

    def _annotation_keys(self, index: int, fields: ConfigSection, name: str) -> tuple[str, ...]:
        keys = fields.strings(name)
        for number, key in enumerate(keys):
            place = self._place(index, "tokenAttributes", name, number)
            # Annotation keys may have capitals, although qualified names may not.
            for mistake in _qualified_name_mistakes(key.lower()):
                self._reading.add(f'"{printable(key)}" is not an annotation key: {mistake}', place)
            if key in keys[:number]:
                self._reading.add(f'"{printable(key)}" is a duplicate entry in this list', place, "remove one of them")
        return keys

    def _place(self, index: int, *steps: str | int) -> Place:
        return self._reading.document.place("providers", index, *steps)


def _audience(fields: ConfigSection) -> str:
    audience = fields.string("serviceAccountTokenAudience")
    if not audience:
        hint = "the audience of the token, as the registry expects it"
        fields.problem("serviceAccountTokenAudience is required", "serviceAccountTokenAudience", hint)
    return audience


def _cache_type(fields: ConfigSection) -> str:
    cache_type = fields.string("cacheType")
    hint = f"supported values are {', '.join(CACHE_TYPES)}"
    if not cache_type:
        fields.problem("cacheType is required to be set when tokenAttributes is specified", "cacheType", hint)
    elif cache_type not in CACHE_TYPES:
        fields.problem(f'unsupported value: cacheType "{printable(cache_type)}"', "cacheType", hint)
    return cache_type


def _duration(fields: ConfigSection, key: str) -> timedelta:
    value = fields.plain(key)
    if value is None:
        fields.problem(f"{key} is required", key, 'for example "10m"; "0s" caches nothing')
    elif not isinstance(value, str):
        hint = 'a duration is text with a unit, as in "10m" or "300s"; "0s" is none'
        fields.problem("expected a duration such as 10m, found something else", key, hint)
    else:
        try:
            duration = parse_duration(value)
        except DurationError as error:
            fields.problem(f'"{printable(value)}": {error}', key, error.hint)
            return timedelta(0)
        if duration < timedelta(0):
            message = f'"{format_duration(duration)}": {key} must be greater than or equal to 0'
            fields.problem(message, key, '"0s" caches nothing')
        return duration
    return timedelta(0)


def _env(sections: Iterable[ConfigSection]) -> tuple[tuple[str, str], ...]:
    return tuple((section.string("name"), section.string("value")) for section in sections)


def _extra_args(fields: ConfigSection) -> tuple[tuple[str, str], ...]:
    """Read extra arguments.

    The proposal's type has a list of names and values, its example a map whose names become upper case.
    """
    if not isinstance(fields.plain("extraArgs"), dict):
        return _env(fields.sections("extraArgs"))
    section = fields.section("extraArgs")
    return tuple((name.upper(), section.string(name)) for name in section)


# --- annotation keys ---

_NAME_PART = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_LONGEST_NAME, _LONGEST_SUBDOMAIN = 63, 253


def _qualified_name_mistakes(key: str) -> Iterator[str]:
    prefix, slash, name = key.rpartition("/")
    if slash and not prefix:
        yield "the part before its / must not be empty"
    elif "/" in prefix:
        yield "it has more than one /"
        return
    elif slash and (len(prefix) > _LONGEST_SUBDOMAIN or not _SUBDOMAIN.fullmatch(prefix)):
        yield "the part before its / must be a DNS subdomain, such as example.com"
    if not name:
        yield "its name must not be empty"
    elif len(name.encode()) > _LONGEST_NAME:
        yield f"its name must be no more than {_LONGEST_NAME} bytes"
    elif not _NAME_PART.fullmatch(name):
        yield (
            "its name must consist of alphanumeric characters, '-', '_' or '.', "
            "and must start and end with an alphanumeric character"
        )


def _why_unparsable(pattern: str, error: UnparsableAddress) -> str:
    """Return Go's error for *pattern*, without the text before an @: a pasted URL may hold a password there."""
    _, at, after_at = pattern.rpartition("@")
    reason = str(error)
    quoted = reason.partition('"')[2].rpartition('"')[0]
    if at and quoted not in after_at:
        # The quoted part is in the text that is not shown.
        reason = "what stands before the @ cannot be read"
    return f'parse "{redact(f"https://***@{after_at}" if at else f"https://{pattern}")}": {reason}'
