"""Ownership of the token store: the store is used only while it is confirmed to belong to this gateway.

Two gateways with different policies that accidentally share a store would accept each other's tokens. Therefore a store
that records its owner is claimed before its first use and confirmed every few seconds. Until it is confirmed, and while
it belongs to another gateway, every use of the store fails: no user gets in, and nothing is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import cast

from ostiary.core.text import printable
from ostiary.errors import ProviderError
from ostiary_gateway.capabilities import ability
from ostiary_gateway.interfaces.store_capabilities import OwnedStore
from ostiary_gateway.interfaces.token_store import TokenStore

CONFIRM_SECONDS = 5.0
RETRY_SECONDS = 1.0
CONFIRMING_OWNER = "confirming whose the token store is"  # the name of the task that runs `StoreOwner.run`
HINT = (
    "give each gateway a schema or a prefix of its own; if this is the same gateway under a new address: "
    "ostiary-gateway store check --take-over"
)

log = logging.getLogger("ostiary.gateway")


class StoreOwner:
    """Tracks whether *store* belongs to *name*, the external URL of this gateway."""

    def __init__(self, store: OwnedStore, name: str) -> None:
        self._store = store
        self.name = name
        self.is_confirmed = False
        self._lock = asyncio.Lock()
        self._other = ""

    async def run(self) -> None:
        """Confirm the ownership until cancelled: an operator may move the store to another gateway."""
        while True:
            try:
                await self.confirm()
            except ProviderError as error:
                if not self._other:
                    # The store is unavailable, which other components report. The last confirmed owner stays valid.
                    log.debug("the owner of the token store was not confirmed", extra={"cause": error.summary})
            await asyncio.sleep(CONFIRM_SECONDS if self.is_confirmed else RETRY_SECONDS)

    async def ensure(self) -> None:
        """Call `confirm` unless the ownership is confirmed. Concurrent callers share one query."""
        if not self.is_confirmed:
            async with self._lock:
                # While the store belongs to another gateway, only `run` queries it, not every request.
                if self._other:
                    raise owned_by_another(self._other, self.name)
                if not self.is_confirmed:
                    await self.confirm()

    async def confirm(self) -> None:
        """Claim the store. Raises `ProviderError` if it belongs to another gateway or is unavailable."""
        owner = await self._store.claim(self.name)
        self._note("" if owner == self.name else owner)
        self.is_confirmed = owner == self.name
        if not self.is_confirmed:
            raise owned_by_another(owner, self.name)

    async def change(self, name: str) -> None:
        """Change the name to a new external URL. Raises and changes nothing if the store belongs to another gateway."""
        owner = await self._store.claim(name)
        if owner != name:
            raise owned_by_another(owner, name)
        self.name, self.is_confirmed = name, True

    @property
    def trouble(self) -> str:
        """Why the replica is not ready; empty if the ownership is confirmed."""
        if self._other:
            return "it belongs to another gateway: requests are refused, see the log"
        return "" if self.is_confirmed else "its owner is not confirmed yet"

    def _note(self, other: str) -> None:
        if other == self._other:
            return
        self._other = other
        if other:
            extra = {"owner": printable(other), "external_url": self.name, "hint": HINT}
            log.error("the token store belongs to another gateway: requests are refused with 503", extra=extra)
        else:
            log.warning("the token store belongs to this gateway again")


def owned_by_another(owner: str, name: str) -> ProviderError:
    return ProviderError(
        "the token store belongs to another gateway",
        cause=f"it is the store of {printable(owner)}, and this is {printable(name)}",
        hint=HINT,
        code="token-store-of-another-gateway",
    )


def guard(store: TokenStore, name: str) -> tuple[TokenStore, StoreOwner | None]:
    """Wrap *store* so that it is usable only while it belongs to *name*.

    Returns it unchanged if it records no owner or *name* is empty.
    """
    owned = ability(store, OwnedStore) if name else None
    if owned is None:
        return store, None
    owner = StoreOwner(owned, name)
    return cast(TokenStore, _GuardedStore(store, owner)), owner


class _GuardedStore:
    """Proxy of a store that confirms the owner before each call. `close` is always allowed."""

    def __init__(self, store: TokenStore, owner: StoreOwner) -> None:
        self._store = store
        self._owner = owner

    def __getattr__(self, name: str) -> object:
        member = getattr(self._store, name)
        if not callable(member) or name == "close":
            return member
        return _guard(member, self._owner)


def _guard(method: Callable[..., Awaitable[object]], owner: StoreOwner) -> Callable[..., Awaitable[object]]:
    async def call(*arguments: object, **options: object) -> object:
        if not owner.is_confirmed:
            await owner.ensure()
        return await method(*arguments, **options)

    return call
