"""Metadata of a SAML IdP, from a file or a URL: its entity ID, keys and endpoints.

    EntityDescriptor -> IDPSSODescriptor -> KeyDescriptor, SingleSignOnService, SingleLogoutService

A file is reloaded when it changes, a URL periodically. With a pinned certificate the document must be signed with its
key, and only the signed part is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from cryptography import x509
from lxml import etree

from ostiary.core.cache import Cache
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.watched_file import WatchedFile
from ostiary.errors import ConfigurationError, ProviderError
from ostiary.model import Place, Problem
from ostiary_gateway.providers.common.outbound import Outbound, is_safe
from ostiary_gateway.providers.saml.settings import REFRESH, SamlBinding
from ostiary_gateway.providers.saml.signatures import check_strength, verify_element
from ostiary_gateway.providers.saml.xml import (
    DS,
    MD,
    SAMLP,
    DocumentRefused,
    children,
    decode_base64,
    duration_seconds,
    name,
    parse,
    quoted,
    text_of,
    time_of,
)

# Parsing of the document.

MAX_METADATA = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`response_location` is where responses are sent; it differs from `location` if the IdP says so."""

    location: str
    response_location: str


@dataclass(frozen=True, slots=True)
class IdentitySystem:
    """`certificates` hold its signing keys, several during a key rollover. The first endpoint per binding is used."""

    entity_id: str
    certificates: tuple[x509.Certificate, ...] = field(repr=False)
    sign_on: Mapping[SamlBinding, Endpoint]
    logout: Mapping[SamlBinding, Endpoint]
    wants_signed_requests: bool = False
    valid_until: datetime | None = None
    cache_seconds: float | None = None


def read_metadata(
    data: bytes,
    *,
    entity_id: str = "",
    pinned: x509.Certificate | None = None,
    algorithms: Collection[str],
) -> IdentitySystem:
    """Return the IdP with *entity_id*, or the only one. Raise `DocumentRefused` if the document is invalid."""
    root = parse(data, limit=MAX_METADATA)
    if pinned is not None:
        root = verify_element(root, [pinned], algorithms)
    entity = _entity(root, entity_id)
    role = _role(entity)
    above = [root] if root is entity else [root, entity]
    ends = [end for each in (*above, role) if (end := time_of(each, "validUntil")) is not None]
    caches = [text for each in (*above, role) if (text := each.get("cacheDuration"))]
    seconds = [duration for text in caches if (duration := duration_seconds(text)) is not None]
    sign_on = _endpoints(role, "SingleSignOnService")
    if not sign_on:
        raise DocumentRefused("it has no SingleSignOnService with the redirect or the POST binding")
    return IdentitySystem(
        entity_id=str(entity.get("entityID")),
        certificates=_certificates(role),
        sign_on=sign_on,
        logout=_endpoints(role, "SingleLogoutService"),
        wants_signed_requests=role.get("WantAuthnRequestsSigned") in ("true", "1"),
        valid_until=min(ends, default=None),
        cache_seconds=min(seconds, default=None),
    )


def _entity(root: etree._Element, entity_id: str) -> etree._Element:
    if root.tag == name(MD, "EntityDescriptor"):
        entities = [root]
    elif root.tag == name(MD, "EntitiesDescriptor"):
        entities = [each for each in root.iter(name(MD, "EntityDescriptor")) if children(each, MD, "IDPSSODescriptor")]
    else:
        raise DocumentRefused("it is not SAML metadata")
    fitting = [each for each in entities if each.get("entityID") and entity_id in ("", each.get("entityID"))]
    if len(fitting) == 1:
        return fitting[0]
    if entity_id:
        raise DocumentRefused(f"it is not about {quoted(entity_id)}")
    raise DocumentRefused("it is about several identity systems, or none: name one with identitySystem")


def _role(entity: etree._Element) -> etree._Element:
    roles = [
        each
        for each in children(entity, MD, "IDPSSODescriptor")
        if SAMLP in (each.get("protocolSupportEnumeration") or "").split()
    ]
    if len(roles) != 1:
        raise DocumentRefused("it is not that of one identity system for SAML 2.0")
    return roles[0]


def _certificates(role: etree._Element) -> tuple[x509.Certificate, ...]:
    descriptors = [each for each in children(role, MD, "KeyDescriptor") if each.get("use") in (None, "signing")]
    texts = [text_of(each) for key in descriptors for each in key.iter(name(DS, "X509Certificate"))]
    certificates = tuple(_certificate(text) for text in texts)
    if not certificates:
        raise DocumentRefused("it has no certificate with a key for signatures")
    return certificates


def _certificate(text: str) -> x509.Certificate:
    try:
        certificate = x509.load_der_x509_certificate(decode_base64(text))
        key = certificate.public_key()
    except ValueError:
        raise DocumentRefused("a certificate cannot be read") from None
    try:
        check_strength(key)
    except ValueError as error:
        raise DocumentRefused(str(error)) from None
    return certificate


def _endpoints(role: etree._Element, kind: str) -> dict[SamlBinding, Endpoint]:
    known = {each.uri: each for each in SamlBinding}
    endpoints: dict[SamlBinding, Endpoint] = {}
    for element in children(role, MD, kind):
        binding = known.get(element.get("Binding") or "")
        if binding is None or binding in endpoints:
            continue
        location = element.get("Location") or ""
        endpoint = Endpoint(location, element.get("ResponseLocation") or location)
        for url in (endpoint.location, endpoint.response_location):
            if not is_safe(url) or not url.isascii() or not url.isprintable() or " " in url or "#" in url:
                raise DocumentRefused(f"a {kind} is not a https URL: {quoted(url)}")
        endpoints[binding] = endpoint
    return endpoints


# The name that errors use.
SYSTEM = "the identity system"
LEAST_REFRESH_SECONDS = 60.0
# Anyone can send responses that no key fits, so they must not cause as many requests to the IdP.
REFETCH_SECONDS = 30.0
STALE = timedelta(days=1)
TYPES = "application/samlmetadata+xml, application/xml;q=0.9, text/xml;q=0.8"

Read = Callable[[bytes], IdentitySystem]


class MetadataSource(Protocol):
    async def current(self) -> IdentitySystem: ...

    async def newer(self, seen: IdentitySystem) -> IdentitySystem: ...


class MetadataFile:
    """IdP metadata from a file, which is reloaded when it changes."""

    def __init__(self, path: str | os.PathLike[str], read: Read, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.file = WatchedFile(path, lambda name: _read_file(name, read), clock=clock)

    async def current(self) -> IdentitySystem:
        try:
            system = self.file.current()
        except ConfigurationError as error:
            raise ProviderError(_UNUSABLE, cause=error.cause, where=error.where) from None
        check_validity(system, self._clock.now())
        return system

    async def newer(self, seen: IdentitySystem) -> IdentitySystem:
        # `current` has just checked the file.
        return seen


class MetadataUrl:
    """The document at *url*. One event loop uses it.

    While the URL is unavailable, the last document is used for at most a day, and never beyond its ``validUntil``.
    """

    def __init__(
        self,
        url: str,
        read: Read,
        outbound: Outbound,
        *,
        refresh: timedelta = REFRESH,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.url = url
        self._read = read
        self._outbound = outbound
        self._refresh = refresh.total_seconds()
        self._clock = clock
        self._known: IdentitySystem | None = None
        self._fetched_at: datetime | None = None
        self._due = float("-inf")
        self._refetch_at = float("-inf")
        # Concurrent callers share one request.
        self._requests: Cache[int, IdentitySystem] = Cache(seconds=LEAST_REFRESH_SECONDS, clock=clock, entries=1)
        self._request = 0

    async def current(self) -> IdentitySystem:
        known = self._known
        if known is None or self._clock.monotonic() >= self._due:
            known = await self._refreshed(known)
        check_validity(known, self._clock.now())
        return known

    async def newer(self, seen: IdentitySystem) -> IdentitySystem:
        """Refetch the metadata, at most every `REFETCH_SECONDS`. No key of *seen* fits, so there may be a new one."""
        if self._known is seen and self._clock.monotonic() >= self._refetch_at:
            self._refetch_at = self._clock.monotonic() + REFETCH_SECONDS
            self._due = float("-inf")
        return await self.current()

    async def _refreshed(self, known: IdentitySystem | None) -> IdentitySystem:
        request = self._request
        try:
            system = await self._requests.fill(request, self._fetch)
        except ProviderError:
            if known is None or self._fetched_at is None or self._clock.now() - self._fetched_at > STALE:
                raise
            self._due = self._clock.monotonic() + LEAST_REFRESH_SECONDS
            return known
        if request == self._request:
            # This caller is the first of those that shared the request.
            self._request += 1
            self._known, self._fetched_at = system, self._clock.now()
            seconds = min(self._refresh, system.cache_seconds or self._refresh)
            self._due = self._clock.monotonic() + max(seconds, LEAST_REFRESH_SECONDS)
        return system

    async def _fetch(self) -> IdentitySystem:
        content = await self._outbound.fetch(self.url, accept=TYPES)
        try:
            return self._read(content)
        except DocumentRefused as refused:
            raise self._outbound.failure(self.url, f"its metadata cannot be used: {refused}") from None


def check_validity(system: IdentitySystem, now: datetime) -> None:
    if system.valid_until is not None and now >= system.valid_until:
        cause = f"the metadata was valid until {system.valid_until:%Y-%m-%d %H:%M:%S} UTC"
        raise ProviderError(_UNUSABLE, cause=cause, hint="get new metadata from the identity system")


_UNUSABLE = "the metadata of the identity system cannot be used"


def _read_file(path: str, read: Read) -> IdentitySystem:
    try:
        with Path(path).open("rb") as file:
            return read(file.read(MAX_METADATA + 1))
    except OSError as error:
        problem = Problem(error.strerror or "it cannot be opened", Place(path))
    except DocumentRefused as refused:
        problem = Problem(str(refused), Place(path))
    raise ConfigurationError(_UNUSABLE, problems=[problem])
