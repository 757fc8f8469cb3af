"""Messages between replicas, counts, the owner of the store, and objects in PostgreSQL.

A count is read, changed here, and written if it is unchanged in the database. No lock is held in between, so a replica
that stops in the middle does not block the others.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from hashlib import sha256
from typing import TypeVar

from ostiary_gateway.interfaces import store_capabilities
from ostiary_gateway.interfaces.shared_counts import NARROW, WIDE, Change, State
from ostiary_gateway.interfaces.store_capabilities import LARGEST_NOTE, MOST_NOTES, Counted, Note, StoredObject
from ostiary_gateway.sessions import check_object, check_text, end_of_prefix, too_many_objects
from ostiary_gateway.stores.postgresql.database import Database, Row
from ostiary_gateway.stores.postgresql.store_part import LONG_SECONDS, SECOND, DatabaseTime, StorePart

T = TypeVar("T")

NARROW_LIMIT = 10_000
WIDE_LIMIT = 10_000
# Maximum number of attempts if other replicas change a count concurrently.
_ATTEMPTS = 50
_LOCKS = 64
# This fraction of the free room is used before it is measured again.
_MEASURED_PART = 8
# The longest lifetime in seconds: sums of microseconds must fit into a column.
_LONGEST = 10 * 365 * 86400.0

_NOTE_COLUMNS = "n.key, n.data, n.written_at - now.shift AS written_at"
_FIND_NOTE = f"""SELECT now.clock, now.time, {_NOTE_COLUMNS} FROM now LEFT JOIN @schema@.notes n
    ON n.topic = $3 AND n.key_digest = sha256(convert_to($4, 'UTF8')) AND n.expires_at > now.time"""  # noqa: S608
_LATEST_NOTES = f"""SELECT now.clock, now.time, {_NOTE_COLUMNS} FROM now LEFT JOIN @schema@.notes n
    ON n.topic = $3 AND n.expires_at > now.time ORDER BY n.number DESC LIMIT $4"""  # noqa: S608
_REMOVE_NOTE = "DELETE FROM @schema@.notes WHERE topic = $1 AND key_digest = sha256(convert_to($2, 'UTF8'))"
# Each by the index: for a join, the planner would read the whole table.
_COUNTS = """SELECT now.clock, now.time,
        (SELECT c.state FROM @schema@.counts c WHERE c.key_digest = asked.digest AND c.expires_at > now.time) AS state
    FROM now CROSS JOIN unnest($3::bytea[]) WITH ORDINALITY AS asked (digest, place) ORDER BY asked.place"""
_WIDE_COUNTS = "SELECT count(*) FROM @schema@.counts WHERE wide AND expires_at > $1"


class ReplicaTables(StorePart):
    """Messages between replicas, counts, and the owner of the store."""

    def __init__(self, database: Database, time: DatabaseTime) -> None:
        super().__init__(database, time)
        # Callers in this process with the same key wait for each other instead of conflicting.
        self._counting = [asyncio.Lock() for _ in range(_LOCKS)]
        # How many new wide states fit before the table is counted again.
        self._room = 0
        self._full_until = 0

    async def claim(self, owner: str, *, anew: bool = False) -> str:
        (row,) = await self._database.fetch("SELECT @schema@.claim($1, $2)", owner, anew, repeatable=True)
        return str(row[0])

    # Messages.

    async def put_notes(self, topic: str, notes: Mapping[str, bytes], *, seconds: float) -> None:
        for text in (topic, *notes):
            check_text(text)
        if any(len(data) > LARGEST_NOTE for data in notes.values()):
            raise ValueError(f"a note holds {LARGEST_NOTE} bytes at most")
        if notes:
            await self._database.fetch(
                "SELECT @schema@.put_notes($1, $2, $3, $4, $5, $6, $7)",
                self._time.override,
                self._time.seen,
                topic,
                list(notes),
                list(notes.values()),
                round(min(seconds, _LONGEST) * SECOND),
                MOST_NOTES,
                repeatable=True,
            )

    async def find_note(self, topic: str, key: str) -> Note | None:
        (row,) = await self._read(_FIND_NOTE, topic, key)
        return self._note_of(row)

    async def latest_notes(self, topic: str, limit: int) -> list[Note]:
        rows = await self._read(_LATEST_NOTES, topic, min(limit, MOST_NOTES))
        return [note for row in rows if (note := self._note_of(row)) is not None]

    async def remove_note(self, topic: str, key: str) -> None:
        await self._database.fetch(_REMOVE_NOTE, topic, key, repeatable=True)

    def _note_of(self, row: Row) -> Note | None:
        return None if row["key"] is None else Note(row["key"], row["data"], self._time.moment(row["written_at"]))

    # Counts.

    async def update_counts(
        self, changes: Sequence[tuple[str, Change[T]]], *, wide: bool = False
    ) -> list[Counted[T] | None]:
        digests = [_digest_of(key, wide) for key, _ in changes]
        async with AsyncExitStack() as stack:
            # In a fixed order, so that two callers with several keys cannot deadlock.
            for number in sorted({digest[0] % _LOCKS for digest in digests}):
                await stack.enter_async_context(self._counting[number])
            for _ in range(_ATTEMPTS):
                results = await self._try_counts(digests, [change for _, change in changes], wide)
                if results is not None:
                    return results
        raise self._database.unavailable("too many replicas change the same count at once")

    async def _try_counts(
        self, digests: list[bytes], changes: Sequence[Change[T]], wide: bool
    ) -> list[Counted[T] | None] | None:
        """Try once. Returns None if a state was changed concurrently before it could be written."""
        rows = await self._read(_COUNTS, digests)
        time: int = rows[0]["time"]
        results: list[Counted[T] | None] = []
        writes: list[tuple[bytes, bytes, bytes, int]] = []
        for digest, change, row in zip(digests, changes, rows, strict=True):
            old: bytes = row["state"] or b""
            state, seconds, result = change(_unpack(old), time / SECOND)
            new = _pack(state, WIDE if wide else NARROW)
            if wide and not old and seconds > 0 and not await self._has_room(time):
                results.append(None)
                continue
            results.append(Counted(state, seconds, result, time / SECOND))
            if old or seconds > 0:
                writes.append((digest, old, new, time + round(min(max(seconds, 0.0), _LONGEST) * SECOND)))
        return results if not writes or await self._write_counts(time, wide, writes) else None

    async def _write_counts(self, time: int, wide: bool, writes: Sequence[tuple[bytes, bytes, bytes, int]]) -> bool:
        (row,) = await self._database.fetch(
            "SELECT @schema@.write_counts($1, $2, $3, $4, $5, $6, $7)",
            time,
            wide,
            *(list(column) for column in zip(*writes, strict=True)),
            NARROW_LIMIT,
            repeatable=False,
        )
        return bool(row[0])

    async def _has_room(self, time: int) -> bool:
        if time < self._full_until:
            return False
        if self._room == 0:
            (row,) = await self._database.fetch(_WIDE_COUNTS, time, repeatable=True)
            free = WIDE_LIMIT - row[0]
            if free <= 0:
                # Counting takes a while: do not repeat it for each request of a flood.
                self._full_until = time + SECOND
                return False
            self._room = max(1, free // _MEASURED_PART)
        self._room -= 1
        return True


def _digest_of(key: str, wide: bool) -> bytes:
    # A key may be any text, of any length.
    return sha256(key.encode("utf-8", "surrogatepass") + (b"\1" if wide else b"\0")).digest()


def _pack(state: State, most: int) -> bytes:
    if len(state) > most:
        raise ValueError(f"a state holds {most} numbers at most")
    return struct.pack(f"<{len(state)}d", *state)


def _unpack(data: bytes) -> State:
    return struct.unpack(f"<{len(data) // 8}d", data)


# Objects.

_COLUMNS = "o.kind, o.name, o.data, o.version, o.changed_at - now.shift AS changed_at"
_FIND = f"""SELECT now.clock, now.time, {_COLUMNS}
    FROM now LEFT JOIN @schema@.objects o ON o.kind = $3 AND o.name = $4"""  # noqa: S608
_LIST = f"""SELECT now.clock, now.time, {_COLUMNS}
    FROM now LEFT JOIN @schema@.objects o ON o.kind = $3 AND o.name > $4 ORDER BY o.name LIMIT $5"""  # noqa: S608
_COUNT = """SELECT count(*) AS count FROM @schema@.objects
    WHERE kind = $1 AND name >= $2 AND ($3::text IS NULL OR name < $3::text)"""
_PUT = "SELECT @schema@.put_object($1, $2, $3, $4, $5, $6, $7) AS version"
_DELETE = "SELECT @schema@.delete_object($1, $2, $3, $4, $5) AS deleted"
_KINDS = "SELECT DISTINCT kind FROM @schema@.objects ORDER BY kind"
_FULL = -1


class ObjectTable(StorePart):
    """Objects in PostgreSQL (`ostiary_gateway.interfaces.store_capabilities.ObjectStore`)."""

    async def put_object(self, kind: str, name: str, data: bytes, *, version: int | None) -> int | None:
        check_object(kind, name, data)
        time = self._time
        (row,) = await self._database.fetch(
            _PUT, time.override, time.seen, kind, name, data, version, store_capabilities.MOST_OBJECTS, repeatable=False
        )
        new_version: int | None = row["version"]
        if new_version == _FULL:
            raise too_many_objects(kind, self._database.settings.place)
        return new_version

    async def find_object(self, kind: str, name: str) -> StoredObject | None:
        check_object(kind, name)
        (row,) = await self._read(_FIND, kind, name)
        return None if row["name"] is None else self._object_of(row)

    async def list_objects(self, kind: str, *, after: str = "", limit: int = 1000) -> list[StoredObject]:
        check_object(kind, after, is_named=False)
        rows = await self._read(_LIST, kind, after, limit, seconds=LONG_SECONDS)
        return [self._object_of(row) for row in rows if row["name"] is not None]

    async def count_objects(self, kind: str, prefix: str) -> int:
        check_object(kind, prefix, is_named=False)
        (row,) = await self._database.fetch(_COUNT, kind, prefix, end_of_prefix(prefix), repeatable=True)
        return int(row["count"])

    async def delete_object(self, kind: str, name: str, *, version: int | None = None) -> bool:
        check_object(kind, name)
        time = self._time
        (row,) = await self._database.fetch(_DELETE, time.override, time.seen, kind, name, version, repeatable=False)
        return bool(row["deleted"])

    async def object_kinds(self) -> list[str]:
        rows = await self._database.fetch(_KINDS, repeatable=True, seconds=LONG_SECONDS)
        return [row["kind"] for row in rows]

    def _object_of(self, row: Row) -> StoredObject:
        changed_at = self._decode(self._time.moment, row["changed_at"])
        return StoredObject(row["kind"], row["name"], row["data"], row["version"], changed_at)
