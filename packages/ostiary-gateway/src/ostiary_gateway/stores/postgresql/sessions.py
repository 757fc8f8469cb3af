"""Sessions, tokens and login transactions in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from ostiary.errors import LoginRefused
from ostiary_gateway.interfaces.store_capabilities import ListedSession
from ostiary_gateway.interfaces.token_store import MOST_RECORDS, Found, Session, SessionKind, TokenRecord
from ostiary_gateway.sessions import check_storable, check_tokens, check_use
from ostiary_gateway.sessions.records import check_record
from ostiary_gateway.stores.postgresql.database import Row
from ostiary_gateway.stores.postgresql.store_part import DONE, LONG_SECONDS, SESSION_COLUMNS, StorePart
from ostiary_gateway.stores.stored_session import (
    SESSION_KINDS,
    decode_token,
    origin_name,
    place_text,
    read_numbered_place,
)

SWEEP_BATCH = 1000

_FIND = f"""SELECT now.clock, now.time, t.kind, t.issued_at - now.shift AS token_issued_at,
        t.expires_at - now.shift AS token_expires_at, t.delegation, {SESSION_COLUMNS}
    FROM now LEFT JOIN (@schema@.tokens t JOIN @schema@.sessions s ON s.number = t.session)
        ON t.digest = $3 AND t.expires_at > now.time AND s.expires_at > now.time"""  # noqa: S608
_SESSION = f"""SELECT now.clock, now.time, {SESSION_COLUMNS}
    FROM now LEFT JOIN @schema@.sessions s ON s.id = $3 AND s.expires_at > now.time"""  # noqa: S608
# A user's sessions are few, and sorted. All others are read in index order, and no more of them than needed: this
# requires the limit inside, since rows of an outer join have no order that an index could provide.
_SESSIONS_OF_USER = f"""SELECT now.clock, now.time, {SESSION_COLUMNS}, s.created_at AS stored_at, s.number
    FROM now LEFT JOIN @schema@.sessions s ON s.expires_at > now.time {{condition}}
    ORDER BY s.created_at DESC, s.number DESC LIMIT $3"""  # noqa: S608
_SESSIONS = f"""SELECT now.clock, now.time, {SESSION_COLUMNS}, s.created_at AS stored_at, s.number
    FROM now LEFT JOIN LATERAL (
        SELECT * FROM @schema@.sessions s WHERE s.expires_at > now.time {{condition}}
        ORDER BY s.created_at DESC, s.number DESC LIMIT $3
    ) s ON true
    ORDER BY s.created_at DESC, s.number DESC"""  # noqa: S608
_OF_USER = " AND s.username = {place}::text"
_OF_GROUP = " AND s.groups @> ARRAY[@schema@.name_digest({place}::text)]"
_OF_KIND = " AND s.kind = {place}::smallint"
_AFTER_PLACE = " AND (s.created_at, s.number) < ({place}::bigint, {next_place}::bigint)"
_COUNT_SESSIONS = """SELECT now.clock, now.time, count(s.number) AS count
    FROM now LEFT JOIN @schema@.sessions s ON s.username = $3 AND s.kind = $4 AND s.expires_at > now.time
    GROUP BY now.clock, now.time"""
_COUNT = "SELECT count(*) FROM @schema@.tokens"


def select_sessions(
    username: str | None,
    group: str | None,
    kind: SessionKind | None,
    *,
    limit: int,
    after: tuple[int, int] | None = None,
) -> tuple[str, list[object]]:
    """Return a statement to append to `NOW`, and its arguments from $3 on. *after* is a cursor in the list."""
    condition, arguments = "", list[object]([limit])
    number = None if kind is None else SESSION_KINDS[kind]
    for value, comparison in ((username, _OF_USER), (group, _OF_GROUP), (number, _OF_KIND)):
        if value is not None:
            arguments.append(value)
            condition += comparison.format(place=f"${len(arguments) + 2}")
    if after is not None:
        arguments += after
        condition += _AFTER_PLACE.format(place=f"${len(arguments) + 1}", next_place=f"${len(arguments) + 2}")
    statement = _SESSIONS if username is None else _SESSIONS_OF_USER
    return statement.format(condition=condition), arguments


class SessionTables(StorePart):
    """Sessions and their tokens in PostgreSQL."""

    async def add(self, session: Session, tokens: Sequence[TokenRecord]) -> None:
        check_storable(session, tokens)
        row = await self._change(
            "add_session_of_kind", lambda: [*self._session_arguments(session, tokens), session.sequence]
        )
        if row["outcome"] != DONE:
            raise LoginRefused(
                "this session has expired or was revoked: sign in again", cause="it was revoked during the sign-in"
            )

    async def add_tokens(self, session_id: str, tokens: Sequence[TokenRecord]) -> bool:
        check_tokens(tokens)
        row = await self._change("add_tokens", lambda: [session_id, *self._token_arguments(tokens)])
        return bool(row["outcome"] == DONE)

    async def renew(
        self, spent: bytes, *, at: datetime, session: Session, tokens: Sequence[TokenRecord], since: int | None = None
    ) -> bool:
        check_storable(session, tokens)
        row = await self._change(
            "renew_session_of_kind",
            lambda: [*self._session_arguments(session, tokens), spent, self._time.to_database(at), since],
        )
        return bool(row["outcome"] == DONE)

    async def find(self, digest: bytes) -> Found | None:
        (row,) = await self._read(_FIND, digest)
        if row["kind"] is None:
            return None
        to_machine = self._time.to_machine
        issued_at, expires_at = to_machine(row["token_issued_at"]), to_machine(row["token_expires_at"])
        token = self._decode(decode_token, digest, row["id"], row["kind"], issued_at, expires_at, row["delegation"])
        return Found(token, self._session_of(row))

    async def session(self, session_id: str) -> Session | None:
        (row,) = await self._read(_SESSION, session_id)
        return None if row["id"] is None else self._session_of(row)

    async def sessions(
        self,
        *,
        username: str | None = None,
        group: str | None = None,
        kind: SessionKind | None = None,
        limit: int = 1000,
    ) -> list[Session]:
        rows = await self._list_rows(username, group, kind, limit=limit)
        return [self._session_of(row) for row in rows]

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
        rows = await self._list_rows(username, group, kind, limit=limit, after=begin)
        # By the time in the database, which does not change when clocks are measured again.
        return [ListedSession(self._session_of(row), place_text(row["stored_at"], row["number"])) for row in rows]

    async def _list_rows(
        self,
        username: str | None,
        group: str | None,
        kind: SessionKind | None,
        *,
        limit: int,
        after: tuple[int, int] | None = None,
    ) -> list[Row]:
        statement, arguments = select_sessions(username, group, kind, limit=limit, after=after)
        # Those of one user are read at every sign-in; others may be many.
        seconds = None if username is not None else LONG_SECONDS
        rows = await self._read(statement, *arguments, seconds=seconds)
        return [row for row in rows if row["id"] is not None]

    async def sessions_from(self, origin: str, *, limit: int = 1000) -> list[Session]:
        return await self.sessions(group=origin_name(origin), limit=limit)

    async def count_sessions(self, username: str, kind: SessionKind) -> int:
        (row,) = await self._read(_COUNT_SESSIONS, username, SESSION_KINDS[kind])
        return int(row["count"])

    async def note_use(self, used: Mapping[str, datetime]) -> None:
        check_use(used)
        time = self._time
        moments = [time.to_database(moment) for moment in used.values()]
        statement = "SELECT @schema@.note_use($1, $2, $3, $4)"
        await self._database.fetch(statement, time.override, time.seen, list(used), moments, repeatable=True)

    async def heartbeat(self) -> None:
        time = self._time
        sent_at = time.machine
        (row,) = await self._database.fetch(
            "SELECT * FROM @schema@.heartbeat($1, $2)", time.override, time.seen, repeatable=True
        )
        time.note(row["clock"], row["time"], sent=sent_at)

    async def sweep(self) -> int:
        """Delete what has expired, in small transactions. Only one replica sweeps at a time; the others skip it."""
        fetch, time = self._database.fetch, self._time
        swept, more = 0, True
        while more:
            (row,) = await fetch(
                "SELECT * FROM @schema@.sweep($1, $2, $3)", time.override, time.seen, SWEEP_BATCH, repeatable=True
            )
            swept, more = swept + row["swept"], row["more"]
        for function in ("forget_revocations", "sweep_replicas"):
            await fetch(f"SELECT @schema@.{function}($1, $2)", time.override, time.seen, repeatable=True)
        return swept

    async def count(self) -> int:
        (row,) = await self._database.fetch(_COUNT, repeatable=True, seconds=LONG_SECONDS)
        return int(row[0])


# Login transactions.

_SIGN_IN_RECORDS_FIND = """SELECT now.clock, now.time, r.data
    FROM now LEFT JOIN @schema@.records r ON r.digest = $3 AND r.expires_at > now.time"""
_TAKE = """, taken AS (DELETE FROM @schema@.records WHERE digest = $3 RETURNING data, expires_at)
    SELECT now.clock, now.time, taken.data FROM now LEFT JOIN taken ON taken.expires_at > now.time"""


class SignInRecords(StorePart):
    """Records of sign-ins in progress, in PostgreSQL."""

    async def put_record(self, key_digest: bytes, data: bytes, expires_at: datetime) -> bool:
        check_record(data, expires_at)
        row = await self._change(
            "put_record", lambda: [key_digest, data, self._time.to_database(expires_at), MOST_RECORDS]
        )
        return bool(row["outcome"] == DONE)

    async def find_record(self, key_digest: bytes) -> bytes | None:
        (row,) = await self._read(_SIGN_IN_RECORDS_FIND, key_digest)
        data: bytes | None = row["data"]
        return data

    async def take_record(self, key_digest: bytes) -> bytes | None:
        (row,) = await self._read(_TAKE, key_digest, repeatable=False)
        data: bytes | None = row["data"]
        return data
