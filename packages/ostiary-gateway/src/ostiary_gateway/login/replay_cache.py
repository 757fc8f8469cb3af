"""Replay cache for single-use messages: platform tokens, proofs of identity, and logouts.

The entries are objects of the token store, not records. The store evicts the oldest records, so an attacker who starts
enough logins, or has enough tokens, could make a used token valid again. If the store has no room for another entry,
the message is denied. Each user may use a limited part of that room.
"""

from __future__ import annotations

from datetime import datetime

from ostiary.core.clock import Clock
from ostiary.errors import LoginRefused
from ostiary_gateway.capabilities import ability
from ostiary_gateway.interfaces.store_capabilities import CountsStoredObjects, ObjectStore, StoredObject
from ostiary_gateway.sealing import derived_key

USED = "used-token"
# Approximate limit of one user within `MOST_OBJECTS`: workers that count at the same moment may each add one more.
USED_PER_USER = 1_000
# Entries checked for expiry with each write. Expired ones are deleted.
SWEPT_AT_ONCE = 20
# Users whose waiting time is cached.
MOST_WAITING = 1_000
_PURPOSE = b"exchanged token"
_PURPOSE_OF_USER = b"user of exchanged tokens"
_USER_BYTES = 16


class UsedTokens:
    """Replay cache: the identifiers of used single-use messages, until the messages expire."""

    def __init__(self, store: ObjectStore, *, clock: Clock, kind: str = USED) -> None:
        self._store = store
        self._counting = ability(store, CountsStoredObjects)
        self._kind = kind
        self._clock = clock
        self._swept = ""
        # Users at their limit, by prefix, with the expiry of their oldest entry.
        self._waiting: dict[str, datetime] = {}

    async def use_up(self, provider: str, token_id: str, *, until: datetime, username: str = "") -> bool:
        """Mark a token of *provider* as used until it expires. Return False if it was used before.

        Of concurrent callers exactly one gets True. Raises `ProviderError` if the entry cannot be stored, and
        `LoginRefused` if *username* has too many unexpired entries. Without a name there is no such limit.
        """
        await self._sweep()
        mark = _name_of(provider, token_id)
        prefix = _prefix_of(provider, username) if username else ""
        # Entries of earlier versions have no prefix.
        if prefix and await self._is_known(mark):
            return False
        known = await self._store.find_object(self._kind, prefix + mark)
        if known is not None and not self._has_expired(known):
            return False
        if known is None and prefix:
            await self._check_room(prefix)
        version = 0 if known is None else known.version
        data = until.isoformat().encode()
        return await self._store.put_object(self._kind, prefix + mark, data, version=version) is not None

    async def _check_room(self, prefix: str) -> None:
        """Delete the user's expired entries. Raise `LoginRefused` if there are still too many."""
        if self._counting is None:
            return
        until = self._waiting.get(prefix)
        if until is None or until <= self._clock.now():
            if await self._counting.count_objects(self._kind, prefix) < USED_PER_USER:
                self._waiting.pop(prefix, None)
                return
            until = await self._sweep_user(prefix)
            if until is None:
                return
            if len(self._waiting) >= MOST_WAITING:
                del self._waiting[next(iter(self._waiting))]
            self._waiting[prefix] = until
        raise LoginRefused(
            "this user has signed in too often with proofs that are good once: try again later",
            cause=f"there are {USED_PER_USER} that have not expired",
            retry_after=max((until - self._clock.now()).total_seconds(), 1.0),
        )

    async def _sweep_user(self, prefix: str) -> datetime | None:
        """Delete one user's expired entries. Return when the next one expires, or None if there is room again."""
        page = await self._store.list_objects(self._kind, after=prefix, limit=USED_PER_USER)
        own = [used for used in page if used.name.startswith(prefix)]
        for used in own:
            if self._has_expired(used):
                await self._store.delete_object(self._kind, used.name, version=used.version)
        living = [_expiry(used) for used in own if not self._has_expired(used)]
        return min(living) if len(living) >= USED_PER_USER else None

    async def was_used(self, provider: str, token_id: str) -> bool:
        """Report whether the token was used and its entry has not expired.

        Raises `ProviderError` if the store is unavailable.
        """
        return await self._is_known(_name_of(provider, token_id))

    async def _is_known(self, name: str) -> bool:
        known = await self._store.find_object(self._kind, name)
        return known is not None and not self._has_expired(known)

    async def _sweep(self) -> None:
        page = await self._store.list_objects(self._kind, after=self._swept, limit=SWEPT_AT_ONCE)
        for used in page:
            if self._has_expired(used):
                await self._store.delete_object(self._kind, used.name, version=used.version)
        # Start over after the last entry.
        self._swept = page[-1].name if len(page) == SWEPT_AT_ONCE else ""

    def _has_expired(self, used: StoredObject) -> bool:
        return _expiry(used) <= self._clock.now()


def _expiry(used: StoredObject) -> datetime:
    return datetime.fromisoformat(used.data.decode())


def _prefix_of(provider: str, username: str) -> str:
    return derived_key(b"find", _PURPOSE_OF_USER, f"{provider}\0{username}").hex()[: 2 * _USER_BYTES] + "."


def _name_of(provider: str, token_id: str) -> str:
    return derived_key(b"find", _PURPOSE, f"{provider}\0{token_id}").hex()
