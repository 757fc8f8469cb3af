"""Signing keys in the token store, shared by all workers and replicas: one object contains the whole ring.

Public keys are stored in the clear, private keys sealed with a secret that the store does not have. Updates use compare
and set, so one replica rotates the keys, and the others read its result.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from ostiary.core.clock import Clock
from ostiary.core.watched_file import WatchedFile
from ostiary.errors import ProviderError
from ostiary.model import Secret
from ostiary_gateway.interfaces.store_capabilities import ObjectStore
from ostiary_gateway.issuer.keys import KeyLife, KeyRing, RingKey, SigningKey, rotated_now, with_due_changes
from ostiary_gateway.issuer.sealing_secrets import read_sealing_secrets
from ostiary_gateway.sealing import seal_text, unseal_text

KIND, NAME = "issuer-keys", "ring"
_SEALED = b"signing key of the issuer"
_TIMES = ("signsFrom", "signsUntil", "publishedUntil")
# Attempts of an update while other replicas change the ring.
ATTEMPTS = 5


class StoredKeys:
    """`SigningKeySource` of the ring in *store*, sealed with the secrets in the file at *secret_file*."""

    def __init__(self, store: ObjectStore, secret_file: str, life: KeyLife, clock: Clock) -> None:
        self._store = store
        self._secrets = WatchedFile(secret_file, read_sealing_secrets, clock=clock)
        self._life = life
        self._clock = clock
        self._version = 0
        self.ring = KeyRing()

    async def refresh(self) -> None:
        secrets = self._secrets.current()
        stored = await self._store.find_object(KIND, NAME)
        known_keys = {key.id: key for key in self.ring.keys if key.private is not None}
        self._version = 0 if stored is None else stored.version
        self.ring = KeyRing() if stored is None else decode_ring(stored.data, secrets, known_keys)

    async def rotate(self) -> bool:
        """Rotate the keys if due.

        Does nothing if the current key cannot be opened: then this replica has another secret, and the others could not
        open the keys that it makes.
        """
        signing = self.ring.signing(self._clock.now())
        if signing is not None and signing.private is None:
            return False
        return await self._change(lambda ring, now: with_due_changes(ring, now, self._life, self._new_key))

    async def rotate_now(self, *, withdraw: bool = False) -> None:
        """Sign with a new key now; see `keys.rotated_now`."""
        await self._change(lambda ring, now: rotated_now(ring, now, self._life, self._new_key, withdraw=withdraw))

    async def _change(self, change: Callable[[KeyRing, datetime], KeyRing]) -> bool:
        for _ in range(ATTEMPTS):
            changed = change(self.ring, self._clock.now())
            if changed is self.ring:
                return False
            version = await self._store.put_object(KIND, NAME, encode_ring(changed), version=self._version)
            if version is not None:
                self.ring, self._version = changed, version
                return True
            # Another replica wrote first, so the change may no longer be due.
            await self.refresh()
        raise ProviderError("the signing keys cannot be changed", cause="others change them all the time")

    def _new_key(self) -> RingKey:
        key = SigningKey.generate()
        sealed = seal_text(key.pem().decode(), _SEALED, self._secrets.current()[0].reveal())
        return RingKey(key.id, key.jwk, key, sealed=sealed)


def encode_ring(ring: KeyRing) -> bytes:
    keys = [
        {
            "jwk": dict(key.jwk),
            "sealed": key.sealed,
            "signsFrom": key.signs_from.isoformat(),
            "signsUntil": key.signs_until.isoformat(),
            "publishedUntil": key.published_until.isoformat(),
        }
        for key in ring.keys
    ]
    return json.dumps({"keys": keys}).encode()


def decode_ring(data: bytes, secrets: tuple[Secret, ...], known: dict[str, RingKey]) -> KeyRing:
    """Decode a ring. Raises `ProviderError` for invalid data. *known* are keys that were opened before."""
    try:
        return KeyRing(tuple(_decode_key(fields, secrets, known) for fields in json.loads(data)["keys"]))
    except (ValueError, KeyError, TypeError):
        pass
    raise ProviderError("the signing keys cannot be read", cause="what the token store holds is no ring of keys")


def _decode_key(fields: dict[str, Any], secrets: tuple[Secret, ...], known: dict[str, RingKey]) -> RingKey:
    jwk = {str(name): str(value) for name, value in fields["jwk"].items()}
    before = known.get(jwk["kid"])
    sealed = str(fields["sealed"])
    private = before.private if before is not None and before.sealed == sealed else _open(sealed, jwk["kid"], secrets)
    signs_from, signs_until, published_until = (_time(fields[name]) for name in _TIMES)
    # Publish the public half of the sealed key, not the stored JWK: an attacker who can write to the store could
    # replace the JWK, but cannot seal a key.
    published = jwk if private is None else private.jwk
    return RingKey(jwk["kid"], published, private, signs_from, signs_until, published_until, sealed)


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time has no zone")
    return moment


def _open(sealed: str, key_id: str, secrets: tuple[Secret, ...]) -> SigningKey | None:
    for secret in secrets:
        pem = unseal_text(sealed, _SEALED, secret.reveal())
        if pem is not None:
            key = SigningKey.from_pem(pem.encode())
            return key if key.id == key_id else None
    return None
