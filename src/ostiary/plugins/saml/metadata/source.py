"""Where metadata comes from: a file, which is looked at again at every use, or an address, which is asked now and then.

Called by the provider. While an address cannot be reached, what it said before holds for a day at most, and never
beyond the time that the document itself names. If a signature fits no key, the address is asked again, but seldom.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from ostiary.core.caching.cache import Cache
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.watched_file import WatchedFile
from ostiary.errors import ConfigurationError, ProviderError
from ostiary.model import Place, Problem
from ostiary.plugins.common.outbound import Outbound
from ostiary.plugins.saml.metadata.reading import MAX_METADATA, IdentitySystem
from ostiary.plugins.saml.settings import REFRESH
from ostiary.plugins.saml.xml.documents import DocumentRefused

# What errors call it.
SYSTEM = "the identity system"
LEAST_REFRESH_SECONDS = 60.0
# Responses that no key fits may come from anybody, and must not become as many questions to the identity system.
REFETCH_SECONDS = 30.0
STALE = timedelta(days=1)
TYPES = "application/samlmetadata+xml, application/xml;q=0.9, text/xml;q=0.8"

Read = Callable[[bytes], IdentitySystem]


class MetadataSource(Protocol):
    async def current(self) -> IdentitySystem: ...

    async def newer(self, seen: IdentitySystem) -> IdentitySystem: ...


class MetadataFile:
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
        # Looked at a moment ago.
        return seen


class MetadataUrl:
    """The document at *url*. One event loop uses it."""

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
        """After a signature that no key of *seen* fits: the identity system may have a new one."""
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
            # The first of those that waited for it.
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
