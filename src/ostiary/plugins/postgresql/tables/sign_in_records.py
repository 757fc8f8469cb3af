"""What sign-ins under way remember, in PostgreSQL: any worker of any replica can finish them. A part of the store."""

from __future__ import annotations

from datetime import datetime

from ostiary.core.tokens.records import check_record
from ostiary.interfaces.token_store import MOST_RECORDS
from ostiary.plugins.postgresql.tables.store_part import DONE, StorePart

_FIND = """SELECT now.clock, now.time, r.data
    FROM now LEFT JOIN @schema@.records r ON r.digest = $3 AND r.expires_at > now.time"""
_TAKE = """, taken AS (DELETE FROM @schema@.records WHERE digest = $3 RETURNING data, expires_at)
    SELECT now.clock, now.time, taken.data FROM now LEFT JOIN taken ON taken.expires_at > now.time"""


class SignInRecords(StorePart):
    async def put_record(self, key_digest: bytes, data: bytes, expires_at: datetime) -> bool:
        check_record(data, expires_at)
        row = await self._change(
            "put_record", lambda: [key_digest, data, self._time.to_database(expires_at), MOST_RECORDS]
        )
        return bool(row["outcome"] == DONE)

    async def find_record(self, key_digest: bytes) -> bytes | None:
        (row,) = await self._read(_FIND, key_digest)
        data: bytes | None = row["data"]
        return data

    async def take_record(self, key_digest: bytes) -> bytes | None:
        (row,) = await self._read(_TAKE, key_digest, repeatable=False)
        data: bytes | None = row["data"]
        return data
