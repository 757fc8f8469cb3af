"""The authorization provider ``subject_access_review``: query a server with Kubernetes' webhook protocol.

    server: https://cluster.example:6443     an API server; or the full URL of any other SubjectAccessReview webhook
    tokenFile: token                         or certificate and key; read again whenever they change

``denied`` is a DENY, ``allowed: false`` alone is no opinion. Anything but a clear response is an error. A review has no
side effects, so it is retried like a cluster does, with growing pauses, if the connection fails or the server responds
that it is unavailable.

The server cannot list the groups that its policy depends on, so ``groups`` does. It also cannot request that a denial
looks like a missing object. ``hide: true`` does that for all denials without an opinion, if
``authorization.hideDenied`` is set.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

import httpx2

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.text import fits_token_header
from ostiary.core.tls import TlsSettings, build_context, parse_certificate
from ostiary.core.watched_file import Fingerprint, fingerprint
from ostiary.core.yaml import ConfigSection
from ostiary.errors import ConfigurationError, ProviderError, TransportError
from ostiary.model import Attributes, Decision, Verdict
from ostiary_gateway.authorization.implied_groups import with_implied_groups
from ostiary_gateway.catalog import Context
from ostiary_gateway.settings.declare import read_settings
from ostiary_gateway.settings.kinds import FilePath, Flag, Holds, Seconds, Text, Texts, Word
from ostiary_gateway.wire.authorization import MAX_BYTES, V1, V1BETA1, ReviewError, decode_status, encode_review

VERSIONS = ("v1", "v1beta1")
TIMEOUT_SECONDS = 8.0
BAD_VERSION = f"the version must be {' or '.join(VERSIONS)}"
BAD_SERVER = "the server must be a https URL"
BAD_SERVER_HINT = "reviews contain user names, and responses grant access"


def _file(doc: str, holds: Holds, unset: str = "none") -> FilePath:
    return FilePath(doc, holds=holds, checked=False, empty="", unset=unset)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectAccessReviewSettings:
    """The settings of the authorization provider ``subject_access_review``."""

    server: Annotated[
        str,
        Text("the URL of the API server that is asked", empty="", missing=BAD_SERVER, missing_hint=BAD_SERVER_HINT),
    ]
    version: Annotated[str, Word("of the review", VERSIONS, mistake=BAD_VERSION, hint="", empty="")] = "v1"
    groups: Annotated[
        tuple[str, ...], Texts("the groups that its policy mentions: the server cannot list them", unique=True)
    ] = ()
    hide: Annotated[
        bool, Flag("answer refused reads within a namespace with 404; requires `authorization.hideDenied`")
    ] = False
    timeout: Annotated[float, Seconds("for one review", mistake="the timeout must be greater than zero")] = (
        TIMEOUT_SECONDS
    )
    ca: Annotated[
        Path | None, _file("the authorities of the server (PEM)", Holds.CERTIFICATES, unset="the system's")
    ] = None
    certificate: Annotated[Path | None, _file("a client certificate (PEM)", Holds.CERTIFICATES)] = None
    key: Annotated[Path | None, _file("its key", Holds.SECRET)] = None
    server_name: Annotated[str | None, Text("the name to check in place of the host", empty="", unset="the host")] = (
        None
    )
    token_file: Annotated[Path | None, _file("a token of the gateway's own", Holds.SECRET)] = None


API_VERSIONS = {"v1": V1, "v1beta1": V1BETA1}

# The retries of kube-apiserver's webhook client. All of them fit into the time that the gateway gives a provider.
ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.5
PAUSE_FACTOR = 1.5
LOOK_SECONDS = 1.0

_Look = tuple[Fingerprint | None, ...]


@dataclass(frozen=True, slots=True)
class ReviewTls:
    """TLS settings for the server. Without `ca` the system's authorities are trusted."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class _AskAgain:
    """The attempt failed and may be retried, after at least *after* seconds if the server demands that."""

    cause: str
    after: float = 0.0


class _ReviewClient:
    """An HTTP client for one state of the TLS files. Once replaced, it closes with its last in-flight request."""

    def __init__(self, tls: ReviewTls, look: _Look) -> None:
        self.look = look
        self._client = httpx2.AsyncClient(verify=_context(tls), trust_env=False, timeout=TIMEOUT_SECONDS)
        self._users = 0
        self._retired = False

    async def post(self, url: str, body: bytes, headers: dict[str, str]) -> tuple[httpx2.Response, bytes]:
        self._users += 1
        try:
            async with self._client.stream("POST", url, content=body, headers=headers) as response:
                return response, await _read_bounded(response)
        finally:
            self._users -= 1
            await self._close_if_unused()

    async def retire(self) -> None:
        self._retired = True
        await self._close_if_unused()

    async def _close_if_unused(self) -> None:
        if self._retired and not self._users:
            await self._client.aclose()


class SubjectAccessReviewAuthorization:
    """Query *server*. *groups* are those that its policy mentions. Use an instance in one event loop only.

    Raises `ConfigurationError` if the settings are invalid. *pause* waits between two attempts.
    """

    def __init__(
        self,
        server: str,
        *,
        tls: ReviewTls = ReviewTls(),  # noqa: B008  # frozen
        token_file: str | os.PathLike[str] | None = None,
        version: str = "v1",
        timeout: float = TIMEOUT_SECONDS,
        groups: Iterable[str] = (),
        hide: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._url = review_url(server, version)
        self._api_version = API_VERSIONS[version]
        self._tls = tls
        self._token_file = None if token_file is None else Path(token_file)
        self._timeout, self.hides_denied = timeout, hide
        self._groups = frozenset(groups)
        self._clock, self._pause = clock, pause
        self._channel: _ReviewClient | None = None
        self._look_again_at = float("-inf")
        _context(tls)

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(SubjectAccessReviewSettings, fields, context.directory)
        tls = ReviewTls(settings.ca, settings.certificate, settings.key, settings.server_name)
        try:
            return cls(
                settings.server,
                tls=tls,
                token_file=settings.token_file,
                version=settings.version,
                timeout=settings.timeout,
                groups=settings.groups,
                hide=settings.hide,
                clock=context.clock,
            )
        except ConfigurationError as error:
            where = str(error.where or "server")
            if fields.is_right(where):
                fields.problem(error.cause or error.summary, where, error.hint)
            # A placeholder that is never used: after a configuration error the gateway does not start.
            return cls("https://invalid.invalid")

    async def authorize(self, attributes: Attributes) -> Decision:
        # Include implied groups: the server adds none to those in a review.
        question = replace(attributes, user=with_implied_groups(attributes.user))
        body = encode_review(question, api_version=self._api_version)
        try:
            async with asyncio.timeout(self._timeout):
                decision = await self._ask(body)
        except TimeoutError:
            raise self._failure(f"it did not answer within {self._timeout:g} seconds") from None
        return replace(decision, hidden=self._hides(decision, attributes))

    async def relevant_groups(self) -> frozenset[str]:
        return self._groups

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.retire()

    def _hides(self, decision: Decision, attributes: Attributes) -> bool:
        return self.hides_denied and decision.verdict is Verdict.NO_OPINION and bool(attributes.request.namespace)

    # --- requests ---

    async def _ask(self, body: bytes) -> Decision:
        wait, cause = FIRST_PAUSE_SECONDS, ""
        for attempt in range(1, ATTEMPTS + 1):
            outcome = await self._ask_once(body)
            if isinstance(outcome, Decision):
                return outcome
            cause = outcome.cause
            if attempt == ATTEMPTS or outcome.after >= self._timeout:
                break
            await self._pause(max(wait, outcome.after))
            wait *= PAUSE_FACTOR
        raise self._failure(cause)

    async def _ask_once(self, body: bytes) -> Decision | _AskAgain:
        channel = await self._current_channel()
        try:
            response, answer = await channel.post(self._url, body, self._headers())
        except httpx2.TransportError as error:
            if _is_about_trust(error):
                raise self._failure("its certificate is not trusted, or it does not trust ours") from error
            return _AskAgain(f"the connection failed ({type(error).__name__})")
        if response.status_code in (200, 201):
            return self._decision(answer)
        status = f"it answered with status {response.status_code}"
        after = _retry_after(response)
        if response.status_code == 429 or response.status_code >= 500 or after is not None:
            return _AskAgain(status, after or 0.0)
        raise self._failure(status, "it must allow this gateway to create subjectaccessreviews")

    def _decision(self, answer: bytes) -> Decision:
        try:
            return decode_status(answer, api_version=self._api_version)
        except ReviewError as error:
            # Do not quote the response: it may come from any intermediary.
            raise self._failure(f"its answer cannot be used: {error}") from None

    def _headers(self) -> dict[str, str]:
        # No compression: the response is small, and a small body can decompress to a huge one.
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        if self._token_file is not None:
            headers["Authorization"] = f"Bearer {self._token(self._token_file)}"
        return headers

    def _token(self, file: Path) -> str:
        # Read for every request: service account tokens are rotated in place, and a read is cheap next to a request.
        try:
            token = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise ProviderError(
                "the token for the access review server cannot be read",
                cause=why,
                where=str(file),
                code="token-file-unreadable",
            ) from None
        if not fits_token_header(token):
            summary = "the token for the access review server cannot be used"
            raise ProviderError(
                summary, cause="the file holds no token", where=str(file), code="token-file-unreadable"
            )  # fmt: skip
        return token

    async def _current_channel(self) -> _ReviewClient:
        channel = self._channel
        if channel is not None and self._clock.monotonic() < self._look_again_at:
            return channel
        self._look_again_at = self._clock.monotonic() + LOOK_SECONDS
        look = _look(self._tls)
        if channel is not None and channel.look == look:
            return channel
        try:
            self._channel = _ReviewClient(self._tls, look)
        except ConfigurationError as error:
            if channel is not None:
                # The files may be in the middle of a rotation; the current client still works.
                return channel
            raise self._failure(error.cause or error.summary) from error
        if channel is not None:
            await channel.retire()
        return self._channel

    def _failure(self, cause: str, hint: str | None = None) -> ProviderError:
        host = urlsplit(self._url).netloc
        return ProviderError("the access review server is unavailable", cause=f"{host}: {cause}", hint=hint)


def review_url(server: str, version: str) -> str:
    """Return the URL for reviews; a server without a path is a Kubernetes API server. Raises `ConfigurationError`."""
    if version not in API_VERSIONS:
        raise _unusable("version", BAD_VERSION)
    try:
        parts = urlsplit(server)
        usable = parts.scheme == "https" and parts.hostname and parts.port != 0 and not parts.fragment
    except ValueError:
        usable = False
    if not usable:
        raise _unusable("server", BAD_SERVER, BAD_SERVER_HINT)
    if parts.username is not None:
        raise _unusable("server", "the URL holds a user name or password", "use tokenFile, or certificate and key")
    if parts.path in ("", "/"):
        parts = parts._replace(path=f"/apis/{API_VERSIONS[version]}/subjectaccessreviews")
    return parts.geturl()


def _context(tls: ReviewTls) -> ssl.SSLContext:
    if (tls.certificate is None) != (tls.key is None):
        raise _unusable("certificate", "certificate and key go together")
    authorities = _pem("ca", tls.ca) if tls.ca is not None else None
    certificate = None
    try:
        if tls.certificate is not None and tls.key is not None:
            certificate = parse_certificate(_pem("certificate", tls.certificate), _pem("key", tls.key))
        return build_context(TlsSettings(authorities, server_name=tls.server_name), certificate)
    except ValueError as error:
        raise _unusable("certificate", str(error)) from None
    except TransportError as error:
        raise _unusable("ca", error.cause or error.summary) from None


def _pem(setting: str, file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(setting, getattr(error, "strerror", None) or "the file is not text") from None


def _unusable(setting: str, cause: str, hint: str | None = None) -> ConfigurationError:
    summary = "the access review server cannot be used"
    return ConfigurationError(summary, cause=cause, where=setting, hint=hint, code="config-invalid")


def _look(tls: ReviewTls) -> _Look:
    return tuple(None if file is None else fingerprint(file) for file in (tls.ca, tls.certificate, tls.key))


async def _read_bounded(response: httpx2.Response) -> bytes:
    received = bytearray()
    async for chunk in response.aiter_raw():
        received += chunk
        if len(received) > MAX_BYTES:
            # One byte over the limit is enough for the decoder to reject it.
            return bytes(received[: MAX_BYTES + 1])
    return bytes(received)


def _is_about_trust(error: BaseException | None) -> bool:
    """Whether a TLS certificate was rejected, which a retry would not change."""
    while error is not None:
        if isinstance(error, (ssl.SSLCertVerificationError, ssl.CertificateError)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _retry_after(response: httpx2.Response) -> float | None:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdecimal() and len(text) < 6 else None
