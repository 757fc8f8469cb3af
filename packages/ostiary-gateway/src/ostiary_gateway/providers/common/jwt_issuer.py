"""Issuers: their discovery document (OpenID Connect Discovery) and their keys, both cached.

    issuer + /.well-known/openid-configuration  ->  document, for an hour  ->  jwks_uri  ->  Keys, for five minutes

Concurrent callers share one request, and errors are not cached. A key that the issuer withdraws is accepted for
`KEYS_SECONDS` more at most; a new key is fetched when the first token needs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from ostiary.core.cache import Cache
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.text import printable
from ostiary.core.watched_file import WatchedFile
from ostiary.core.yaml import ConfigSection
from ostiary.errors import ConfigurationError, ProviderError
from ostiary.model import Place, Problem
from ostiary_gateway.providers.common.jwt import Keys, json_object, parse_keys
from ostiary_gateway.providers.common.outbound import MAX_BYTES, Outbound, is_safe

# The name that errors use.
SYSTEM = "the issuer"
METADATA_SECONDS = 3600.0
LONGEST_NAME = 200
KEYS_SECONDS = 300.0
# Anyone can send tokens that no key fits, so they must not cause as many requests to the issuer.
REFETCH_SECONDS = 30.0
# kube-apiserver serves its keys as the first media type only, other issuers as the second.
KEYS_TYPES = "application/jwk-set+json, application/json;q=0.9"
WELL_KNOWN = "/.well-known/openid-configuration"


class Issuer:
    """The issuer at *url*. One event loop uses it.

    With *keys_url* the keys are fetched from there, without discovery. With *server* the documents are fetched from
    that API server, whose issuer has another URL; *headers* are sent with every request. *parse* reads the keys.
    *announced* is the issuer in the document if it differs from *url*: the shared document of many tenants names no
    real issuer.
    """

    def __init__(
        self,
        url: str,
        outbound: Outbound,
        *,
        keys_url: str = "",
        server: str = "",
        announced: str = "",
        headers: Callable[[], Mapping[str, str]] | None = None,
        parse: Callable[[object], Keys] = parse_keys,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.url = url
        self._outbound = outbound
        self._keys_url = keys_url
        self._server = server.rstrip("/")
        self._announced = announced or url
        self._headers = headers
        self._parse = parse
        self._monotonic = clock.monotonic
        self._documents: Cache[str, Mapping[str, object]] = Cache(seconds=METADATA_SECONDS, clock=clock, entries=1)
        # By generation: the current keys are used until newer ones have been fetched, even if fetching fails.
        self._keys: Cache[int, Keys] = Cache(seconds=KEYS_SECONDS, clock=clock, entries=2)
        self._generation = 0
        self._refetching = 0
        self._refetch_at = float("-inf")

    async def document(self) -> Mapping[str, object]:
        """Return the discovery document. Its issuer has been checked."""
        return await self._documents.fill(self.url, self._discover)

    async def keys(self) -> Keys:
        return await self._keys.fill(self._generation, self._fetch_keys)

    async def newer_keys(self, seen: Keys) -> Keys:
        generation = self._generation
        if self._keys.get(generation) is not seen:
            return await self.keys()
        if not self._refetching:
            if self._monotonic() < self._refetch_at:
                return seen
            self._refetch_at = self._monotonic() + REFETCH_SECONDS
        self._refetching += 1
        try:
            keys = await self._keys.fill(generation + 1, self._fetch_keys)
        finally:
            self._refetching -= 1
        self._generation = generation + 1
        return keys

    async def _discover(self) -> Mapping[str, object]:
        url = (self._server or self.url.rstrip("/")) + WELL_KNOWN
        try:
            return _checked_document(self._announced, await self._get(url), plain=url.startswith("http://"))
        except ValueError as mistake:
            raise self._outbound.failure(url, str(mistake)) from None

    async def _fetch_keys(self) -> Keys:
        url = self._keys_url or self._keys_address(await self.document())
        try:
            return self._parse(await self._get(url, accept=KEYS_TYPES))
        except ValueError as mistake:
            raise self._outbound.failure(url, f"its keys cannot be used: {mistake}") from None

    def _keys_address(self, document: Mapping[str, object]) -> str:
        url = str(document["jwks_uri"])
        # An API server announces an internal address, which the gateway may be unable to reach.
        return self._server + urlsplit(url).path if self._server else url

    async def _get(self, url: str, *, accept: str = "application/json") -> object:
        headers = {"Accept": accept, **({} if self._headers is None else self._headers())}
        answer = await self._outbound.ask("GET", url, headers=headers)
        if answer.status != 200:
            raise self._outbound.failure(url, f"it answered with status {answer.status}")
        return answer.body


class FileKeys:
    """Keys in a file (a JWK Set), which is reloaded when it changes."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        parse: Callable[[object], Keys] = parse_keys,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.file = WatchedFile(path, partial(_keys_of_file, parse), clock=clock)

    async def keys(self) -> Keys:
        try:
            return self.file.current()
        except ConfigurationError as error:
            raise ProviderError("the keys cannot be read", cause=error.cause, where=error.where) from error

    async def newer_keys(self, seen: Keys) -> Keys:
        # `keys` has just checked the file.
        return seen


def _keys_of_file(parse: Callable[[object], Keys], path: str) -> Keys:
    try:
        with Path(path).open("rb") as file:
            return parse(json_object(file.read(MAX_BYTES)))
    except OSError as error:
        problem = Problem(error.strerror or "it cannot be opened", Place(path))
    except ValueError as mistake:
        problem = Problem(str(mistake), Place(path))
    raise ConfigurationError("the keys cannot be read", problems=[problem])


# --- the document ---


def usable_url(text: object, *, plain: bool) -> SplitResult | None:
    """Return the parts of an https URL, or with *plain* of an http URL on loopback; None if it is neither."""
    if not isinstance(text, str) or not text.isascii() or not text.isprintable() or any(c in text for c in " \\#"):
        return None
    try:
        parts = urlsplit(text)
        # Reading `port` raises ValueError for an invalid one.
        if not parts.hostname or parts.port == 0 or "@" in parts.netloc:
            return None
    except ValueError:
        return None
    return parts if parts.scheme == "https" or (plain and is_safe(text)) else None


def check_issuer(issuer: str, fields: ConfigSection) -> None:
    """Report an invalid setting ``issuer``."""
    if issuer and ((parts := usable_url(issuer, plain=True)) is None or parts.query):
        fields.problem("it is not a https URL without a query", "issuer", "plain http is for this machine only")


def outbound_to_issuer(ca: Path | None, fields: ConfigSection) -> Outbound:
    """Return the client for calls to the issuer. An error in the setting ``ca`` is reported."""
    try:
        return Outbound(SYSTEM, ca=ca)
    except ConfigurationError as error:
        fields.problem(error.cause or error.summary, "ca")
        # Never used: after a reported error the gateway does not start.
        return Outbound(SYSTEM)


def _checked_document(issuer: str, document: object, *, plain: bool) -> Mapping[str, object]:
    """Return *document*. Raise ValueError if it cannot be used."""
    if not isinstance(document, dict):
        raise ValueError("it has no discovery document there")
    # They must be identical (Discovery, 4.3): otherwise one issuer could speak with the endpoints of another.
    if document.get("issuer") != issuer:
        announced = document.get("issuer")
        itself = f'"{printable(announced[:LONGEST_NAME])}"' if isinstance(announced, str) else "nothing"
        raise ValueError(f"its issuer is {itself}, which differs from the configured issuer")
    endpoint(document, "jwks_uri", plain=plain)
    return document


def endpoint(document: Mapping[str, object], name: str, *, plain: bool, optional: bool = False) -> str:
    """Return the URL under *name*, or raise ValueError. With *plain* it may be on loopback, without TLS."""
    value = document.get(name)
    if value is None and optional:
        return ""
    # A remote issuer must not name an endpoint on loopback: code and secret would be sent there.
    if usable_url(value, plain=plain) is None:
        raise ValueError(f"its {name} is not a https URL")
    return str(value)
