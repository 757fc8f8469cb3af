"""Objects in Redis: service accounts, signing keys. A base of the token store.

The interface is `ostiary.interfaces.store_abilities.stored_objects.ObjectStore`. A change is acknowledged as a sign-in
is: with `waitReplicas`, by so many replicas. What a failover loses all the same nobody brings back.
"""

from __future__ import annotations

from ostiary.core.tokens import check_object, too_many_objects
from ostiary.interfaces.store_abilities import stored_objects
from ostiary.interfaces.store_abilities.stored_objects import StoredObject
from ostiary.plugins.redis.connection.dialer import Reply
from ostiary.plugins.redis.rows import Decode
from ostiary.plugins.redis.script_calls import ScriptCalls

# How many are read with one script: nobody waits for long meanwhile, and an answer has a few megabytes at most.
READ_AT_ONCE = 50


class RedisObjects:
    _calls: ScriptCalls

    async def put_object(self, kind: str, name: str, data: bytes, *, version: int | None) -> int | None:
        check_object(kind, name, data)
        expected = "" if version is None else version
        answer = await self._calls.write(
            "put_object", kind, name, data, expected, stored_objects.MOST_OBJECTS, confirmed=True
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
            # Confirmed: a server that was replaced while it hung would leave some out.
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
