"""Signing keys in the operator's files, or in a device or key service: the first one signs, all are published.

To rotate, add the new key as a further file, wait until it is published everywhere, move it to the front, and remove
the old one when its last JWT has expired. A changed file is read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from ostiary.core.clock import Clock
from ostiary.core.watched_file import WatchedFile
from ostiary.errors import ConfigurationError, OstiaryError
from ostiary.keys.address import KeyAddress
from ostiary_gateway.issuer.keys import ALWAYS, NEVER, KeyRing, RingKey, SigningKey
from ostiary_gateway.settings.kinds import KeyPlace

LARGEST_KEY_FILE = 64 * 1024


class KeyFiles:
    """`SigningKeySource` of keys in files, and of device keys by their addresses."""

    def __init__(self, places: Sequence[KeyPlace], clock: Clock) -> None:
        self._keys = [
            WatchedFile(place, read_key_file, clock=clock) if isinstance(place, Path) else _DeviceKeyPlace(place)
            for place in places
        ]
        self.ring = KeyRing()

    async def refresh(self) -> None:
        # Opening a device key may block, so it runs in a thread, once. A file is checked at each refresh.
        keys = [
            key.current() if isinstance(key, WatchedFile) else await asyncio.to_thread(key.current)
            for key in self._keys
        ]
        self.ring = KeyRing(tuple(_ring_key(key, is_first=index == 0) for index, key in enumerate(keys)))

    async def rotate(self) -> bool:
        return False  # the operator rotates these keys


class _DeviceKeyPlace:
    """A device key: opened at its first use and kept open."""

    def __init__(self, address: KeyAddress) -> None:
        self._address = address
        self._key: SigningKey | None = None

    def current(self) -> SigningKey:
        if self._key is None:
            self._key = read_device_key(self._address)
        return self._key


def read_device_key(address: KeyAddress) -> SigningKey:
    """Open the key at *address*. Raises `ConfigurationError`."""
    # Imported here because only device keys need it.
    from ostiary.keys.opening import open_configured_key

    try:
        return SigningKey.from_device(open_configured_key(address))
    except OstiaryError as error:
        cause = ": ".join(filter(None, (error.summary, error.cause)))
        hint = error.hint
    except ValueError as error:
        cause, hint = str(error), "name a key on the curve P-256"
    summary = "a signing key of the issuer cannot be used"
    raise ConfigurationError(summary, cause=cause, where=str(address), hint=hint, code="issuer-key-unusable")


def _ring_key(key: SigningKey, *, is_first: bool) -> RingKey:
    return RingKey(key.id, key.jwk, key, signs_from=ALWAYS, signs_until=NEVER if is_first else ALWAYS)


def read_key_file(path: str) -> SigningKey:
    """Read the key in the file. Raises `ConfigurationError`, which never quotes the file."""
    cause = ""
    try:
        with open(path, "rb") as file:
            pem = file.read(LARGEST_KEY_FILE)
        return SigningKey.from_pem(pem)
    except OSError as error:
        cause = error.strerror or type(error).__name__
    except ValueError as error:
        cause = str(error)
    raise ConfigurationError(
        "a signing key of the issuer cannot be used",
        cause=cause,
        where=path,
        hint="openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem",
        code="issuer-key-unusable",
    )
