"""Signing keys in files of the operator: the first one signs, and all of them are published.

Called by the issuer. To rotate, write the new key as a further file, wait until it is published everywhere, move it to
the front, and remove the old one when its last JWT has ended. A file that was changed is read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ostiary.core.clock import Clock
from ostiary.core.watched_file import WatchedFile
from ostiary.errors import ConfigurationError
from ostiary.gateway.issuer.key_ring import ALWAYS, NEVER, KeyRing, RingKey
from ostiary.gateway.issuer.signing_key import SigningKey

LARGEST_KEY_FILE = 64 * 1024


class KeyFiles:
    """The keys in the files at *paths*."""

    def __init__(self, paths: Sequence[Path], clock: Clock) -> None:
        self._files = [WatchedFile(path, read_key_file, clock=clock) for path in paths]
        self.ring = KeyRing()

    async def refresh(self) -> None:
        keys = [file.current() for file in self._files]
        self.ring = KeyRing(tuple(_ring_key(key, is_first=index == 0) for index, key in enumerate(keys)))

    async def rotate(self) -> bool:
        return False  # the operator does


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
