"""Repeat what is expected to recover.

A client with a short timeout may miss it again on a busy machine, long after the server works. That is no defect: only
a client that never recovers is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ostiary.errors import ProviderError

RECOVERY_SECONDS = 60.0
_PAUSE_SECONDS = 0.02
T = TypeVar("T")


async def until_it_works(work: Callable[[], Awaitable[T]]) -> T:
    """Call *work* again for as long as it raises `ProviderError`, and return its first result."""
    failure: ProviderError | None = None
    try:
        async with asyncio.timeout(RECOVERY_SECONDS):
            while True:
                try:
                    return await work()
                except ProviderError as error:
                    failure = error
                await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError:
        raise AssertionError(f"it does not recover within {RECOVERY_SECONDS:g} seconds") from failure
