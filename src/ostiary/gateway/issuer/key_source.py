"""Where signing keys come from: files of the operator, or the token store. What the issuer asks of either."""

from __future__ import annotations

from typing import Protocol

from ostiary.gateway.issuer.key_ring import KeyRing


class SigningKeySource(Protocol):
    """The keys of one issuer. `ring` is what was read last, and stays when nothing can be read."""

    ring: KeyRing

    async def refresh(self) -> None:
        """Read the keys again. Raises `ProviderError` or `ConfigurationError` if that is not possible."""

    async def rotate(self) -> bool:
        """Do what is due: make the next key, drop the last. True if anything changed."""
