"""Uses the token store only while it is certain that it belongs to this gateway.

Two gateways with different policies that share a store by mistake would accept each other's tokens. So a store that
knows its owner is claimed before anything else is done with it, and asked again every few seconds. Until the answer is
there, and whenever it is somebody else, every use of the store fails: nobody gets in, and nothing is written.

Called by the app when it opens the store, and by ``serve --check --online``.
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
    """Knows whether *store* belongs to *name*, which is the gateway's external URL."""

    def __init__(self, store: OwnedStore, name: str) -> None:
        self._store = store
        self.name = name
        self.is_confirmed = False
        self._lock = asyncio.Lock()
        self._other = ""

    async def run(self) -> None:
        """Confirm it as long as the gateway runs: somebody may take the store over."""
        while True:
            try:
                await self.confirm()
            except ProviderError as error:
                if not self._other:
                    # The store is away, which others report. It was ours if it was ours before.
                    log.debug("the owner of the token store was not confirmed", extra={"cause": error.summary})
            await asyncio.sleep(CONFIRM_SECONDS if self.is_confirmed else RETRY_SECONDS)

    async def ensure(self) -> None:
        """`confirm`, unless it has been. Of many callers one asks, and the others wait for it."""
        if not self.is_confirmed:
            async with self._lock:
                # While it is another's, `run` looks whether it still is; not every request asks the store.
                if self._other:
                    raise owned_by_another(self._other, self.name)
                if not self.is_confirmed:
                    await self.confirm()

    async def confirm(self) -> None:
        """Raises `ProviderError` if it belongs to another gateway, or cannot be asked."""
        owner = await self._store.claim(self.name)
        self._note("" if owner == self.name else owner)
        self.is_confirmed = owner == self.name
        if not self.is_confirmed:
            raise owned_by_another(owner, self.name)

    async def change(self, name: str) -> None:
        """The gateway has another external URL now. Raises, and changes nothing, if the store is not that one's."""
        owner = await self._store.claim(name)
        if owner != name:
            raise owned_by_another(owner, name)
        self.name, self.is_confirmed = name, True

    @property
    def trouble(self) -> str:
        """What a readiness probe is told."""
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
    """*store*, usable only while it belongs to *name*; as it is if it knows no owner, or there is no name."""
    owned = ability(store, OwnedStore) if name else None
    if owned is None:
        return store, None
    owner = StoreOwner(owned, name)
    return cast(TokenStore, _GuardedStore(store, owner)), owner


class _GuardedStore:
    """Passes everything on to the store, once its owner is confirmed. Closing it is always allowed."""

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
