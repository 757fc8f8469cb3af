"""Remembers which messages of other systems were used, where each is good once: tokens of platforms, logouts.

Called by token exchange, and by what takes logouts. They are objects of the token store, and not records: of those the
store keeps the latest so many, so whoever begins enough logins, or has enough tokens of their own, could make a used
token good again. If there is no room for one more, the exchange is refused.
"""

from __future__ import annotations

from datetime import datetime

from ostiary.core.clock import Clock
from ostiary.core.secrets.sealing import derived_key
from ostiary.interfaces.store_abilities.stored_objects import ObjectStore, StoredObject

USED = "used-token"
# With each one that is written down, so many are looked at, and those that have expired are deleted.
SWEPT_AT_ONCE = 20
_PURPOSE = b"exchanged token"


class UsedTokens:
    def __init__(self, store: ObjectStore, *, clock: Clock, kind: str = USED) -> None:
        self._store = store
        self._kind = kind
        self._clock = clock
        self._swept = ""

    async def use_up(self, provider: str, token_id: str, *, until: datetime) -> bool:
        """Write down that this token of *provider* was used, until it expires; False if it was used before.

        Of concurrent callers exactly one gets True. Raises `ProviderError` if it cannot be written down.
        """
        await self._sweep()
        name = _name_of(provider, token_id)
        known = await self._store.find_object(self._kind, name)
        if known is not None and not self._has_expired(known):
            return False
        version = 0 if known is None else known.version
        data = until.isoformat().encode()
        return await self._store.put_object(self._kind, name, data, version=version) is not None

    async def was_used(self, provider: str, token_id: str) -> bool:
        """Whether it was, and is still remembered. Raises `ProviderError` if nobody can tell."""
        known = await self._store.find_object(self._kind, _name_of(provider, token_id))
        return known is not None and not self._has_expired(known)

    async def _sweep(self) -> None:
        page = await self._store.list_objects(self._kind, after=self._swept, limit=SWEPT_AT_ONCE)
        for used in page:
            if self._has_expired(used):
                await self._store.delete_object(self._kind, used.name, version=used.version)
        # From the beginning again, when all were looked at.
        self._swept = page[-1].name if len(page) == SWEPT_AT_ONCE else ""

    def _has_expired(self, used: StoredObject) -> bool:
        return datetime.fromisoformat(used.data.decode()) <= self._clock.now()


def _name_of(provider: str, token_id: str) -> str:
    return derived_key(b"find", _PURPOSE, f"{provider}\0{token_id}").hex()
