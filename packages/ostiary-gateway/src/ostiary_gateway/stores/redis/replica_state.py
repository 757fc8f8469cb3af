"""Login transactions, replica messages, counts, the owner of the store, and objects in Redis.

Implements `RecordStore`, `NoteStore`, `CountStore`, `OwnedStore` and `ObjectStore` for the token store.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from hashlib import blake2b
from typing import TypeVar

from ostiary_gateway.interfaces import store_capabilities
from ostiary_gateway.interfaces.shared_counts import NARROW, WIDE, Change, State
from ostiary_gateway.interfaces.store_capabilities import LARGEST_NOTE, MOST_NOTES, Counted, Note, StoredObject
from ostiary_gateway.interfaces.token_store import MOST_RECORDS
from ostiary_gateway.sessions import check_object, too_many_objects
from ostiary_gateway.sessions.records import check_record
from ostiary_gateway.stores.redis.connection import Argument, Reply, Unusable
from ostiary_gateway.stores.redis.rows import Decode
from ostiary_gateway.stores.redis.script_calls import ScriptAnswer, ScriptCalls

# Maximum number of states, of either width.
MOST_COUNTS = 10_000
# Maximum number of attempts if other processes change the same counts; one of them succeeds each time.
MOST_ATTEMPTS = 100
# Number of locks that serialize updates within the process.
TURNS = 64
_SECOND = 1_000_000

T = TypeVar("T")


class RedisReplicaState:
    """Login transactions, replica messages, counts, and the owner of the store, in Redis."""

    def __init__(self, calls: ScriptCalls) -> None:
        self._calls = calls
        self._turns = [asyncio.Lock() for _ in range(TURNS)]

    # Records.

    async def put_record(self, key_digest: bytes, data: bytes, expires_at: datetime) -> bool:
        check_record(data, expires_at)
        expires = self._calls.to_server(expires_at)
        return bool((await self._calls.write("put_record", key_digest, expires, data, MOST_RECORDS)).value)

    async def find_record(self, key_digest: bytes) -> bytes | None:
        record: bytes | None = (await self._calls.look_up("find_record", key_digest, 0)).value
        return record

    async def take_record(self, key_digest: bytes) -> bytes | None:
        # Confirmed: a taken record must not reappear after a failover.
        record: bytes | None = (await self._calls.write("find_record", 1, key_digest, 1, confirmed=True)).value
        return record

    # Messages.

    async def put_notes(self, topic: str, notes: Mapping[str, bytes], *, seconds: float) -> None:
        if any(len(data) > LARGEST_NOTE for data in notes.values()):
            raise ValueError(f"a note holds {LARGEST_NOTE} bytes at most")
        arguments: list[Argument] = []
        for key, data in notes.items():
            arguments += [key, data]
        await self._calls.write("put_notes", topic, int(seconds * _SECOND), MOST_NOTES, *arguments)

    async def find_note(self, topic: str, key: str) -> Note | None:
        answer = await self._calls.read("find_note", topic, key)
        return None if answer.value is None else _read_note(key, answer.value, answer)

    async def latest_notes(self, topic: str, limit: int) -> list[Note]:
        answer = await self._calls.read("latest_notes", topic, limit)
        pairs = zip(answer.value[::2], answer.value[1::2], strict=True)
        return [_read_note(key.decode(), value, answer) for key, value in pairs]

    async def remove_note(self, topic: str, key: str) -> None:
        await self._calls.write("remove_note", topic, key)

    # Counts.

    async def update_counts(
        self, changes: Sequence[tuple[str, Change[T]]], *, wide: bool = False
    ) -> list[Counted[T] | None]:
        table, width = ("wide", WIDE) if wide else ("narrow", NARROW)
        keys = [blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest() for key, _ in changes]
        async with self._turn(keys):
            for _ in range(MOST_ATTEMPTS):
                answer = await self._calls.read("read_counts", table, *keys)
                pairs = zip(changes, answer.value, strict=True)
                counted = [_apply(change, value, answer.now, width) for (_, change), value in pairs]
                arguments: list[Argument] = []
                for key, value, each in zip(keys, answer.value, counted, strict=True):
                    arguments += [key, value or b"", _pack(each, answer.now), max(int(each.seconds * 1000), 0)]
                accepted = (await self._calls.write("write_counts", table, MOST_COUNTS, *arguments)).value
                if accepted is not None:
                    return [each if room else None for each, room in zip(counted, accepted, strict=True)]
        raise self._calls.unavailable(Unusable("other processes change the same counts all the time"))

    @asynccontextmanager
    async def _turn(self, keys: Sequence[bytes]) -> AsyncIterator[None]:
        """Serialize updates of one key within this process, so that only other processes can interfere.

        Raises after `store.timeout`: behind a hanging server, all callers fail as soon as the first.
        """
        if len(keys) != 1:
            yield
            return
        lock = self._turns[keys[0][0] % len(self._turns)]
        try:
            async with asyncio.timeout(self._calls.timeout):
                await lock.acquire()
        except TimeoutError as error:
            raise self._calls.unavailable(error) from None
        try:
            yield
        finally:
            lock.release()

    # The owner.

    async def claim(self, owner: str, *, anew: bool = False) -> str:
        answer = await self._calls.write("claim", owner, int(anew), confirmed=True)
        return str(answer.value.decode())


def _read_note(key: str, value: bytes, answer: ScriptAnswer) -> Note:
    _, written_at, data = value.split(b" ", 2)
    return Note(key, data, answer.time(int(written_at)))


def _apply(change: Change[T], value: bytes | None, now: int, width: int) -> Counted[T]:
    state, seconds, result = change(_unpack(value, now), now / _SECOND)
    if len(state) > width:
        raise ValueError("a state has more numbers than fit")
    return Counted(state, seconds, result, now / _SECOND)


def _unpack(value: bytes | None, now: int) -> State:
    """Decode the state; empty if it has expired. The first number is its expiry."""
    if not value:
        return ()
    until, *state = struct.unpack(f"<{len(value) // 8}d", value)
    return tuple(state) if until > now else ()


def _pack(counted: Counted[T], now: int) -> bytes:
    """Encode the state; empty if it does not matter."""
    if counted.seconds <= 0:
        return b""
    return struct.pack(f"<{len(counted.state) + 1}d", now + counted.seconds * _SECOND, *counted.state)


# Objects. A write is acknowledged like a sign-in: with `waitReplicas`, by that many replicas. Objects that a failover
# loses nevertheless are not restored.

# Read with one script: it must not block the server for long, and a response has a few megabytes at most.
READ_AT_ONCE = 50


class RedisObjects:
    """Objects in Redis (`ostiary_gateway.interfaces.store_capabilities.ObjectStore`)."""

    _calls: ScriptCalls

    async def put_object(self, kind: str, name: str, data: bytes, *, version: int | None) -> int | None:
        check_object(kind, name, data)
        expected = "" if version is None else version
        answer = await self._calls.write(
            "put_object", kind, name, data, expected, store_capabilities.MOST_OBJECTS, confirmed=True
        )
        if answer.value == b"full":
            raise too_many_objects(kind, self._calls.primary.description)
        return None if answer.value is None else int(answer.value)

    async def find_object(self, kind: str, name: str) -> StoredObject | None:
        check_object(kind, name)
        answer = await self._calls.look_up("find_object", kind, name)
        if answer.value is None:
            return None
        return self._calls.understand(_read_object, kind, name, answer.value, answer.time)

    async def list_objects(self, kind: str, *, after: str = "", limit: int = 1000) -> list[StoredObject]:
        check_object(kind, after, is_named=False)
        listed: list[StoredObject] = []
        while len(listed) < limit:
            most = min(READ_AT_ONCE, limit - len(listed))
            # Confirmed: a server that was replaced while it hung would omit some.
            answer = await self._calls.write("list_objects", kind, after, most, confirmed=True, repeatable=True)
            pairs = zip(answer.value[::2], answer.value[1::2], strict=True)
            page = [self._calls.understand(_read_listed, kind, *pair, answer.time) for pair in pairs]
            listed += page
            if len(page) < most:
                break
            after = page[-1].name
        return listed

    async def count_objects(self, kind: str, prefix: str) -> int:
        check_object(kind, prefix, is_named=False)
        return int((await self._calls.read("count_objects", kind, prefix)).value)

    async def delete_object(self, kind: str, name: str, *, version: int | None = None) -> bool:
        check_object(kind, name)
        expected = "" if version is None else version
        return bool((await self._calls.write("delete_object", kind, name, expected, confirmed=True)).value)

    async def object_kinds(self) -> list[str]:
        answer = await self._calls.write("object_kinds", confirmed=True, repeatable=True)
        return sorted(kind.decode() for kind in answer.value)


def _read_listed(kind: str, name: bytes, value: bytes, time: Decode) -> StoredObject:
    return _read_object(kind, name.decode(), value, time)


def _read_object(kind: str, name: str, value: Reply, time: Decode) -> StoredObject:
    version, changed_at, data = value.split(b" ", 2)
    return StoredObject(kind, name, data, int(version), time(int(changed_at)))
