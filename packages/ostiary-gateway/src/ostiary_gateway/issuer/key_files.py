"""Signing keys in files of the operator, or kept elsewhere: the first one signs, and all of them are published.

Called by the issuer. To rotate, write the new key as a further file, wait until it is published everywhere, move it to
the front, and remove the old one when its last JWT has ended. A file that was changed is read again.
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
    """The keys in files, and those that are kept elsewhere, by their addresses."""

    def __init__(self, places: Sequence[KeyPlace], clock: Clock) -> None:
        self._keys = [
            WatchedFile(place, read_key_file, clock=clock) if isinstance(place, Path) else _DeviceKeyPlace(place)
            for place in places
        ]
        self.ring = KeyRing()

    async def refresh(self) -> None:
        # A device may take a while, and is asked once; a file is looked at again and again.
        keys = [
            key.current() if isinstance(key, WatchedFile) else await asyncio.to_thread(key.current)
            for key in self._keys
        ]
        self.ring = KeyRing(tuple(_ring_key(key, is_first=index == 0) for index, key in enumerate(keys)))

    async def rotate(self) -> bool:
        return False  # the operator does


class _DeviceKeyPlace:
    """A key that is kept elsewhere: opened when it is first asked for, and held."""

    def __init__(self, address: KeyAddress) -> None:
        self._address = address
        self._key: SigningKey | None = None

    def current(self) -> SigningKey:
        if self._key is None:
            self._key = read_device_key(self._address)
        return self._key


def read_device_key(address: KeyAddress) -> SigningKey:
    """The key at *address*, open; raises `ConfigurationError`."""
    # Imported here: only those need it whose key is kept elsewhere.
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
    """The key in the file; raises `ConfigurationError`, which never quotes the file."""
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
