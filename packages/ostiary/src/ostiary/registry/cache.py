"""Caches the responses of credential providers, with one run for all concurrent lookups of the same credentials.

    cached?  ->  is a run in progress? then wait  ->  run the provider in a thread  ->  cache  ->  wake all

The provider determines how long a response is valid, and for which other images. The keys are the kubelet's, byte for
byte. `CachedProvider.ask` never waits itself: it yields what must be waited for, so that threads and event loops run
the same logic.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.single_flight import SingleFlight, landing, wait
from ostiary.errors import CredentialError
from ostiary.registry.credentials import Credentials, Provenance, RegistryLogin, SourceKind
from ostiary.registry.kubelet.provider import TOKEN_CACHE, CredentialProvider
from ostiary.registry.kubelet.service_account import KubernetesServiceAccount, Presented
from ostiary.registry.metrics import NoRegistryMetrics, RegistryMetrics
from ostiary.wire.credential_provider import CacheKeyType, Response

GLOBAL = "<global>"
PURGE_SECONDS = 15 * 60.0
# The kubelet has no limit. Without one, a cache whose keys contain tokens would grow with every pod.
ENTRY_LIMIT = 4096
_LONGEST_PART = 0xFFFF


# --- keys ---


def _with_length(part: str | bytes) -> bytes:
    data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
    if len(data) > _LONGEST_PART:
        cause = f"its name or an annotation is longer than {_LONGEST_PART} bytes, which no cache key can hold"
        raise CredentialError("a service account cannot be used", cause=cause, code="credential-provider-failed")
    return len(data).to_bytes(2, "big") + data


def cache_key(base: str, service_account_key: bytes = b"") -> bytes:
    return _with_length(base) + _with_length(service_account_key)


def service_account_key(
    account: KubernetesServiceAccount, annotations: Mapping[str, str], *, token_hash: str = ""
) -> bytes:
    """Return the part of a key that separates accounts, and with a *token_hash* even the tokens of one account."""
    parts = [_with_length(text) for text in (account.namespace, account.name, account.uid)]
    parts.append(len(annotations).to_bytes(4, "big"))
    parts += [_with_length(text) for item in sorted(annotations.items()) for text in item]
    if token_hash:
        parts += [_with_length("token"), _with_length(token_hash)]
    return b"".join(parts)


class Target:
    """An image, and the keys under which a response for it may be cached, the most specific first."""

    __slots__ = ("bases", "keys", "registry", "repository")

    def __init__(self, repository: str) -> None:
        self.repository = repository
        self.registry = repository.partition("/")[0]
        self.bases = {
            CacheKeyType.IMAGE: self.repository,
            CacheKeyType.REGISTRY: self.registry,
            CacheKeyType.GLOBAL: GLOBAL,
        }
        self.keys = self.keys_for(b"")

    def keys_for(self, account_key: bytes) -> tuple[bytes, ...]:
        return tuple(cache_key(base, account_key) for base in self.bases.values())


# --- entries ---


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    credentials: Credentials
    expires_at: float


class AnswerCache:
    """Responses under their keys, each until it expires. Thread-safe."""

    def __init__(self, *, clock: Clock | None = None, limit: int = ENTRY_LIMIT) -> None:
        self._clock = clock or SYSTEM_CLOCK
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: dict[bytes, CachedAnswer] = {}
        self._purged_at = float("-inf")

    def get(self, keys: Iterable[bytes]) -> Credentials | None:
        """Return the response under the first of *keys* that has one."""
        now = self._clock.monotonic()
        if now - self._purged_at > PURGE_SECONDS:
            self._purge(now)
        for key in keys:
            # Without the lock: reading a dict is atomic, and most lookups end here.
            entry = self._entries.get(key)
            if entry is None:
                continue
            if now <= entry.expires_at:
                return entry.credentials
            self._drop(key, entry)
        return None

    def seconds_left(self, key: bytes) -> float | None:
        """Return how long *key* is still cached; None if it is not. Does not count as a lookup."""
        entry, now = self._entries.get(key), self._clock.monotonic()
        return None if entry is None or now > entry.expires_at else entry.expires_at - now

    def seconds_left_of(self, credentials: Credentials) -> float:
        """Return how long exactly this response is still cached; 0 if it is not."""
        now = self._clock.monotonic()
        with self._lock:
            ends = [entry.expires_at for entry in self._entries.values() if entry.credentials is credentials]
        return max(0.0, max(ends) - now) if ends else 0.0

    def count(self) -> int:
        """Return how many valid responses are cached."""
        now = self._clock.monotonic()
        with self._lock:
            return sum(now <= entry.expires_at for entry in self._entries.values())

    def put(self, key: bytes, credentials: Credentials, *, seconds: float) -> None:
        """Cache *credentials*, unless *seconds* is zero or less. The oldest entries are evicted."""
        if seconds <= 0:
            return
        entry = CachedAnswer(credentials, self._clock.monotonic() + seconds)
        with self._lock:
            self._entries.pop(key, None)
            while len(self._entries) >= self._limit:
                del self._entries[next(iter(self._entries))]
            self._entries[key] = entry

    def forget(self, credentials: Credentials) -> bool:
        """Evict exactly this response, and not a newer one that replaced it. Returns whether it was cached."""
        with self._lock:
            keys = [key for key, entry in self._entries.items() if entry.credentials is credentials]
            for key in keys:
                del self._entries[key]
        return bool(keys)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def keys(self) -> list[bytes]:
        with self._lock:
            return list(self._entries)

    def _drop(self, key: bytes, entry: CachedAnswer) -> None:
        with self._lock:
            if self._entries.get(key) is entry:
                del self._entries[key]

    def _purge(self, now: float) -> None:
        # Expired entries that are never looked up again would otherwise stay.
        with self._lock:
            self._purged_at = now
            self._entries = {key: entry for key, entry in self._entries.items() if now <= entry.expires_at}

    def _forget_the_parents_lock(self) -> None:
        self._lock = threading.Lock()


# --- one provider ---


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """The credentials of a provider for an image.

    `cached`: it was not run for this lookup, nor for a concurrent one.
    """

    credentials: Credentials
    cached: bool


class _SharedRun(Future[Credentials]):
    """One run of a provider, shared by all lookups that wait for it."""

    def __init__(self, target: Target, *, speaks_for_all: bool) -> None:
        super().__init__()
        self.target = target
        # Whether its failure also applies to other images with the same key.
        self.speaks_for_all = speaks_for_all
        self.kind: CacheKeyType | None = None
        self.landed = landing(self)

    def serves(self, target: Target) -> bool:
        if self.kind is None:
            return self.speaks_for_all or self.target.repository == target.repository
        return self.target.bases[self.kind] == target.bases[self.kind]


class CachedProvider:
    """A provider and its cached responses. Concurrent lookups of the same credentials share one run.

    The kubelet shares a run between lookups of one image. Here, once a response has revealed its key type, all lookups
    with that key share a run; until then all lookups for one registry wait for the first response.
    """

    def __init__(
        self,
        provider: CredentialProvider,
        *,
        clock: Clock | None = None,
        metrics: RegistryMetrics | None = None,
        limit: int = ENTRY_LIMIT,
    ) -> None:
        self.provider = provider
        self.config = provider.config
        self.cache = AnswerCache(clock=clock, limit=limit)
        self._metrics = metrics or NoRegistryMetrics()
        self._source = Provenance(SourceKind.PROVIDER, provider.config.name)
        self._runs: SingleFlight[_SharedRun] = SingleFlight(thread_name="ostiary-credential-provider")
        self._expected: CacheKeyType | None = None
        _living.add(self)

    def get_cached(self, target: Target) -> Credentials | None:
        """Return what is cached for *target* regardless of the service account. Fast path of most lookups."""
        credentials = self.cache.get(target.keys)
        self._metrics.cache(self.config.name, hit=credentials is not None)
        return credentials

    def ask(self, target: Target, presented: Presented | None = None) -> Generator[Future[None], None, ProviderAnswer]:
        """Yield what must be waited for and return the credentials; raises `CredentialError`."""
        account_key = self._account_key(presented)
        keys = target.keys_for(account_key)
        credentials = self.cache.get(keys)
        if presented is not None:
            self._metrics.cache(self.config.name, hit=credentials is not None)
        narrow = False
        while credentials is None:
            joined = self._join(target, keys, account_key, presented, narrow=narrow)
            if isinstance(joined, Credentials):
                credentials = joined
                break
            while not joined.done():
                yield joined.landed
            if joined.serves(target):
                return ProviderAnswer(wait(joined), cached=False)
            # The run was for another image and its result does not apply. From here on use a run of its own, like the
            # kubelet.
            narrow = True
        return ProviderAnswer(credentials, cached=True)

    def _account_key(self, presented: Presented | None) -> bytes:
        if presented is None:
            return b""
        attributes = self.config.token_attributes
        by_token = attributes is not None and attributes.cache_type == TOKEN_CACHE
        token_hash = presented.token_hash if by_token else ""
        return service_account_key(presented.account, presented.annotations, token_hash=token_hash)

    def _join(
        self,
        target: Target,
        keys: tuple[bytes, ...],
        account_key: bytes,
        presented: Presented | None,
        *,
        narrow: bool,
    ) -> _SharedRun | Credentials:
        with self._runs.lock:
            kind = CacheKeyType.IMAGE if narrow else self._expected or CacheKeyType.REGISTRY
            # Two tokens of one account need two runs: the response may depend on the token.
            key = (target.bases[kind], account_key, presented and presented.token_hash)
            run = self._runs.running(key)
            if run is not None:
                return run
            # Check again with the lock held: the run that we wanted to join may just have ended.
            credentials = self.cache.get(keys)
            if credentials is not None:
                return credentials
            run = _SharedRun(target, speaks_for_all=self._expected is not None)
            work = partial(self._ask_provider, run, account_key, presented)
            return self._runs.start(run, work, settle=partial(self._learn_kind, run), key=key)

    def _ask_provider(self, run: _SharedRun, account_key: bytes, presented: Presented | None) -> Credentials:
        response = self.provider.run(run.target.repository, presented)
        credentials = self._credentials(response, presented)
        run.kind = response.cache_key_type
        key = cache_key(run.target.bases[run.kind], account_key)
        self.cache.put(key, credentials, seconds=self._seconds(response))
        return credentials

    def _learn_kind(self, run: _SharedRun, credentials: Credentials | None, error: BaseException | None) -> None:
        self._expected = run.kind or self._expected

    def _credentials(self, response: Response, presented: Presented | None) -> Credentials:
        logins = [(key, RegistryLogin(basic.username, basic.password)) for key, basic in response.auth.items()]
        account = presented.account if presented else None
        # Marked as cached already, for later lookups, which must be fast.
        return Credentials(logins, self._source, service_account=account, cached=True)

    def _seconds(self, response: Response) -> float:
        duration = response.cache_duration
        return (self.config.default_cache_duration if duration is None else duration).total_seconds()


_living: weakref.WeakSet[CachedProvider] = weakref.WeakSet()


def _after_fork() -> None:
    for provider in list(_living):
        provider.cache._forget_the_parents_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
