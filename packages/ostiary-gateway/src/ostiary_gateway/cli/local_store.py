"""The token store of a ``gateway.yaml``, for commands that work without a running gateway."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from ostiary.errors import ConfigurationError
from ostiary_gateway.cli.options import config_path, load, run_async

if TYPE_CHECKING:
    from ostiary_gateway.config.gateway_config import GatewayConfig
    from ostiary_gateway.sessions import Tokens

T = TypeVar("T")


def with_store(arguments: argparse.Namespace, work: Callable[[Tokens, GatewayConfig], Awaitable[T]]) -> T:
    """Return the result of *work* on the store that the gateway and this process share. Raises if there is none."""
    import os

    from ostiary_gateway.capabilities import ability, has_trait
    from ostiary_gateway.config.gateway_config import DEFAULT_STORE_TYPE
    from ostiary_gateway.interfaces.token_store import KeptInFile, SharedBetweenProcesses
    from ostiary_gateway.sessions import Tokens

    config = load(arguments)
    store, where = config.store.instance, f"{config_path(arguments)}, store"
    if not has_trait(store, SharedBetweenProcesses):
        raise ConfigurationError(
            "the sessions of this gateway are only in its memory",
            where=where,
            hint=f"ask the running gateway with --server, or use the store {DEFAULT_STORE_TYPE}",
            code="token-store-unavailable",
        )
    file = ability(store, KeptInFile)
    if file is not None and not os.path.exists(file.path):
        # Opening it would create an empty file, possibly with another owner than the gateway's user.
        raise ConfigurationError(
            "there is no token store yet",
            cause=f"{file.path} does not exist",
            where=where,
            hint="check that this gateway has been started once, and that this is its configuration",
            code="token-store-unavailable",
        )

    async def run() -> T:
        try:
            return await work(Tokens(store), config)
        finally:
            await store.close()

    return run_async(run())
