"""State of logins in progress, sealed, in a store that any worker can read.

    secret (in a cookie, a code, a device)  ->  digest: the key of the record
                                            ->  key: what it is sealed with

A reader of the store sees neither the secrets nor the values: a PKCE verifier or a nonce could be abused while its
sign-in is in progress.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

# Needed by `seal`. Imported here so that the first sign-in does not wait for it.
import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401

from ostiary.core.clock import Clock
from ostiary.errors import ProviderError
from ostiary_gateway.capabilities import ability
from ostiary_gateway.interfaces.token_store import RecordStore, TokenStore
from ostiary_gateway.sealing import derived_key, seal, unseal
from ostiary_gateway.sessions.records import MemoryRecords

# A JSON object, as it is read back from the store.
Value = Mapping[str, Any]


class Records:
    """Values of one *kind*, each under a secret. A secret of one kind opens no value of another kind."""

    def __init__(self, store: RecordStore, kind: str, lifetime: timedelta, *, clock: Clock) -> None:
        self._store = store
        self._kind = kind.encode()
        self._lifetime = lifetime
        self._clock = clock

    async def put(self, secret: str, value: Value) -> bool:
        """Store *value*. Return False if the secret is in use, which never happens with random ones of 256 bits."""
        sealed = seal(json.dumps(value, separators=(",", ":")).encode(), self._kind, secret)
        try:
            return await self._store.put_record(self._key(secret), sealed, self._clock.now() + self._lifetime)
        except ValueError:
            cause = "the state of the sign-in is too large"
            raise ProviderError("the sign-in cannot continue", cause=cause) from None

    async def find(self, secret: str) -> Value | None:
        return self._open(secret, await self._store.find_record(self._key(secret)))

    async def take(self, secret: str) -> Value | None:
        """Remove and return the value."""
        return self._open(secret, await self._store.take_record(self._key(secret)))

    def _open(self, secret: str, sealed: bytes | None) -> Value | None:
        if sealed is None:
            return None
        plain = unseal(sealed, self._kind, secret)
        try:
            # None: the record was written without knowledge of the secret.
            value = None if plain is None else json.loads(plain)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    def _key(self, secret: str) -> bytes:
        # A lookup by digest leaks nothing about other secrets through its timing.
        return derived_key(b"find", self._kind, secret)


def record_store(store: TokenStore, clock: Clock) -> RecordStore:
    """Return *store* if it stores records, or memory of this worker: then no other worker can finish its logins."""
    return ability(store, RecordStore) or MemoryRecords(clock=clock)
