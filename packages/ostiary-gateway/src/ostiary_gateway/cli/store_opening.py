"""The token store of a configuration, for the commands of ``ostiary-gateway store``."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

from ostiary.errors import ConfigurationError
from ostiary_gateway import config
from ostiary_gateway.capabilities import ability, has_trait
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.interfaces.store_capabilities import ExaminesStore, NoteStore, OwnedStore, PortableStore
from ostiary_gateway.interfaces.token_store import KeptInFile, SharedBetweenProcesses, TokenStore
from ostiary_gateway.replicas.owner import owned_by_another
from ostiary_gateway.replicas.registry import read_replicas
from ostiary_gateway.stores.transfer import MovableStore


@dataclass(frozen=True, slots=True)
class ConfiguredStore:
    """The store of the configuration at *path*, not opened yet."""

    path: str
    config: GatewayConfig

    @property
    def store(self) -> TokenStore:
        return self.config.store.instance

    @property
    def type(self) -> str:
        return self.config.store.type

    @property
    def file(self) -> str | None:
        """The path of its file, for a store in a file."""
        in_file = ability(self.store, KeptInFile)
        return None if in_file is None else in_file.path

    @property
    def where(self) -> str:
        return f"{self.path}, store"

    @property
    def name(self) -> str:
        """The name of the store in messages."""
        return self.type if self.file is None else f"{self.type} {self.file}"

    def movable(self) -> MovableStore:
        if ability(self.store, PortableStore) is None:
            raise ConfigurationError(
                f"a store of the type {self.type} cannot be moved",
                cause="it cannot be read or filled as a whole",
                where=self.where,
                code="store-not-movable",
            )
        return cast(MovableStore, self.store)

    async def others_using(self) -> tuple[str, ...]:
        """Return which other processes use the store.

        Those that the store reports, and the replicas that have written to it recently.
        """
        examining, notes = ability(self.store, ExaminesStore), ability(self.store, NoteStore)
        others = () if examining is None else await examining.others_using()
        replicas = [] if notes is None else await read_replicas(notes)
        names = [f"replica {each.name} (process {each.replica.pid})" for each in replicas if not each.silent_seconds]
        return (*names, *others)

    async def owner(self, *, take_over: bool = False) -> str | None:
        """Return the owner. Claim the store for this gateway if it has none yet, or with *take_over*.

        None if the store records no owner, or the configuration has no external URL.
        """
        owned = ability(self.store, OwnedStore)
        ours = self.config.owner
        return await owned.claim(ours, anew=take_over) if owned is not None and ours else None

    async def check_owner(self) -> None:
        """Raise if the store belongs to another gateway: two that share one would accept each other's tokens."""
        owner = await self.owner()
        if owner not in (None, self.config.owner):
            raise owned_by_another(owner or "", self.config.owner)


def configured_store(path: str, *, may_be_new: bool = False) -> ConfiguredStore:
    """Return the store of the configuration at *path*. A file must exist, unless it *may_be_new*."""
    configured = ConfiguredStore(path, config.load(path))
    if not has_trait(configured.store, SharedBetweenProcesses):
        raise ConfigurationError(
            "the sessions of this gateway are only in its memory",
            cause=f"a store of the type {configured.type} cannot be opened by a command",
            where=configured.where,
            code="store-not-movable",
        )
    if not may_be_new and configured.file is not None and not os.path.exists(configured.file):
        # Opening it would create an empty file.
        raise ConfigurationError(
            "there is no token store yet",
            cause=f"{configured.file} does not exist",
            where=configured.where,
            hint="check that this gateway has been started once, and that this is its configuration",
            code="token-store-unavailable",
        )
    return configured


@asynccontextmanager
async def closing(*stores: ConfiguredStore) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for each in stores:
            await each.store.close()
