"""What an issuer publishes about itself: its endpoints (OpenID Connect Discovery) and its keys, asked for seldom.

    issuer + /.well-known/openid-configuration  ->  document, for an hour  ->  jwks_uri  ->  Keys, for five minutes

Called by `oidc`, `sso_cookie` and `workload`. Concurrent callers share one request, and errors are not cached. A key
that the issuer withdraws is good for `KEYS_SECONDS` more at most; a new one is found when the first token needs it.
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

# What errors call it.
SYSTEM = "the issuer"
METADATA_SECONDS = 3600.0
LONGEST_NAME = 200
KEYS_SECONDS = 300.0
# Tokens that no key fits may come from anybody, and must not become as many questions to the issuer.
REFETCH_SECONDS = 30.0
# kube-apiserver has its keys under the first name alone, others under the second.
KEYS_TYPES = "application/jwk-set+json, application/json;q=0.9"
WELL_KNOWN = "/.well-known/openid-configuration"


class Issuer:
    """The issuer at *url*. One event loop uses it.

    With *keys_url* its keys are there, and nothing else is asked. With *server* its documents are there, as those of an
    API server that calls itself something else; *headers* go with every question. *parse* reads the keys. With
    *announced* its document names that issuer: many tenants have one document, and none of their tokens names it.
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
        """What it says about itself, with the name that we know it by."""
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
        # An API server names an address of its own there, at which we may not reach it.
        return self._server + urlsplit(url).path if self._server else url

    async def _get(self, url: str, *, accept: str = "application/json") -> object:
        headers = {"Accept": accept, **({} if self._headers is None else self._headers())}
        answer = await self._outbound.ask("GET", url, headers=headers)
        if answer.status != 200:
            raise self._outbound.failure(url, f"it answered with status {answer.status}")
        return answer.body


class FileKeys:
    """Keys in a file (a JWK Set), which is looked at again at every use."""

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
        # Looked at a moment ago.
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
    """The parts of an https URL, or with *plain* of an http one on this machine; None if it is neither."""
    if not isinstance(text, str) or not text.isascii() or not text.isprintable() or any(c in text for c in " \\#"):
        return None
    try:
        parts = urlsplit(text)
        # Asked for because reading it is what finds a wrong one.
        if not parts.hostname or parts.port == 0 or "@" in parts.netloc:
            return None
    except ValueError:
        return None
    return parts if parts.scheme == "https" or (plain and is_safe(text)) else None


def check_issuer(issuer: str, fields: ConfigSection) -> None:
    """Note what is wrong with the setting ``issuer``."""
    if issuer and ((parts := usable_url(issuer, plain=True)) is None or parts.query):
        fields.problem("it is not a https URL without a query", "issuer", "plain http is for this machine only")


def outbound_to_issuer(ca: Path | None, fields: ConfigSection) -> Outbound:
    """How the issuer is reached; what is wrong with the setting ``ca`` is noted."""
    try:
        return Outbound(SYSTEM, ca=ca)
    except ConfigurationError as error:
        fields.problem(error.cause or error.summary, "ca")
        # Never asked: with a problem noted, the gateway does not start.
        return Outbound(SYSTEM)


def _checked_document(issuer: str, document: object, *, plain: bool) -> Mapping[str, object]:
    """Raises ValueError if it cannot be used."""
    if not isinstance(document, dict):
        raise ValueError("it has no discovery document there")
    # Exactly the same (Discovery, 4.3): else one issuer could speak with the endpoints of another.
    if document.get("issuer") != issuer:
        announced = document.get("issuer")
        itself = f'"{printable(announced[:LONGEST_NAME])}"' if isinstance(announced, str) else "nothing"
        raise ValueError(f"its issuer is {itself}, which differs from the configured issuer")
    endpoint(document, "jwks_uri", plain=plain)
    return document


def endpoint(document: Mapping[str, object], name: str, *, plain: bool, optional: bool = False) -> str:
    """The URL under *name*; raises ValueError. With *plain* it may be on this machine, without TLS."""
    value = document.get(name)
    if value is None and optional:
        return ""
    # An issuer elsewhere must not name an endpoint on this machine: code and secret would be sent there.
    if usable_url(value, plain=plain) is None:
        raise ValueError(f"its {name} is not a https URL")
    return str(value)
