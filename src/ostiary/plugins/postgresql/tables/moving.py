"""A PostgreSQL token store as a whole: read out for another store, and filled from one. A part of the store."""

from __future__ import annotations

from collections.abc import Sequence

from ostiary.core.tokens import check_storable
from ostiary.interfaces.store_abilities.moving import StoredLog, StoredSession
from ostiary.interfaces.token_store import Revocation, TokenRecord
from ostiary.plugins.common.sessions.stored_session import decode_kind, decode_token, encode_kind
from ostiary.plugins.postgresql.database import Row
from ostiary.plugins.postgresql.tables.store_part import LONG_SECONDS, SESSION_COLUMNS, StorePart

_LOG = """SELECT now.clock, now.time, now.head, now.forgotten, r.sequence, r.kind, r.value, r.at - now.shift AS at,
        r.author, r.recorded_at - now.shift AS recorded_at, r.undone, r.owner
    FROM now LEFT JOIN @schema@.revocations r ON r.kind <> 'gap' ORDER BY r.sequence"""
_SESSIONS = f"""SELECT now.clock, now.time, {SESSION_COLUMNS}, s.digests, s.kinds, s.issued, s.ends,
        s.delegations
    FROM now LEFT JOIN LATERAL (
        SELECT s.*, t.* FROM @schema@.sessions s CROSS JOIN LATERAL (
            SELECT array_agg(t.digest) AS digests, array_agg(t.kind) AS kinds,
                array_agg(t.issued_at - now.shift) AS issued, array_agg(t.expires_at - now.shift) AS ends,
                array_agg(t.delegation) AS delegations
            -- The zero keeps the database from reading the index by expiry, all of it, for every session.
            FROM @schema@.tokens t WHERE t.session = s.number AND t.expires_at + 0 > now.time
        ) t WHERE s.id > $3 AND s.expires_at > now.time ORDER BY s.id LIMIT $4
    ) s ON true ORDER BY s.id"""  # noqa: S608
_IMPORT_LOG = "SELECT @schema@.import_log_of_owners($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
_IMPORT_SESSION = f"SELECT @schema@.import_session_of_kind({', '.join(f'${number}' for number in range(1, 17))})"


class WholeStore(StorePart):
    async def export_log(self) -> StoredLog:
        rows = await self._read(_LOG, seconds=LONG_SECONDS)
        log_rows = [row for row in rows if row["sequence"] is not None]
        undone = frozenset(row["sequence"] for row in log_rows if row["undone"])
        revocations = tuple(self._decode(self._read_revocation, row) for row in log_rows)
        return StoredLog(rows[0]["head"], rows[0]["forgotten"], revocations, undone)

    async def export_sessions(self, after: str, limit: int) -> list[StoredSession]:
        rows = await self._read(_SESSIONS, after, limit, seconds=LONG_SECONDS)
        return [StoredSession(self._session_of(row), self._tokens_of(row)) for row in rows if row["id"] is not None]

    async def import_log(self, log: StoredLog) -> None:
        time = self._time
        (row,) = await self._database.fetch(
            _IMPORT_LOG,
            time.override,
            time.seen,
            log.head,
            log.forgotten,
            [each.sequence for each in log.revocations],
            [kind.value for kind, _ in map(encode_kind, log.revocations)],
            [value for _, value in map(encode_kind, log.revocations)],
            [None if each.at is None else time.to_database(each.at) for each in log.revocations],
            [each.by for each in log.revocations],
            [None if each.recorded_at is None else time.to_database(each.recorded_at) for each in log.revocations],
            [each.sequence in log.undone for each in log.revocations],
            [each.owner for each in log.revocations],
            repeatable=True,
            seconds=LONG_SECONDS,
        )
        if row[0] is not None:
            cause = f"its log of revocations is further: {row[0]}, and not {log.head}"
            raise self._database.unavailable(cause, "move into an empty schema: name another one in store.schema")

    async def import_sessions(self, sessions: Sequence[StoredSession]) -> None:
        for stored in sessions:
            check_storable(stored.session, stored.tokens)
        self._database.check_open()
        argument_lists = [
            [
                self._time.override,
                self._time.seen,
                *self._session_arguments(stored.session, stored.tokens),
                stored.session.sequence or 0,
            ]
            for stored in sessions
        ]
        await self._database.execute_many(_IMPORT_SESSION, argument_lists, seconds=LONG_SECONDS)

    def _read_revocation(self, row: Row) -> Revocation:
        moment = self._time.moment
        at = None if row["at"] is None else moment(row["at"])
        what, recorded_at = decode_kind(row["kind"], row["value"]), moment(row["recorded_at"])
        return Revocation(*what, at, row["author"], row["sequence"], recorded_at, row["owner"])

    def _tokens_of(self, row: Row) -> tuple[TokenRecord, ...]:
        names = ("digests", "kinds", "issued", "ends", "delegations")
        columns = zip(*(row[name] or () for name in names), strict=True)
        to_machine = self._time.to_machine
        return tuple(
            self._decode(decode_token, digest, row["id"], kind, to_machine(issued), to_machine(ends), delegation)
            for digest, kind, issued, ends, delegation in columns
        )
