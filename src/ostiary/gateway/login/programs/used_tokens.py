"""Remembers which tokens of platforms were used, where each is good once. Called by token exchange.

They are objects of the token store, and not records: of those the store keeps the latest so many, so whoever begins
enough logins, or has enough tokens of their own, could make a used token good again. If there is no room for one more,
the exchange is refused.
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
    def __init__(self, store: ObjectStore, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._swept = ""

    async def use_up(self, provider: str, token_id: str, *, until: datetime) -> bool:
        """Write down that this token of *provider* was used, until it expires; False if it was used before.

        Of concurrent callers exactly one gets True. Raises `ProviderError` if it cannot be written down.
        """
        await self._sweep()
        name = derived_key(b"find", _PURPOSE, f"{provider}\0{token_id}").hex()
        known = await self._store.find_object(USED, name)
        if known is not None and not self._has_expired(known):
            return False
        version = 0 if known is None else known.version
        data = until.isoformat().encode()
        return await self._store.put_object(USED, name, data, version=version) is not None

    async def _sweep(self) -> None:
        page = await self._store.list_objects(USED, after=self._swept, limit=SWEPT_AT_ONCE)
        for used in page:
            if self._has_expired(used):
                await self._store.delete_object(USED, used.name, version=used.version)
        # From the beginning again, when all were looked at.
        self._swept = page[-1].name if len(page) == SWEPT_AT_ONCE else ""

    def _has_expired(self, used: StoredObject) -> bool:
        return datetime.fromisoformat(used.data.decode()) <= self._clock.now()
