"""Makes a whole image credential provider, as the kubelet runs them, of one function.

stdin -> ImageRequest -> the function -> ImageCredentials -> Response -> judge our own answer -> print it, at once

A provider that is switched off (`ostiary.core.provider_switches`) has no credentials, and its function is not called.

What may be kept for which other images follows from what the credential is for, so that the one mistake that
hides for hours cannot be made: an answer kept for a whole registry whose key is for a part of it.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from typing import TypeAlias

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.provider_switches import PROVIDERS_VARIABLE, Switches
from ostiary.core.text import printable
from ostiary.errors import AnswerInvalid
from ostiary.model import Secret
from ostiary.sdk.program import PluginProgram, await_result
from ostiary.wire.credential_provider import (
    V1,
    BasicAuth,
    CacheKeyType,
    ProviderDialect,
    Request,
    Response,
    ResponseRefused,
    decode_request,
    decode_response,
    encode_response,
)
from ostiary.wire.go_json import go_json

HELP = """\
usage: {name} [ARGUMENT...] < REQUEST

{about}

An image credential provider: it reads a CredentialProviderRequest as JSON on stdin and prints a
CredentialProviderResponse. The kubelet runs it. To try it by hand:

  ostiary registry check --image IMAGE {name}
"""
LARGEST_REQUEST = 1 << 20
NOT_KEPT = timedelta(0)
_API_VERSIONS = ("v1/", "v2/")


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """What the kubelet asks. `image` is a repository, such as ``registry.example.com:5000/team/app``.

    `service_account_token` and `annotations` are there if the configuration has ``tokenAttributes``.
    """

    image: str
    service_account_token: Secret | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    api_version: str = V1

    @property
    def registry(self) -> str:
        """The host of the image, with its port if it has one."""
        return self.image.partition("/")[0]


@dataclass(frozen=True, slots=True)
class ImageCredentials:
    """A username and password, what they are for, and how long the kubelet may keep them.

    Made by `for_registry`, `for_image`, `for_key` or `none`. *cache* is how long; without it, the provider's
    ``defaultCacheDuration`` counts. `key` is empty where it follows from the request.
    """

    auth: BasicAuth | None
    cache_key_type: CacheKeyType
    cache: timedelta | None = None
    key: str = ""

    def __post_init__(self) -> None:
        if self.cache is not None and self.cache < NOT_KEPT:
            raise ValueError("cache is negative: the credential has expired already")
        if self.auth is not None:
            _check_scope(self.key, self.cache_key_type)

    @classmethod
    def for_registry(cls, username: str, password: str | Secret, *, cache: timedelta | None = None) -> ImageCredentials:
        """They hold for every image of the registry that the request names."""
        return cls(_basic_auth(username, password), CacheKeyType.REGISTRY, cache)

    @classmethod
    def for_image(cls, username: str, password: str | Secret, *, cache: timedelta | None = None) -> ImageCredentials:
        """They hold for the repository of the request, and nothing is said of others."""
        return cls(_basic_auth(username, password), CacheKeyType.IMAGE, cache)

    @classmethod
    def for_key(
        cls,
        pattern: str,
        username: str,
        password: str | Secret,
        *,
        cache: timedelta | None = None,
        cache_key_type: CacheKeyType | None = None,
    ) -> ImageCredentials:
        """They hold for the images that *pattern* matches, as in ``matchImages``.

        Kept for the registry if the pattern is only a host, and for the image if it has a path.
        """
        key_type = cache_key_type or (CacheKeyType.IMAGE if _path_of(pattern) else CacheKeyType.REGISTRY)
        return cls(_basic_auth(username, password), key_type, cache, pattern)

    @classmethod
    def none(
        cls, *, cache: timedelta | None = NOT_KEPT, cache_key_type: CacheKeyType = CacheKeyType.IMAGE
    ) -> ImageCredentials:
        """There is no credential. Not kept unless told: somebody who is given access should have it at once."""
        return cls(None, cache_key_type, cache)

    def response(self, request: ImageRequest) -> Response:
        """The answer to *request*."""
        if self.auth is None:
            return Response(self.cache_key_type, self.cache)
        by_request = request.registry if self.cache_key_type is CacheKeyType.REGISTRY else _image_key(request)
        return Response(self.cache_key_type, self.cache, {self.key or by_request: self.auth})


Result: TypeAlias = "ImageCredentials | None"
Function: TypeAlias = "Callable[[ImageRequest], Result | Awaitable[Result]]"


def image_provider(function: Function) -> ImageProgram:
    """Decorates ``def main(request)``, or ``async def``, that returns `ImageCredentials`, or None if it has none."""
    return ImageProgram(function)


class ImageProgram(PluginProgram):
    """A provider, ready to be run once: ``main()``. `answer` is the same without touching the process."""

    __name__: str
    __wrapped__: Function

    def __init__(self, function: Function) -> None:
        self._provide = function
        functools.update_wrapper(self, function)

    def __call__(self, *, environ: Mapping[str, str] | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        """Answer one request; with ``--help`` alone, say what this program is, and read nothing."""
        if sys.argv[1:] in (["--help"], ["-h"]):
            print(self._help(), end="")  # noqa: T201
            return
        super().__call__(environ=environ, clock=clock)

    def _help(self) -> str:
        about = inspect.cleandoc(self._provide.__doc__ or "")
        name = os.path.basename(sys.argv[0])
        return HELP.format(name=printable(name), about=about.replace("``", "") or "No description.")

    def answer(
        self, environ: Mapping[str, str] | None = None, *, clock: Clock = SYSTEM_CLOCK, stdin: bytes | None = None
    ) -> str:
        """What a kubelet that writes *stdin* would be answered; raises what went wrong. For tests of providers."""
        wire_request = _request(_read_stdin() if stdin is None else stdin)
        request = ImageRequest(
            wire_request.image,
            wire_request.service_account_token,
            wire_request.service_account_annotations,
            wire_request.api_version,
        )
        variables = os.environ if environ is None else environ
        if _is_switched_off(variables.get(PROVIDERS_VARIABLE, "")):
            credentials = ImageCredentials.none()
        else:
            credentials = _credentials(await_result(self._provide(request)))
        response = credentials.response(request)
        data = _encode(response, wire_request, clock)
        try:
            # We take nothing on trust that the kubelet would refuse, least of all from ourselves.
            decode_response(data, wire_request, now=clock.now())
        except ResponseRefused as refused:
            raise _unusable(refused.cause, hint=refused.hint) from None
        return data.decode()


def _is_switched_off(variable: str) -> bool:
    """Whether this program is switched off, by the name that the kubelet runs it under, and say so on stderr."""
    switched_off = Switches(variable=variable).disabled(os.path.basename(sys.argv[0]))
    if switched_off is not None and sys.stderr is not None:
        print(switched_off, file=sys.stderr)  # noqa: T201
    return switched_off is not None


def _read_stdin() -> bytes:
    # At a terminal nobody would end the input; the error then says who sends it.
    if sys.stdin is None or sys.stdin.isatty():
        return b""
    return sys.stdin.buffer.read(LARGEST_REQUEST)


def _credentials(result: object) -> ImageCredentials:
    if result is None:
        return ImageCredentials.none()
    if not isinstance(result, ImageCredentials):
        raise _unusable(
            f"its function returned {type(result).__name__}",
            hint="return ImageCredentials.for_registry(...), .for_image(...), .for_key(...), or None",
        )
    return result


def _unusable(cause: str, *, hint: str) -> AnswerInvalid:
    return AnswerInvalid(
        "this credential provider has no usable answer",
        cause=cause,
        hint=hint,
        code="credential-provider-answer-invalid",
    )


def _basic_auth(username: str, password: str | Secret) -> BasicAuth:
    secret = password if isinstance(password, Secret) else Secret(password)
    for name, text in (("username", username), ("password", secret.reveal())):
        # The bytes of a file name, say, or nothing at all: neither can be sent, and neither is quoted.
        if not isinstance(text, str) or any("\ud800" <= char <= "\udfff" for char in text):
            raise ValueError(f"the {name} is not text that a registry can be sent")
    return BasicAuth(username, secret)


# --- what a credential is for, and what may be kept of it ---


def _check_scope(key: str, kept_for: CacheKeyType) -> None:
    """Refuse what would hide: an answer that other images find in the cache, and none of whose keys match them."""
    path = _path_of(key)
    if "*" in path:
        raise ValueError(f'the key "{printable(key)}" has a * in its path, where it stands for itself: end it before')
    if kept_for is CacheKeyType.GLOBAL:
        raise ValueError(
            "Global would keep this answer for images of every registry, and its key matches one: use for_registry"
        )
    if kept_for is CacheKeyType.REGISTRY and path:
        raise ValueError(
            f'Registry would keep this answer for the whole registry, and the key "{printable(key)}" is for a part '
            "of it: leave out cache_key_type, or the path"
        )


def _path_of(key: str) -> str:
    """The part of a registry that *key* is for; empty if it is for all of it."""
    path = key.removeprefix("https://").removeprefix("http://").partition("/")[2]
    # What the kubelet takes for the version of the registry's API is no path.
    return path[3:] if path.startswith(_API_VERSIONS) else path


def _image_key(request: ImageRequest) -> str:
    path = request.image.partition("/")[2]
    # As a key, such an image would lose the begin of its path and not match itself.
    return request.registry if path.startswith(_API_VERSIONS) else request.image


# --- the proposal's words: {"image"} -> {"username", "password", "expirationTimestamp"} ---


def _request(stdin: bytes) -> Request:
    try:
        fields = json.loads(stdin.decode("utf-8"))
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict) and "kind" not in fields and "apiVersion" not in fields:
        image = fields.get("image")
        if isinstance(image, str) and image:
            return Request(image, dialect=ProviderDialect.PROPOSAL)
    return decode_request(stdin)


def _encode(response: Response, asked: Request, clock: Clock) -> bytes:
    if asked.dialect is ProviderDialect.KUBELET:
        return encode_response(response, api_version=asked.api_version)
    fields = {}
    for auth in response.auth.values():
        fields = {"username": auth.username, "password": auth.password.reveal()}
    if response.cache_duration:
        expires_at = (clock.now() + response.cache_duration).astimezone(UTC)
        fields["expirationTimestamp"] = expires_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return go_json(fields).encode("utf-8", "replace") + b"\n"
