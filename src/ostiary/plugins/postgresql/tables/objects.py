"""Objects in PostgreSQL: service accounts, signing keys. A part of the token store."""

from __future__ import annotations

from ostiary.core.tokens import check_object, end_of_prefix, too_many_objects
from ostiary.interfaces.store_abilities import stored_objects
from ostiary.interfaces.store_abilities.stored_objects import StoredObject
from ostiary.plugins.postgresql.database import Row
from ostiary.plugins.postgresql.tables.store_part import LONG_SECONDS, StorePart

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
    async def put_object(self, kind: str, name: str, data: bytes, *, version: int | None) -> int | None:
        check_object(kind, name, data)
        time = self._time
        (row,) = await self._database.fetch(
            _PUT, time.override, time.seen, kind, name, data, version, stored_objects.MOST_OBJECTS, repeatable=False
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
