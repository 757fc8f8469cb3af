"""Token store in a SQLite file: embedded, durable, shared by the processes of one machine.

    store: {type: sqlite, path: ostiary.db}

    find -> the reading connection, synchronously in the event loop: a lookup takes microseconds
    add, renew, revoke, sweep -> a queue -> one thread -> one transaction for all queued work -> fsync -> all return

Acknowledged writes are on the disk (WAL, ``synchronous=FULL``). Other processes, including the ``ostiary`` command, use
the same file. Each follows the revocation log: a process that adds to it touches the file, which wakes the others.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Self

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.yaml import ConfigSection
from ostiary.errors import LoginRefused
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.store_capabilities import (
    ListedSession,
    StoredLog,
    StoredObject,
    StoredSession,
    StoreReport,
)
from ostiary_gateway.interfaces.token_store import (
    Found,
    Revocation,
    RevocationBatch,
    RevocationKind,
    Session,
    SessionKind,
    TokenRecord,
)
from ostiary_gateway.sessions import (
    check_object,
    check_revocation,
    check_storable,
    check_tokens,
    check_use,
    end_of_prefix,
    too_many_objects,
)
from ostiary_gateway.sessions.records import check_record
from ostiary_gateway.settings.declare import read_settings
from ostiary_gateway.settings.kinds import FilePath, Holds
from ostiary_gateway.stores.sqlite import database_file, log, transfer
from ostiary_gateway.stores.sqlite import transactions as changes
from ostiary_gateway.stores.sqlite.store_file import FileWatch, StoreFile
from ostiary_gateway.stores.sqlite.transfer import OtherProcesses
from ostiary_gateway.stores.stored_session import SESSION_KINDS, micros, origin_name, read_numbered_place


@dataclass(frozen=True, slots=True)
class SqliteSettings:
    path: Annotated[
        Path,
        FilePath(
            "the database file",
            holds=Holds.WRITTEN,
            checked=False,
            empty="",
            missing_hint="name the file, as in: path: ostiary.db",
        ),
    ]


# Interval of polling for other processes' revocations if the file cannot be watched.
UNWATCHED_SECONDS = 0.25
SWEEP_BATCH = 500


class SqliteTokenStore(StoreFile):
    """Implements `TokenStore`, and for one machine its `RecordStore`, `OriginStore`, `PortableStore` and `ObjectStore`.

    The file is opened when it is first needed: first use it after a fork, not before.
    """

    shared_between_processes = True
    survives_restart = True

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(path, on_write=self._wake)
        self._clock = clock
        self._seen = log.Seen()
        self._others = OtherProcesses(self.path)
        self._watch: FileWatch | None = None
        self._waiting: set[asyncio.Event] = set()

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        return cls(read_settings(SqliteSettings, fields, context.directory).path, clock=context.clock)

    async def add(self, session: Session, tokens: Sequence[TokenRecord]) -> None:
        check_storable(session, tokens)
        now = self._clock.now()
        if not await self._write(lambda db: changes.add(db, session, tokens, now=now, seen=self._seen)):
            raise LoginRefused(
                "this session has expired or was revoked: sign in again", cause="it was revoked during the sign-in"
            )

    async def add_tokens(self, session_id: str, tokens: Sequence[TokenRecord]) -> bool:
        check_tokens(tokens)
        now = self._clock.now()
        return await self._write(lambda db: changes.add_tokens(db, session_id, tokens, now=now, seen=self._seen))

    async def renew(
        self, spent: bytes, *, at: datetime, session: Session, tokens: Sequence[TokenRecord], since: int | None = None
    ) -> bool:
        check_storable(session, tokens)
        work = partial(
            changes.renew,
            spent=spent,
            renewed=session,
            tokens=tokens,
            at=at,
            now=self._clock.now(),
            seen=self._seen,
            since=since,
        )
        return await self._write(work, announced=True)

    async def find(self, digest: bytes) -> Found | None:
        rows = self._read_now(database_file.FIND, (digest,))
        if rows is None:
            rows = await self._read(database_file.FIND, (digest,))
        now = self._seen.at(self._clock.now(), *database_file.clock_of(rows[0])) if rows else 0
        return (
            self._decode(database_file.decode_token, digest, rows[0])
            if rows and database_file.is_alive(rows[0], now)
            else None
        )

    async def session(self, session_id: str) -> Session | None:
        rows = await self._read(database_file.SESSION, (session_id, micros(self._clock.now())))
        return self._decode(database_file.decode_session, rows[0]) if rows else None

    async def sessions(
        self,
        *,
        username: str | None = None,
        group: str | None = None,
        kind: SessionKind | None = None,
        limit: int = 1000,
    ) -> list[Session]:
        now = self._clock.now()
        rows = await self._look_aside(
            lambda db: database_file.list_sessions(db, username, group, kind, now=now, limit=limit)
        )
        return [self._decode(database_file.decode_session, row) for row in rows]

    async def sessions_from(self, origin: str, *, limit: int = 1000) -> list[Session]:
        return await self.sessions(group=origin_name(origin), limit=limit)

    async def page_sessions(
        self,
        *,
        username: str | None = None,
        group: str | None = None,
        kind: SessionKind | None = None,
        after: str = "",
        limit: int = 100,
    ) -> list[ListedSession]:
        begin = read_numbered_place(after) if after else None
        now = self._clock.now()
        rows = await self._look_aside(
            lambda db: database_file.list_sessions(db, username, group, kind, now=now, limit=limit, after=begin)
        )
        return [self._decode(database_file.decode_listed_session, row) for row in rows]

    async def count_sessions(self, username: str, kind: SessionKind) -> int:
        arguments = (username, SESSION_KINDS[kind], micros(self._clock.now()))
        rows = await self._read_aside(database_file.COUNT_SESSIONS, arguments)
        return int(rows[0][0])

    async def note_use(self, used: Mapping[str, datetime]) -> None:
        check_use(used)
        await self._write(lambda db: changes.note_use(db, used))

    async def revoke(self, revocation: Revocation) -> int:
        now = self._clock.now()
        check_revocation(revocation, now)
        # These may end many sessions.
        is_large = revocation.kind in (RevocationKind.GROUP, RevocationKind.BEFORE)
        ended = await self._end_most(revocation, now) if is_large else 0
        return ended + await self._write(lambda db: changes.revoke(db, revocation, now=now), announced=True)

    async def _end_most(self, revocation: Revocation, now: datetime) -> int:
        """End sessions in small transactions, all but the last: a million in one would block sign-ins.

        The revocation itself follows, and is authoritative: it ends the rest, and sessions that began meanwhile. If it
        cannot be written, the caller gets an error and retries.
        """
        ended, more = 0, True
        while more:
            living, more = await self._write(lambda db: changes.end_some(db, revocation, now=now))
            ended += living
        return ended

    async def marks(self) -> list[Revocation]:
        rows = await self._read_aside(log.MARKS, ())
        return [self._decode(log.decode_revocation, row) for row in rows]

    async def undo(self, sequence: int) -> bool:
        return await self._write(lambda db: log.undo(db, sequence))

    async def revocations_after(self, sequence: int | None) -> RevocationBatch:
        self._check_file()
        if sequence is None:
            return RevocationBatch(int((await self._read(log.HEAD, ()))[0][0]))
        return self._decode(log.batch, await self._read(log.AFTER, (sequence,)), sequence)

    async def wait_for_revocations(self, after: int, seconds: float) -> None:
        watched = self._is_watched()
        woken = asyncio.Event()
        self._waiting.add(woken)
        try:
            # Checked after the watch is set: a revocation written before that does not wake this worker.
            if (await self.revocations_after(None)).head == after:
                async with asyncio.timeout(seconds if watched else min(seconds, UNWATCHED_SECONDS)):
                    await woken.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(woken)

    async def heartbeat(self) -> None:
        self._check_file()
        self._check_space()
        now = self._clock.now()
        await self._write(lambda db: changes.heartbeat(db, now=now, seen=self._seen), announced=True)

    async def sweep(self) -> int:
        """Delete what has expired, in small transactions, so that concurrent sign-ins do not wait for long."""
        swept, now = 0, self._clock.now()
        while True:
            deleted, more = await self._write(lambda db: changes.sweep(db, now=now, limit=SWEEP_BATCH))
            swept += deleted
            if not more:
                return swept

    async def count(self) -> int:
        rows = await self._read_aside(database_file.COUNT, ())
        return int(rows[0][0])

    async def put_record(self, key_digest: bytes, data: bytes, expires_at: datetime) -> bool:
        check_record(data, expires_at)
        now = self._clock.now()
        return await self._write(lambda db: changes.put_record(db, key_digest, data, expires_at=expires_at, now=now))

    async def find_record(self, key_digest: bytes) -> bytes | None:
        rows = await self._read(database_file.RECORD, (key_digest, micros(self._clock.now())))
        return bytes(rows[0][0]) if rows else None

    async def take_record(self, key_digest: bytes) -> bytes | None:
        now = self._clock.now()
        return await self._write(lambda db: changes.take_record(db, key_digest, now=now))

    async def put_object(self, kind: str, name: str, data: bytes, *, version: int | None) -> int | None:
        check_object(kind, name, data)
        now = self._clock.now()
        new_version = await self._write(lambda db: database_file.put(db, kind, name, data, version=version, now=now))
        if new_version == database_file.FULL:
            raise too_many_objects(kind, self.path)
        return new_version

    async def find_object(self, kind: str, name: str) -> StoredObject | None:
        check_object(kind, name)
        rows = await self._read(database_file.FIND_ITEM, (kind, name))
        return self._decode(database_file.decode, rows[0]) if rows else None

    async def list_objects(self, kind: str, *, after: str = "", limit: int = 1000) -> list[StoredObject]:
        check_object(kind, after, is_named=False)
        rows = await self._read_aside(database_file.LIST, (kind, after, limit))
        return [self._decode(database_file.decode, row) for row in rows]

    async def count_objects(self, kind: str, prefix: str) -> int:
        check_object(kind, prefix, is_named=False)
        end = end_of_prefix(prefix)
        if end is None:
            rows = await self._read(database_file.COUNT_FROM, (kind, prefix))
        else:
            rows = await self._read(database_file.COUNT_WITH_PREFIX, (kind, prefix, end))
        return int(rows[0][0])

    async def delete_object(self, kind: str, name: str, *, version: int | None = None) -> bool:
        check_object(kind, name)
        return await self._write(lambda db: database_file.delete(db, kind, name, version=version))

    async def object_kinds(self) -> list[str]:
        return [str(kind) for (kind,) in await self._read_aside(database_file.ITEM_KINDS, ())]

    async def export_log(self) -> StoredLog:
        return self._decode(transfer.decode_log, *await self._look_aside(transfer.select_log))

    async def export_sessions(self, after: str, limit: int) -> list[StoredSession]:
        now = self._clock.now()
        rows = await self._look_aside(lambda db: transfer.select_sessions(db, after, limit, now=now))
        return self._decode(transfer.decode_sessions, *rows)

    async def import_log(self, log: StoredLog) -> None:
        further = await self._write(lambda db: transfer.put_log(db, log), announced=True)
        if further is not None:
            raise self._unavailable(
                f"its log of revocations has the number {further}, and the one to take over ends at {log.head}",
                "it is in use by another gateway, or was since: name an empty store",
            )

    async def import_sessions(self, sessions: Sequence[StoredSession]) -> None:
        for stored in sessions:
            check_storable(stored.session, stored.tokens)
        now = self._clock.now()
        await self._write(lambda db: transfer.put_sessions(db, sessions, now=now, seen=self._seen), announced=True)

    async def examine(self) -> StoreReport:
        return await self._look_aside(lambda db: transfer.examine(db, self.path))

    async def others_using(self) -> tuple[str, ...]:
        self._open()
        return self._others.describe()

    async def close(self) -> None:
        opened = self._let_go()
        self._wake()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        if opened is not None:
            await opened.close()
        self._others.close()

    # Waiting for revocations.

    def _is_watched(self) -> bool:
        if self._watch is None:
            self._open()
            self._watch = FileWatch.open(self.path, self._wake)
        return self._watch is not None

    def _wake(self) -> None:
        for woken in self._waiting:
            woken.set()
