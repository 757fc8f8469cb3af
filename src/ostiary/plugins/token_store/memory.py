"""Tokens in this process's memory: for tests, demonstrations, and a single process that may forget everything.

    store: {type: memory}

Nothing survives the process and nothing is shared with another one, the ``ostiary`` command included.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Self
from weakref import WeakSet

from ostiary.core.catalog import Context
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields
from ostiary.core.records import MemoryRecords
from ostiary.core.tokens import check_revocation, check_storable, ends
from ostiary.errors import LoginRefused, ProviderError
from ostiary.interfaces.token_store import Found, Revocation, RevocationKind, Session, TokenKind, TokenRecord

# How long a revocation is remembered, so that it also ends a session that was just about to begin.
REMEMBERED = timedelta(hours=1)
# A subscriber that is further behind than this is told to trust nothing.
BACKLOG = 10_000


class MemoryTokenStore:
    """Implements `ostiary.interfaces.token_store.TokenStore` and its `RecordStore`."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._tokens: dict[bytes, TokenRecord] = {}
        self._sessions: dict[str, Session] = {}
        self._digests: dict[str, set[bytes]] = {}
        self._revoked: list[tuple[datetime, Revocation]] = []
        self._records = MemoryRecords(clock=clock)
        self._subscribers: WeakSet[_Subscriber] = WeakSet()
        self._closed = False

    @classmethod
    def from_config(cls, fields: Fields, context: Context) -> Self:
        return cls(clock=context.clock)

    async def add(self, session: Session, tokens: Sequence[TokenRecord]) -> None:
        self._check_open()
        self._check_new(session, tokens)
        if self._is_revoked(session):
            raise LoginRefused("this session has ended: sign in again", cause="it was revoked while it began")
        self._put(session, tokens)

    async def renew(self, spent: bytes, *, at: datetime, session: Session, tokens: Sequence[TokenRecord]) -> bool:
        self._check_open()
        self._check_new(session, tokens)
        found = self._find(spent)
        if found is None or found.token.kind is not TokenKind.RENEWAL or found.session.id != session.id:
            return False
        if self._is_revoked(replace(session, created_at=at)):
            return False
        if session.user != found.session.user:
            self._end_access_tokens(session.id, at)
        self._tokens[spent] = replace(found.token, kind=TokenKind.SPENT, issued_at=at)
        self._put(session, tokens)
        return True

    async def find(self, digest: bytes) -> Found | None:
        self._check_open()
        return self._find(digest)

    async def session(self, session_id: str) -> Session | None:
        self._check_open()
        found = self._sessions.get(session_id)
        return found if found is not None and self._is_alive(found) else None

    async def sessions(
        self, *, username: str | None = None, group: str | None = None, limit: int = 1000
    ) -> list[Session]:
        self._check_open()
        found = [
            session
            for session in self._sessions.values()
            if self._is_alive(session)
            and (username is None or session.user.username == username)
            and (group is None or group in session.user.groups)
        ]
        return sorted(found, key=lambda session: session.created_at, reverse=True)[:limit]

    async def revoke(self, revocation: Revocation) -> int:
        self._check_open()
        check_revocation(revocation)
        ended = self._end_token(revocation) if revocation.kind is RevocationKind.TOKEN else self._end(revocation)
        self._announce(revocation)
        return ended

    def revocations(self) -> AsyncIterator[Revocation]:
        subscriber = _Subscriber(self._clock)
        self._subscribers.add(subscriber)
        if self._closed:
            subscriber.close()
        return subscriber

    async def sweep(self) -> int:
        self._check_open()
        before, now = len(self._tokens), self._clock.now()
        for session in [session for session in self._sessions.values() if not self._is_alive(session)]:
            self._forget(session)
        for token in [token for token in self._tokens.values() if token.expires_at <= now]:
            self._forget_token(token)
        self._revoked = [kept for kept in self._revoked if kept[0] > now - REMEMBERED]
        self._records.sweep()
        return before - len(self._tokens)

    async def count(self) -> int:
        self._check_open()
        return len(self._tokens)

    async def put_record(self, key_digest: bytes, data: bytes, expires_at: datetime) -> bool:
        self._check_open()
        return await self._records.put_record(key_digest, data, expires_at)

    async def find_record(self, key_digest: bytes) -> bytes | None:
        self._check_open()
        return await self._records.find_record(key_digest)

    async def take_record(self, key_digest: bytes) -> bytes | None:
        self._check_open()
        return await self._records.take_record(key_digest)

    async def close(self) -> None:
        self._closed = True
        for subscriber in list(self._subscribers):
            subscriber.close()

    # --- what is kept ---

    def _check_open(self) -> None:
        if self._closed:
            raise _unavailable("it is closed")

    def _check_new(self, session: Session, tokens: Sequence[TokenRecord]) -> None:
        check_storable(session)
        digests = {token.digest for token in tokens}
        if len(digests) < len(tokens) or not digests.isdisjoint(self._tokens):
            raise _unavailable("a token has the digest of another")

    def _put(self, session: Session, tokens: Sequence[TokenRecord]) -> None:
        self._sessions[session.id] = session
        self._tokens.update((token.digest, token) for token in tokens)
        self._digests.setdefault(session.id, set()).update(token.digest for token in tokens)

    def _find(self, digest: bytes) -> Found | None:
        token = self._tokens.get(digest)
        if token is None or token.expires_at <= self._clock.now():
            return None
        session = self._sessions[token.session_id]
        return Found(token, session) if self._is_alive(session) else None

    def _is_alive(self, session: Session) -> bool:
        return session.expires_at > self._clock.now()

    def _forget(self, session: Session) -> None:
        del self._sessions[session.id]
        for digest in self._digests.pop(session.id):
            del self._tokens[digest]

    def _forget_token(self, token: TokenRecord) -> None:
        del self._tokens[token.digest]
        self._digests[token.session_id].discard(token.digest)

    # --- what is withdrawn ---

    def _is_revoked(self, session: Session) -> bool:
        return any(ends(revocation, session) for _, revocation in self._revoked)

    def _end(self, revocation: Revocation) -> int:
        ended = [session for session in self._sessions.values() if ends(revocation, session)]
        living = sum(map(self._is_alive, ended))
        for session in ended:
            self._forget(session)
        return living

    def _end_token(self, revocation: Revocation) -> int:
        found = self._find(bytes.fromhex(revocation.value))
        if found is None or found.token.kind is TokenKind.SPENT:
            return 0
        self._forget_token(found.token)
        return 1

    def _end_access_tokens(self, session_id: str, at: datetime) -> None:
        for digest in list(self._digests[session_id]):
            token = self._tokens[digest]
            if token.kind is TokenKind.ACCESS:
                self._forget_token(token)
                self._announce(Revocation(RevocationKind.TOKEN, digest.hex(), at, "ostiary: the user has changed"))

    def _announce(self, revocation: Revocation) -> None:
        self._revoked.append((max(revocation.at, self._clock.now()), revocation))
        for subscriber in list(self._subscribers):
            subscriber.tell(revocation)


class _Subscriber:
    """Somebody who follows the revocations."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._news: deque[Revocation] = deque()
        self._event = asyncio.Event()
        self._closed = False

    def tell(self, revocation: Revocation) -> None:
        if len(self._news) >= BACKLOG:
            self._news.clear()
            revocation = Revocation(RevocationKind.BEFORE, "", self._clock.now(), "ostiary: some were missed")
        self._news.append(revocation)
        self._event.set()

    def close(self) -> None:
        self._closed = True
        self._event.set()

    def __aiter__(self) -> _Subscriber:
        return self

    async def __anext__(self) -> Revocation:
        while not self._news:
            if self._closed:
                raise StopAsyncIteration
            self._event.clear()
            await self._event.wait()
        return self._news.popleft()


def _unavailable(cause: str) -> ProviderError:
    return ProviderError("the token store cannot be used", cause=cause, code="token-store-unavailable")
