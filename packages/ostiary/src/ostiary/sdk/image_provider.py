"""The decorator for image credential providers of the kubelet: it turns a function into a complete program.

    stdin -> ImageRequest -> the function -> ImageCredentials -> Response -> validate the output -> print it

A disabled provider (`ostiary.core.provider_switches`) has no credentials, and its function is not called. The cache
scope follows from the scope of the credential. That prevents an error that stays hidden for hours: a response cached
for a whole registry whose key covers only a part of it.
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
    """The request of the kubelet. `image` is a repository, such as ``registry.example.com:5000/team/app``.

    `service_account_token` and `annotations` are set if the configuration has ``tokenAttributes``.
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
    """A username and password, their scope, and how long the kubelet may cache them.

    Created by `for_registry`, `for_image`, `for_key` or `none`. Without *cache*, the provider's
    ``defaultCacheDuration`` applies. `key` is empty if it follows from the request.
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
        """Return credentials for every image of the registry in the request."""
        return cls(_basic_auth(username, password), CacheKeyType.REGISTRY, cache)

    @classmethod
    def for_image(cls, username: str, password: str | Secret, *, cache: timedelta | None = None) -> ImageCredentials:
        """Return credentials for the repository in the request only."""
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
        """Return credentials for the images that *pattern* matches, as in ``matchImages``.

        Cached for the registry if the pattern is only a host, and for the image if it has a path.
        """
        key_type = cache_key_type or (CacheKeyType.IMAGE if _path_of(pattern) else CacheKeyType.REGISTRY)
        return cls(_basic_auth(username, password), key_type, cache, pattern)

    @classmethod
    def none(
        cls, *, cache: timedelta | None = NOT_KEPT, cache_key_type: CacheKeyType = CacheKeyType.IMAGE
    ) -> ImageCredentials:
        """Return no credential. Not cached by default, so that a user who is granted access gets it immediately."""
        return cls(None, cache_key_type, cache)

    def response(self, request: ImageRequest) -> Response:
        """Return the response to *request*."""
        if self.auth is None:
            return Response(self.cache_key_type, self.cache)
        by_request = request.registry if self.cache_key_type is CacheKeyType.REGISTRY else _image_key(request)
        return Response(self.cache_key_type, self.cache, {self.key or by_request: self.auth})


Result: TypeAlias = "ImageCredentials | None"
Function: TypeAlias = "Callable[[ImageRequest], Result | Awaitable[Result]]"


def image_provider(function: Function) -> ImageProgram:
    """Decorate ``def main(request)`` or ``async def main(request)``, which returns `ImageCredentials` or None."""
    return ImageProgram(function)


class ImageProgram(PluginProgram):
    """A provider that runs once when called: ``main()``. `answer` returns the output without printing it."""

    __name__: str
    __wrapped__: Function

    def __init__(self, function: Function) -> None:
        self._provide = function
        functools.update_wrapper(self, function)

    def __call__(self, *, environ: Mapping[str, str] | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        """Process one request. With only ``--help``, print the help and read nothing."""
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
        """Return the output for a kubelet that writes *stdin*. Raises errors unchanged. For tests of providers."""
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
            # Validate the output with the decoder of our kubelet side.
            decode_response(data, wire_request, now=clock.now())
        except ResponseRefused as refused:
            raise _unusable(refused.cause, hint=refused.hint) from None
        return data.decode()


def _is_switched_off(variable: str) -> bool:
    """Whether the operator disabled this provider, by the name of the executable. Prints that on stderr."""
    switched_off = Switches(variable=variable).disabled(os.path.basename(sys.argv[0]))
    if switched_off is not None and sys.stderr is not None:
        print(switched_off, file=sys.stderr)  # noqa: T201
    return switched_off is not None


def _read_stdin() -> bytes:
    # A terminal would never send end of file. The error then says who sends the input.
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
        # Surrogates (from a file name, for example) or not a string: neither can be sent, and neither is quoted.
        if not isinstance(text, str) or any("\ud800" <= char <= "\udfff" for char in text):
            raise ValueError(f"the {name} is not text that a registry can be sent")
    return BasicAuth(username, secret)


# --- scope of a credential, and of its cache entry ---


def _check_scope(key: str, kept_for: CacheKeyType) -> None:
    """Reject a response that would be cached for images that none of its keys match."""
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
    """Return the part of a registry that *key* covers. Empty if it covers all of it."""
    path = key.removeprefix("https://").removeprefix("http://").partition("/")[2]
    # The kubelet treats v1/ and v2/ as versions of the registry API, not as part of the path.
    return path[3:] if path.startswith(_API_VERSIONS) else path


def _image_key(request: ImageRequest) -> str:
    path = request.image.partition("/")[2]
    # As a key, such an image would lose the beginning of its path and not match itself.
    return request.registry if path.startswith(_API_VERSIONS) else request.image


# --- format of the proposal: {"image"} -> {"username", "password", "expirationTimestamp"} ---


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
