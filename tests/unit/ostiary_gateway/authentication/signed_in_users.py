"""Users with tokens in use, their streams, and a store that can be slow, down or forgetful."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.authentication.authenticator import TokenAuthenticator
from ostiary_gateway.authentication.token_cache import CachedToken
from ostiary_gateway.interfaces.token_store import Found, RevocationBatch, Session
from ostiary_gateway.sessions import Issued, Tokens, digest
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock

ANN = UserInfo("ann", groups=("dev",))
BOB = UserInfo("bob", groups=("ops",))


class Store(MemoryTokenStore):
    """Counts what it is asked, and can be down, or wait in the middle of a lookup, or have forgotten revocations."""

    down = False
    lookups_fail = False
    forgetful = False
    lookups = 0
    confirmations = 0

    def __init__(self, *, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    async def find(self, digest: bytes) -> Found | None:
        self.lookups += 1
        self._check(self.lookups_fail)
        record = await super().find(digest)
        self.reached.set()
        await self.go_on.wait()
        return record

    async def session(self, session_id: str) -> Session | None:
        self._check()
        return await super().session(session_id)

    async def revocations_after(self, sequence: int | None) -> RevocationBatch:
        self._check()
        self.confirmations += 1
        await asyncio.sleep(0)
        batch = await super().revocations_after(sequence)
        return replace(batch, revocations=(), complete=False) if self.forgetful else batch

    def _check(self, fails: bool = False) -> None:
        if self.down or fails:
            raise ProviderError("the token store cannot be used")


class Stream:
    """Notes how often it was cut."""

    def __init__(self) -> None:
        self.cuts = 0

    def cut(self) -> None:
        self.cuts += 1


def key(issued: Issued) -> bytes:
    return digest(issued.token.reveal())


async def sign_in(authenticator: TokenAuthenticator, tokens: Tokens, user: UserInfo = ANN) -> CachedToken:
    live = await authenticator.find(key(await tokens.issue(user, provider="staff")))
    assert live is not None
    return live


def stream_of(authenticator: TokenAuthenticator, live: CachedToken) -> Stream:
    stream = Stream()
    authenticator.in_use.add_stream(live, stream)
    return stream
