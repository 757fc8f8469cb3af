"""HTTP client for the APIs of identity providers.

    SecretFile -> headers -> Outbound.ask -> HttpAnswer (status, headers, JSON) -> interpreted by the provider

One event loop uses an instance; `core.net.outgoing` is for threads.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import httpx2

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.loopback import is_loopback
from ostiary.core.text import fits_token_header
from ostiary.core.tls import TlsSettings, build_context
from ostiary.core.yaml import ConfigSection
from ostiary.errors import ConfigurationError, ProviderError, TransportError
from ostiary.model import Secret

# A login makes a few calls in sequence, and the gateway gives a provider 30 seconds for all of them.
SECONDS = 8.0
MAX_BYTES = 1024 * 1024
# Identity providers treat more concurrent requests than this as an attack.
CONCURRENCY = 8
MAX_SECRET_BYTES = 64 * 1024
MAX_REST_SECONDS = 3600.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The response. `body` is its JSON, or None. It may hold a token, so it is not in the repr."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: object = field(default=None, repr=False)

    def text(self, name: str) -> str:
        """Return the string field *name* of the body, or an empty string if there is none."""
        value = self.body.get(name) if isinstance(self.body, dict) else None
        return value if isinstance(value, str) else ""


class Outbound:
    """Call the API of *system*, the name that errors use. Raise `ConfigurationError` if *ca* cannot be used.

    Every call is limited in time and size and uses TLS (plain HTTP on loopback only). It follows no redirect, stores no
    cookie and reads no proxy from the environment. Without a response it raises `ProviderError`; an error status is
    returned, since only the provider can interpret it. *context* replaces *ca* for callers with a client certificate.
    """

    def __init__(
        self,
        system: str,
        *,
        ca: str | os.PathLike[str] | None = None,
        context: ssl.SSLContext | None = None,
        seconds: float = SECONDS,
        concurrency: int = CONCURRENCY,
    ) -> None:
        self._system = system
        # Loading the system's authorities takes a while and cannot fail for a wrong setting: done at the first call.
        self._context = context if ca is None else _context(ca)
        self._seconds = seconds
        self._turn = asyncio.Semaphore(concurrency)
        self._client: httpx2.AsyncClient | None = None

    async def ask(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
        json_body: object = None,
    ) -> HttpAnswer:
        status, received, content = await self._bounded(method, url, headers or {}, form, json_body)
        cause = ""
        try:
            return HttpAnswer(status, received, _json(content, status))
        except ValueError as error:
            cause = str(error)
        raise self.failure(url, cause)

    async def fetch(self, url: str, *, accept: str) -> bytes:
        """Return a document that is not JSON, unparsed. Raise `ProviderError` unless the status is 200."""
        status, _, content = await self._bounded("GET", url, {"Accept": accept}, None, None)
        if status != 200:
            raise self.failure(url, f"it answered with status {status}")
        return content

    async def visit(self, url: str) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and content of an HTML page. Redirects are not followed."""
        return await self._bounded("GET", url, {"Accept": "text/html"}, None, None)

    async def _bounded(
        self, method: str, url: str, headers: Mapping[str, str], form: Mapping[str, str] | None, json_body: object
    ) -> tuple[int, Mapping[str, str], bytes]:
        if not is_safe(url):
            raise self.failure(url, "it is neither https nor on this machine")
        # No compression: a small response could expand into a huge one.
        all_headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "ostiary",
            **headers,
        }
        cause = ""
        try:
            async with self._turn, asyncio.timeout(self._seconds):
                return await self._answer(method, url, all_headers, form, json_body)
        except TimeoutError:
            cause = f"it did not answer within {self._seconds:g} seconds"
        except (httpx2.HTTPError, OSError, ValueError) as error:
            cause = _cause(error)
        # Raised outside of the handler: the library's exceptions hold the request, and so its secrets.
        raise self.failure(url, cause)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def failure(self, url: str, cause: str, hint: str | None = None, *, reported: str = "") -> ProviderError:
        """Return the error to raise if *url* gave no usable response. It names only the host of the URL."""
        host = urlsplit(url).netloc
        return ProviderError(f"{self._system} is unavailable", cause=f"{host}: {cause}", hint=hint, reported=reported)

    async def _answer(
        self, method: str, url: str, headers: Mapping[str, str], form: Mapping[str, str] | None, json_body: object
    ) -> tuple[int, Mapping[str, str], bytes]:
        if self._client is None:
            self._client = _client(self._context or build_context(TlsSettings()))
        async with self._client.stream(method, url, headers=headers, data=form, json=json_body) as response:
            received = bytearray()
            async for chunk in response.aiter_raw():
                received += chunk
                if len(received) > MAX_BYTES:
                    raise ValueError("its answer is too large")
            lowered = {name.lower(): value for name, value in response.headers.items()}
            return response.status_code, lowered, bytes(received)


class Rest:
    """The back-off after a rate limit. Further calls could make the identity provider block the gateway permanently."""

    def __init__(self, system: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._system = system
        self._clock = clock
        self._until = float("-inf")

    def check(self) -> None:
        """Raise `ProviderError` while the back-off lasts."""
        remaining = self._until - self._clock.monotonic()
        if remaining > 0:
            cause = f"rate limit exceeded; retry in {remaining:.0f} seconds"
            raise ProviderError(f"{self._system} is unavailable", cause=cause)

    def begin(self, seconds: float) -> None:
        self._until = self._clock.monotonic() + min(max(seconds, 1.0), MAX_REST_SECONDS)


class SecretFile:
    """A secret in a file. It is read at every use: the file may be replaced, and reading is cheap next to a call."""

    def __init__(self, path: str | os.PathLike[str], what: str) -> None:
        self.path = Path(path)
        self._what = what

    def current(self) -> Secret:
        try:
            with open(self.path, "rb") as file:
                text = file.read(MAX_SECRET_BYTES).decode("ascii").strip()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is not ASCII text"
        else:
            if fits_token_header(text):
                return Secret(text)
            why = "it is empty, or holds more than one word"
        # Raised outside of the handler: the decoder's exception contains the text.
        summary = f"{self._what} cannot be read"
        raise ProviderError(summary, cause=why, where=str(self.path), code="token-file-unreadable")

    def check(self, fields: ConfigSection, key: str) -> None:
        """Read the secret once. An error is reported for the setting *key*."""
        try:
            self.current()
        except ProviderError as error:
            fields.problem(f"{error.summary}: {error.cause}", key)


async def all_of(askings: Iterable[Awaitable[T]]) -> list[T]:
    """Await all concurrently and return their results. The first error cancels the others and is raised."""
    tasks = [asyncio.ensure_future(asking) for asking in askings]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def is_safe(url: str) -> bool:
    """Return whether secrets may be sent to *url*: over TLS, or over loopback."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return host != "" and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


def _client(context: ssl.SSLContext) -> httpx2.AsyncClient:
    # One user's cookie must not be sent with the next user's request.
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    return httpx2.AsyncClient(
        verify=context, trust_env=False, follow_redirects=False, timeout=None, cookies=no_cookies
    )  # fmt: skip


def _context(ca: str | os.PathLike[str]) -> ssl.SSLContext:
    try:
        return build_context(TlsSettings(Path(ca).read_text()))
    except TransportError as error:
        cause = error.cause or error.summary
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or "the file is not text"
    raise ConfigurationError("the certificate authority cannot be used", cause=cause, where="ca")


def _json(received: bytes, status: int) -> object:
    if not received.strip():
        return None
    try:
        return json.loads(received)
    except (ValueError, RecursionError):
        # Proxies and load balancers send HTML with their errors. The status is enough then.
        if status >= 300:
            return None
    raise ValueError("its answer is not JSON")


def _cause(error: Exception) -> str:
    """Return why there is no response. The library's own text may quote secrets, so it is not repeated."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, ssl.SSLCertVerificationError):
            return "its certificate is not trusted"
        chain = chain.__cause__ or chain.__context__
    if type(error) is ValueError:
        return str(error)
    return f"the connection failed ({type(error).__name__})"
