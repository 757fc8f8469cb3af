"""Export, import and checks of the PostgreSQL token store."""

from __future__ import annotations

from collections.abc import Sequence

from ostiary_gateway.interfaces.store_capabilities import StoredLog, StoredSession, StoreReport
from ostiary_gateway.interfaces.token_store import Revocation, TokenRecord
from ostiary_gateway.sessions import check_storable
from ostiary_gateway.stores.postgresql.database import VERSION, Row, quote_identifier
from ostiary_gateway.stores.postgresql.store_part import LONG_SECONDS, SESSION_COLUMNS, StorePart
from ostiary_gateway.stores.stored_session import decode_kind, decode_token, encode_kind, moment_of

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
    """Export and import of the PostgreSQL token store."""

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


# Checks, for ``ostiary-gateway store check`` and before a start. Any role may run the queries.
_SERVER = """SELECT current_setting('server_version') AS version,
    current_setting('synchronous_standby_names') AS standbys, current_setting('fsync') AS fsync,
    EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'version') AS is_there,
    CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)
        THEN has_schema_privilege($1, 'CREATE')
        ELSE has_database_privilege(current_database(), 'CREATE') END AS may_create"""
_VERSION = "SELECT version, usable_from FROM @schema@.version"
_CONTENTS = """SELECT now.clock, now.time,
        (SELECT count(*) FROM @schema@.sessions) AS sessions, (SELECT count(*) FROM @schema@.tokens) AS tokens,
        (SELECT count(*) FROM @schema@.tokens t
            WHERE NOT EXISTS (SELECT FROM @schema@.sessions s WHERE s.number = t.session)) AS orphans,
        (SELECT count(*) FROM @schema@.revocations WHERE sequence > now.head) AS ahead,
        (SELECT count(*) FROM @schema@.sessions WHERE sequence > now.head) AS began_ahead,
        (SELECT sum(pg_total_relation_size(oid)) FROM pg_catalog.pg_class
            WHERE relkind = 'r' AND relnamespace = $3::regnamespace) AS bytes
    FROM now"""
# Each process that waits for notifications holds this lock: see `revocation_log.Notifications`.
_LISTENING = """SELECT count(*) FROM pg_catalog.pg_locks
    WHERE locktype = 'advisory' AND classid = 1869837420 AND objid::bigint = @schema@.lock_number()::bigint
        AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())"""
_PROBLEMS = {
    "orphans": "tokens have no session",
    "ahead": "revocations have numbers that are not given out yet",
    "began_ahead": "sessions began after a revocation that is not there: it was lost",
}


class PostgresqlExamination(StorePart):
    """Checks of the PostgreSQL token store, for the operator."""

    async def examine(self) -> StoreReport:
        settings = self._database.settings
        (contents,) = await self._read(_CONTENTS, quote_identifier(settings.schema), seconds=LONG_SECONDS)
        (server,) = await self._database.fetch(_SERVER, settings.schema, repeatable=True)
        (schema,) = await self._database.fetch(_VERSION, repeatable=True)
        problems = [f"{contents[name]} {text}" for name, text in _PROBLEMS.items() if contents[name]]
        if server["fsync"] == "off":
            problems.append("the server runs with fsync = off: a crash of its machine loses everything")
        facts = (
            ("server", settings.place),
            ("version", f"PostgreSQL {server['version']}"),
            ("schema", f"version {schema['version']} of {VERSION}"),
            ("standbys", f"synchronous: {server['standbys']}" if server["standbys"] else "none synchronous"),
            ("sessions", str(contents["sessions"])),
            ("tokens", str(contents["tokens"])),
            ("size", f"{contents['bytes']} bytes"),
        )
        return StoreReport(facts, tuple(problems), moment_of(contents["clock"]))

    async def others_using(self) -> tuple[str, ...]:
        (row,) = await self._database.fetch(_LISTENING, repeatable=True)
        return (f"gateway processes that wait for its revocations: {row[0]}",) if row[0] else ()

    async def probe(self) -> str:
        """Check the server and the schema, for ``ostiary-gateway serve --check --online``. Creates nothing."""
        settings = self._database.settings
        (server,) = await self._database.fetch(_SERVER, settings.schema, repeatable=True, prepare=False)
        facts = [f"PostgreSQL {server['version']}"]
        if server["is_there"]:
            (schema,) = await self._database.fetch(_VERSION, repeatable=True, prepare=False)
            facts.append(f"schema {settings.schema} has version {schema['version']}")
        elif server["may_create"]:
            facts.append(f"schema {settings.schema} will be created")
        else:
            hint = f"as an administrator: CREATE SCHEMA {settings.schema} AUTHORIZATION {settings.user}"
            raise self._database.unavailable("the schema is missing, and the role may not create it", hint)
        facts.append(f"synchronous standbys: {server['standbys'] or 'none'}")
        return ", ".join(facts)
