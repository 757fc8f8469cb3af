"""What a PostgreSQL token store says of itself: for ``ostiary store check``, and before a start. A part of it."""

from __future__ import annotations

from ostiary.interfaces.store_abilities.examining import StoreReport
from ostiary.plugins.common.sessions.stored_session import moment_of
from ostiary.plugins.postgresql.migrations import VERSION, quote_identifier
from ostiary.plugins.postgresql.tables.store_part import LONG_SECONDS, StorePart

# All of this may be asked by any role.
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
# Each process that waits for notifications holds this lock: see `notifications`.
_LISTENING = """SELECT count(*) FROM pg_catalog.pg_locks
    WHERE locktype = 'advisory' AND classid = 1869837420 AND objid::bigint = @schema@.lock_number()::bigint
        AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())"""
_PROBLEMS = {
    "orphans": "tokens have no session",
    "ahead": "revocations have numbers that are not given out yet",
    "began_ahead": "sessions began after a revocation that is not there: it was lost",
}


class PostgresqlExamination(StorePart):
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
        """For ``ostiary serve --check --online``: creates nothing."""
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
