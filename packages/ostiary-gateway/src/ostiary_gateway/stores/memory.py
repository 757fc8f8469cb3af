"""Token store in memory: for tests, demonstrations, and a single process that need not survive a restart.

    store: {type: memory}

Nothing is shared with other processes, the ``ostiary`` command included.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Self

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.yaml import ConfigSection
from ostiary.errors import LoginRefused, ProviderError
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces import store_capabilities
from ostiary_gateway.interfaces.store_capabilities import ListedSession, StoredObject
from ostiary_gateway.interfaces.token_store import (
    Found,
    Revocation,
    RevocationBatch,
    RevocationKind,
    Session,
    SessionKind,
    TokenKind,
    TokenRecord,
)
from ostiary_gateway.sessions import (
    CLOCK_TOLERANCE,
    check_object,
    check_revocation,
    check_storable,
    check_tokens,
    check_use,
    ends,
    later_of,
    too_many_objects,
)
from ostiary_gateway.sessions.records import MemoryRecords
from ostiary_gateway.stores.stored_session import micros, place_text, read_place


class MemoryObjects(ABC):
    """Objects in memory (`ostiary_gateway.interfaces.store_capabilities.ObjectStore`)."""

    def __init__(self) -> None:
        self._kinds: dict[str, dict[str, StoredObject]] = {}
        self._last_version = 0

    @abstractmethod
    def _check_open(self) -> None: ...

    @abstractmethod
    def _now(self) -> datetime: ...

    async def put_object(self, kind: str, name: str, data: bytes, *, version: int | None) -> int | None:
        self._check_open()
        check_object(kind, name, data)
        objects = self._kinds.setdefault(kind, {})
        current = objects.get(name)
        if version is not None and version != (current.version if current else 0):
            return None
        if current is None and len(objects) >= store_capabilities.MOST_OBJECTS:
            raise too_many_objects(kind, "memory")
        self._last_version += 1
        objects[name] = StoredObject(kind, name, bytes(data), self._last_version, self._now())
        return self._last_version

    async def find_object(self, kind: str, name: str) -> StoredObject | None:
        self._check_open()
        check_object(kind, name)
        return self._kinds.get(kind, {}).get(name)

    async def list_objects(self, kind: str, *, after: str = "", limit: int = 1000) -> list[StoredObject]:
        self._check_open()
        check_object(kind, after, is_named=False)
        objects = self._kinds.get(kind, {})
        return [objects[name] for name in sorted(name for name in objects if name > after)[:limit]]

    async def count_objects(self, kind: str, prefix: str) -> int:
        self._check_open()
        check_object(kind, prefix, is_named=False)
        return sum(name.startswith(prefix) for name in self._kinds.get(kind, {}))

    async def delete_object(self, kind: str, name: str, *, version: int | None = None) -> bool:
        current = await self.find_object(kind, name)
        if current is None or version not in (None, current.version):
            return False
        del self._kinds[kind][name]
        return True

    async def object_kinds(self) -> list[str]:
        self._check_open()
        return sorted(kind for kind, objects in self._kinds.items() if objects)

    def _set_objects_back(self, step: timedelta) -> None:
        for objects in self._kinds.values():
            for name, stored in objects.items():
                objects[name] = replace(stored, changed_at=stored.changed_at - step)


# The revocation log.

# Retention of revocations, so that they also end a session that is just about to begin.
REMEMBERED = timedelta(hours=1)
_EARLIEST = datetime.min.replace(tzinfo=UTC)


class MemoryRevocations:
    """The revocation log in memory."""

    def __init__(self) -> None:
        self.head = 0
        # Numbers up to this one were deleted, or have no revocation.
        self._forgotten = 0
        self._log: dict[int, Revocation] = {}
        self._undone: set[int] = set()

    def record(self, revocation: Revocation, now: datetime) -> Revocation:
        self.head += 1
        recorded = replace(revocation, sequence=self.head, recorded_at=now)
        self._log[self.head] = recorded
        return recorded

    def marks(self) -> list[Revocation]:
        return [mark for mark in reversed(self._log.values()) if mark.sequence not in self._undone]

    def undo(self, sequence: int) -> bool:
        if sequence not in self._log or sequence in self._undone:
            return False
        self._undone.add(sequence)
        return True

    def after(self, sequence: int) -> RevocationBatch:
        later = tuple(recorded for number, recorded in self._log.items() if number > sequence)
        return RevocationBatch(self.head, later, complete=len(later) == self.head - sequence)

    def covers(self, session: Session) -> bool:
        if session.sequence is not None and session.sequence < self._forgotten:
            return True
        return any(ends(recorded, session) for number, recorded in self._log.items() if number not in self._undone)

    def last_before(self, moment: datetime) -> int:
        """Return the number of the last revocation that was recorded before *moment*."""
        later = [number for number, recorded in self._log.items() if _time_of(recorded) >= moment]
        return min(later) - 1 if later else self.head

    def forget(self, now: datetime) -> None:
        recent = {number: recorded for number, recorded in self._log.items() if _time_of(recorded) > now - REMEMBERED}
        self._forgotten = max(self._forgotten, *self._log.keys() - recent.keys(), 0)
        self._log = recent
        self._undone &= recent.keys()

    def set_back(self, step: timedelta) -> None:
        self._log = {number: _earlier(recorded, step) for number, recorded in self._log.items()}
        # A number without a revocation: readers see the gap and drop their caches.
        self.head += 1


def _time_of(recorded: Revocation) -> datetime:
    assert recorded.recorded_at is not None, "the log holds what was written down"
    return recorded.recorded_at


def _earlier(recorded: Revocation, step: timedelta) -> Revocation:
    at = None if recorded.at is None else max(recorded.at, _EARLIEST + step) - step
    return replace(recorded, at=at, recorded_at=_time_of(recorded) - step)


class MemoryTokenStore(MemoryObjects):
    """Implements `ostiary_gateway.interfaces.token_store.TokenStore`, its `RecordStore`, and `ObjectStore`."""

    shared_between_processes = False
    survives_restart = False

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        MemoryObjects.__init__(self)
        self._clock = clock
        self._tokens: dict[bytes, TokenRecord] = {}
        self._sessions: dict[str, Session] = {}
        self._digests: dict[str, set[bytes]] = {}
        self._log = MemoryRevocations()
        self._latest = clock.now()
        self._records = MemoryRecords(clock=clock)
        self._changed = asyncio.Condition()
        self._closed = False

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        return cls(clock=context.clock)

    async def add(self, session: Session, tokens: Sequence[TokenRecord]) -> None:
        self._check_open()
        self._check_new(session, tokens)
        self._correct_times()
        if session.sequence is None:
            session = replace(session, sequence=self._log.last_before(session.created_at))
        if self._log.covers(session):
            raise LoginRefused(
                "this session has expired or was revoked: sign in again", cause="it was revoked during the sign-in"
            )
        self._put(session, tokens)

    async def add_tokens(self, session_id: str, tokens: Sequence[TokenRecord]) -> bool:
        self._check_open()
        check_tokens(tokens)
        self._check_digests(tokens)
        self._correct_times()
        session = await self.session(session_id)
        if session is None:
            return False
        self._put(session, tokens)
        return True

    async def renew(
        self, spent: bytes, *, at: datetime, session: Session, tokens: Sequence[TokenRecord], since: int | None = None
    ) -> bool:
        self._check_open()
        self._check_new(session, tokens)
        self._correct_times()
        renewal = self._find(spent)
        if renewal is None or renewal.token.kind is not TokenKind.RENEWAL or renewal.session.id != session.id:
            return False
        since = self._log.last_before(at) if since is None else since
        if self._log.covers(replace(session, sequence=since)):
            return False
        if session.user != renewal.session.user:
            self._end_access_tokens(session)
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
        self,
        *,
        username: str | None = None,
        group: str | None = None,
        kind: SessionKind | None = None,
        limit: int = 1000,
    ) -> list[Session]:
        self._check_open()
        living = [
            session
            for session in self._sessions.values()
            if self._is_alive(session)
            and (username is None or session.user.username == username)
            and (group is None or group in session.user.groups)
            and (kind is None or session.kind is kind)
        ]
        return sorted(living, key=lambda session: session.created_at, reverse=True)[:limit]

    async def sessions_from(self, origin: str, *, limit: int = 1000) -> list[Session]:
        listed = await self.sessions(limit=len(self._sessions))
        return [session for session in listed if origin in session.origins][:limit]

    async def page_sessions(
        self,
        *,
        username: str | None = None,
        group: str | None = None,
        kind: SessionKind | None = None,
        after: str = "",
        limit: int = 100,
    ) -> list[ListedSession]:
        begin = read_place(after) if after else None
        sessions = await self.sessions(username=username, group=group, kind=kind, limit=len(self._sessions))
        places = {(micros(session.created_at), session.id): session for session in sessions}
        page = sorted((place for place in places if begin is None or place < begin), reverse=True)[:limit]
        return [ListedSession(places[place], place_text(*place)) for place in page]

    async def count_sessions(self, username: str, kind: SessionKind) -> int:
        return len(await self.sessions(username=username, kind=kind, limit=len(self._sessions)))

    async def note_use(self, used: Mapping[str, datetime]) -> None:
        self._check_open()
        check_use(used)
        for session_id, moment in used.items():
            session = await self.session(session_id)
            if session is not None:
                later = later_of(moment, session.last_used_at)
                self._sessions[session_id] = replace(session, last_used_at=later)

    async def revoke(self, revocation: Revocation) -> int:
        self._check_open()
        check_revocation(revocation, self._now())
        recorded = self._log.record(revocation, self._now())
        ended = self._end_token(recorded) if recorded.kind is RevocationKind.TOKEN else self._end(recorded)
        await self._wake()
        return ended

    async def marks(self) -> list[Revocation]:
        self._check_open()
        return self._log.marks()

    async def undo(self, sequence: int) -> bool:
        self._check_open()
        return self._log.undo(sequence)

    async def revocations_after(self, sequence: int | None) -> RevocationBatch:
        self._check_open()
        if sequence is None:
            return RevocationBatch(self._log.head)
        return self._log.after(sequence)

    async def wait_for_revocations(self, after: int, seconds: float) -> None:
        self._check_open()
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._closed or self._log.head != after)
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
        self._log.forget(now)
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

    # Time.

    def _now(self) -> datetime:
        """Return the time of day; while the clock is behind its latest value, that value."""
        self._latest = max(self._latest, self._clock.now())
        return self._latest

    def _correct_times(self) -> None:
        step = self._now() - self._clock.now()
        if step <= CLOCK_TOLERANCE:
            return
        self._forget_expired(self._latest)
        self._latest = self._clock.now()
        self._sessions = {
            name: replace(
                session,
                created_at=session.created_at - step,
                expires_at=session.expires_at - step,
                last_used_at=session.last_used_at and session.last_used_at - step,
            )
            for name, session in self._sessions.items()
        }
        self._tokens = {
            digest: replace(token, issued_at=token.issued_at - step, expires_at=token.expires_at - step)
            for digest, token in self._tokens.items()
        }
        self._log.set_back(step)
        self._records.set_back(step)
        self._set_objects_back(step)

    # Stored tokens and sessions.

    def _check_open(self) -> None:
        if self._closed:
            raise _unavailable("it is closed")

    def _check_new(self, session: Session, tokens: Sequence[TokenRecord]) -> None:
        check_storable(session, tokens)
        self._check_digests(tokens)

    def _check_digests(self, tokens: Sequence[TokenRecord]) -> None:
        digests = {token.digest for token in tokens}
        if len(digests) < len(tokens) or not self._tokens.keys().isdisjoint(digests):
            raise _unavailable("a token has the digest of another")

    def _put(self, session: Session, tokens: Sequence[TokenRecord]) -> None:
        older = self._sessions.get(session.id)
        if older is not None:
            session = replace(session, last_used_at=later_of(session.last_used_at, older.last_used_at))
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

    # Revocation.

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

    def _end_access_tokens(self, session: Session) -> None:
        by, owner = "ostiary: the user has changed", session.user.username
        for digest in list(self._digests[session.id]):
            token = self._tokens[digest]
            if token.kind is TokenKind.ACCESS:
                self._forget_token(token)
                ended = Revocation(RevocationKind.TOKEN, digest.hex(), by=by, owner=owner)
                self._log.record(ended, self._now())

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _unavailable(cause: str) -> ProviderError:
    return ProviderError("the token store cannot be used", cause=cause, code="token-store-unavailable")
