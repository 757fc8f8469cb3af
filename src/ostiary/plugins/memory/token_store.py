"""Tokens in this process's memory: for tests, demonstrations, and a single process that may forget everything.

    store: {type: memory}

Nothing survives the process and nothing is shared with another one, the ``ostiary`` command included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Self

from ostiary.core.catalog import Context
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields
from ostiary.core.tokens import CLOCK_TOLERANCE, check_revocation, check_storable, ends
from ostiary.core.tokens.records import MemoryRecords
from ostiary.errors import LoginRefused, ProviderError
from ostiary.interfaces.token_store import (
    Found,
    Revocation,
    RevocationBatch,
    RevocationKind,
    Session,
    TokenKind,
    TokenRecord,
)

# How long a revocation is remembered, so that it also ends a session that was just about to begin.
REMEMBERED = timedelta(hours=1)
_EARLIEST = datetime.min.replace(tzinfo=UTC)


class MemoryTokenStore:
    """Implements `ostiary.interfaces.token_store.TokenStore` and its `RecordStore`."""

    shared_between_processes = False
    survives_restart = False

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._tokens: dict[bytes, TokenRecord] = {}
        self._sessions: dict[str, Session] = {}
        self._digests: dict[str, set[bytes]] = {}
        self._head = 0
        # Numbers up to this one are no longer known, or said nothing.
        self._forgotten = 0
        self._log: dict[int, Revocation] = {}
        self._undone: set[int] = set()
        self._latest = clock.now()
        self._records = MemoryRecords(clock=clock)
        self._changed = asyncio.Condition()
        self._closed = False

    @classmethod
    def from_config(cls, fields: Fields, context: Context) -> Self:
        return cls(clock=context.clock)

    async def add(self, session: Session, tokens: Sequence[TokenRecord]) -> None:
        self._check_open()
        self._check_new(session, tokens)
        self._correct_times()
        if session.sequence is None:
            session = replace(session, sequence=self._sequence_before(session.created_at))
        if self._is_revoked(session):
            raise LoginRefused(
                "this session has expired or was revoked: sign in again", cause="it was revoked during the sign-in"
            )
        self._put(session, tokens)

    async def renew(
        self, spent: bytes, *, at: datetime, session: Session, tokens: Sequence[TokenRecord], since: int | None = None
    ) -> bool:
        self._check_open()
        self._check_new(session, tokens)
        self._correct_times()
        renewal = self._find(spent)
        if renewal is None or renewal.token.kind is not TokenKind.RENEWAL or renewal.session.id != session.id:
            return False
        since = self._sequence_before(at) if since is None else since
        if self._is_revoked(replace(session, sequence=since)):
            return False
        if session.user != renewal.session.user:
            self._end_access_tokens(session.id)
        session = replace(session, sequence=renewal.session.sequence)
        self._tokens[spent] = replace(renewal.token, kind=TokenKind.SPENT, issued_at=at)
        self._put(session, tokens)
        return True

    async def find(self, digest: bytes) -> Found | None:
        self._check_open()
        return self._find(digest)

    async def session(self, session_id: str) -> Session | None:
        self._check_open()
        session = self._sessions.get(session_id)
        return session if session is not None and self._is_alive(session) else None

    async def sessions(
        self, *, username: str | None = None, group: str | None = None, limit: int = 1000
    ) -> list[Session]:
        self._check_open()
        living = [
            session
            for session in self._sessions.values()
            if self._is_alive(session)
            and (username is None or session.user.username == username)
            and (group is None or group in session.user.groups)
        ]
        return sorted(living, key=lambda session: session.created_at, reverse=True)[:limit]

    async def revoke(self, revocation: Revocation) -> int:
        self._check_open()
        check_revocation(revocation, self._now())
        recorded = self._record(revocation)
        ended = self._end_token(recorded) if recorded.kind is RevocationKind.TOKEN else self._end(recorded)
        await self._wake()
        return ended

    async def marks(self) -> list[Revocation]:
        self._check_open()
        return [mark for mark in reversed(self._log.values()) if mark.sequence not in self._undone]

    async def undo(self, sequence: int) -> bool:
        self._check_open()
        if sequence not in self._log or sequence in self._undone:
            return False
        self._undone.add(sequence)
        return True

    async def revocations_after(self, sequence: int | None) -> RevocationBatch:
        self._check_open()
        if sequence is None:
            return RevocationBatch(self._head)
        later = tuple(recorded for number, recorded in self._log.items() if number > sequence)
        return RevocationBatch(self._head, later, complete=len(later) == self._head - sequence)

    async def wait_for_revocations(self, after: int, seconds: float) -> None:
        self._check_open()
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._closed or self._head != after)
        except TimeoutError:
            pass

    async def heartbeat(self) -> None:
        self._check_open()
        self._correct_times()
        await self._wake()

    async def sweep(self) -> int:
        self._check_open()
        before, now = len(self._tokens), self._now()
        self._forget_expired(now)
        self._forget_revocations(now)
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
        await self._wake()

    # --- the time ---

    def _now(self) -> datetime:
        """The time of day; while the clock is behind what it has shown before, the latest that it showed."""
        self._latest = max(self._latest, self._clock.now())
        return self._latest

    def _correct_times(self) -> None:
        step = self._now() - self._clock.now()
        if step <= CLOCK_TOLERANCE:
            return
        self._forget_expired(self._latest)
        self._latest = self._clock.now()
        self._sessions = {
            name: replace(session, created_at=session.created_at - step, expires_at=session.expires_at - step)
            for name, session in self._sessions.items()
        }
        self._tokens = {
            digest: replace(token, issued_at=token.issued_at - step, expires_at=token.expires_at - step)
            for digest, token in self._tokens.items()
        }
        self._log = {number: _earlier(recorded, step) for number, recorded in self._log.items()}
        self._records.set_back(step)
        # A number without a revocation: a reader sees the gap, and drops everything that it has cached.
        self._head += 1

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
        if token is None or token.expires_at <= self._now():
            return None
        session = self._sessions[token.session_id]
        return Found(token, session) if self._is_alive(session) else None

    def _is_alive(self, session: Session) -> bool:
        return session.expires_at > self._now()

    def _forget_expired(self, now: datetime) -> None:
        for session in [session for session in self._sessions.values() if session.expires_at <= now]:
            self._forget(session)
        for token in [token for token in self._tokens.values() if token.expires_at <= now]:
            self._forget_token(token)

    def _forget(self, session: Session) -> None:
        del self._sessions[session.id]
        for digest in self._digests.pop(session.id):
            del self._tokens[digest]

    def _forget_token(self, token: TokenRecord) -> None:
        del self._tokens[token.digest]
        self._digests[token.session_id].discard(token.digest)

    # --- what is withdrawn ---

    def _is_revoked(self, session: Session) -> bool:
        if session.sequence is not None and session.sequence < self._forgotten:
            return True
        return any(ends(recorded, session) for number, recorded in self._log.items() if number not in self._undone)

    def _sequence_before(self, moment: datetime) -> int:
        """The number of the last revocation that was written down before *moment*."""
        later = [number for number, recorded in self._log.items() if _time_of(recorded) >= moment]
        return min(later) - 1 if later else self._head

    def _end(self, revocation: Revocation) -> int:
        ended = [session for session in self._sessions.values() if ends(revocation, session)]
        living = sum(map(self._is_alive, ended))
        for session in ended:
            self._forget(session)
        return living

    def _end_token(self, revocation: Revocation) -> int:
        living = self._find(bytes.fromhex(revocation.value))
        if living is None or living.token.kind is TokenKind.SPENT:
            return 0
        self._forget_token(living.token)
        return 1

    def _end_access_tokens(self, session_id: str) -> None:
        for digest in list(self._digests[session_id]):
            token = self._tokens[digest]
            if token.kind is TokenKind.ACCESS:
                self._forget_token(token)
                self._record(Revocation(RevocationKind.TOKEN, digest.hex(), by="ostiary: the user has changed"))

    def _record(self, revocation: Revocation) -> Revocation:
        self._head += 1
        recorded = replace(revocation, sequence=self._head, recorded_at=self._now())
        self._log[self._head] = recorded
        return recorded

    def _forget_revocations(self, now: datetime) -> None:
        recent = {number: recorded for number, recorded in self._log.items() if _time_of(recorded) > now - REMEMBERED}
        self._forgotten = max(self._forgotten, *self._log.keys() - recent.keys(), 0)
        self._log = recent
        self._undone &= recent.keys()

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _time_of(recorded: Revocation) -> datetime:
    assert recorded.recorded_at is not None, "the log holds what was written down"
    return recorded.recorded_at


def _earlier(recorded: Revocation, step: timedelta) -> Revocation:
    at = None if recorded.at is None else max(recorded.at, _EARLIEST + step) - step
    return replace(recorded, at=at, recorded_at=_time_of(recorded) - step)


def _unavailable(cause: str) -> ProviderError:
    return ProviderError("the token store cannot be used", cause=cause, code="token-store-unavailable")
