"""What a login under way remembers, sealed, in a store that any worker can read.

    secret (in a cookie, a code, a device)  ->  digest: where the record lies
                                            ->  key: what it is sealed with

Called by the flows, the command line's codes and the device codes. Whoever reads the store finds neither the secrets
nor what belongs to them: a PKCE verifier and a nonce are of use to others as long as their login is under way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ostiary.core.abilities import ability
from ostiary.core.clock import Clock
from ostiary.core.secrets.sealing import derived_key, seal, unseal
from ostiary.core.tokens.records import MemoryRecords
from ostiary.errors import ProviderError
from ostiary.interfaces.token_store import RecordStore, TokenStore

Value = Mapping[str, Any]


class Records:
    """Values of one *kind*, each under a secret. The secrets of one kind are worth nothing as those of another."""

    def __init__(self, store: RecordStore, kind: str, lifetime: timedelta, *, clock: Clock) -> None:
        self._store = store
        self._kind = kind.encode()
        self._lifetime = lifetime
        self._clock = clock

    async def put(self, secret: str, value: Value) -> bool:
        """False if there is such a secret already, which random ones of 256 bits never are."""
        sealed = seal(json.dumps(value, separators=(",", ":")).encode(), self._kind, secret)
        try:
            return await self._store.put_record(self._found_by(secret), sealed, self._clock.now() + self._lifetime)
        except ValueError:
            cause = "the state of the sign-in is too large"
            raise ProviderError("the sign-in cannot continue", cause=cause) from None

    async def find(self, secret: str) -> Value | None:
        return self._opened(secret, await self._store.find_record(self._found_by(secret)))

    async def take(self, secret: str) -> Value | None:
        """The value, once."""
        return self._opened(secret, await self._store.take_record(self._found_by(secret)))

    def _opened(self, secret: str, sealed: bytes | None) -> Value | None:
        if sealed is None:
            return None
        plain = unseal(sealed, self._kind, secret)
        try:
            # None: somebody wrote into the store who does not have the secret.
            value = None if plain is None else json.loads(plain)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    def _found_by(self, secret: str) -> bytes:
        # Looking up a digest also tells nothing by its timing about the secrets there are.
        return derived_key(b"find", self._kind, secret)


def record_store(store: TokenStore, clock: Clock) -> RecordStore:
    """*store*, if it keeps records too; else this worker's memory, and then no other worker can finish its logins."""
    return ability(store, RecordStore) or MemoryRecords(clock=clock)
