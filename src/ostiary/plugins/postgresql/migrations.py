"""The schema in the database: created, checked for its version, brought up to date.

Called by `database` before the first call. A version is a set of files in ``steps/``. Each is applied in a transaction
under a lock, so of two gateways that start at once one does it and the other finds it done. Steps only add: a table, a
column with a default, a function under a new name. So the version before can go on with the newer schema, and replicas
are updated one after the other; `USABLE_FROM` says which versions can.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from ostiary.plugins.postgresql.connections import Connection
from ostiary.plugins.postgresql.failures import StoreFailure

VERSION = 4
# The oldest version of the schema that can be used by a gateway that knows this one only, and the other way around.
USABLE_FROM = {1: 1, 2: 1, 3: 1, 4: 1}
FILES = {
    1: ("0001_tables", "0001_time_and_log", "0001_sessions", "0001_replicas", "0001_moving"),
    2: ("0002_programs", "0002_objects"),
    3: ("0003_owners",),
    4: ("0004_lists",),
}
# Creating indexes on tables that are in use takes its time.
MIGRATION_SECONDS = 60.0
_LOCK = "SELECT pg_advisory_xact_lock(1869837418, hashtext($1))"
# From the tables of the catalog: functions such as to_regclass answer from a cache, which may not know yet what another
# connection created a moment ago.
_TABLES = """SELECT count(*) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname LIKE $2"""
_VERSION_TABLE = """CREATE TABLE {schema}.version (
    one boolean PRIMARY KEY DEFAULT true CHECK (one), version integer NOT NULL, usable_from integer NOT NULL)"""


def quote_identifier(schema: str) -> str:
    """As an identifier; the settings allow neither quotes nor capitals."""
    return f'"{schema}"'


def channel_of(schema: str) -> str:
    return f"ostiary_{schema}"


def script(schema: str, version: int) -> str:
    folder = files("ostiary.plugins.postgresql") / "steps"
    text = "\n".join((folder / f"{name}.sql").read_text("utf-8") for name in FILES[version])
    return text.replace("@schema@", quote_identifier(schema)).replace("@channel@", channel_of(schema))


class Migrations:
    """What this ostiary knows about versions; a test says something else to play a later one."""

    def __init__(
        self,
        *,
        version: int = VERSION,
        usable_from: Mapping[int, int] | None = None,
        scripts: Mapping[int, str] | None = None,
    ) -> None:
        self.version = version
        self._usable_from = usable_from or USABLE_FROM
        self._scripts = scripts or {}

    async def prepare(self, connection: Connection, schema: str) -> None:
        """Raises `StoreFailure` if the schema is not one that this version can use."""
        # In a transaction, so that a pooler does not change the connection under way.
        async with connection.transaction():
            await self._check_encoding(connection)
            version = await self._read_version(connection, schema)
        for step in range(version + 1, self.version + 1):
            await self._apply(connection, schema, step)

    async def _check_encoding(self, connection: Connection) -> None:
        encoding = await connection.fetchval("SHOW server_encoding")
        if encoding != "UTF8":
            hint = "create one with: CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
            raise StoreFailure(f"the database has the encoding {encoding}, and names need UTF8", hint)

    async def _read_version(self, connection: Connection, schema: str) -> int:
        """Zero if there is no schema of ours yet."""
        if not await connection.fetchval(_TABLES, schema, "version"):
            return 0
        row = await connection.fetchrow(f"SELECT version, usable_from FROM {quote_identifier(schema)}.version")  # noqa: S608
        if row is None:
            raise StoreFailure("the schema is damaged: the row of the table version is missing")
        if row["usable_from"] > self.version:
            cause = f"the schema has version {row['version']}, and this ostiary knows up to {self.version}"
            raise StoreFailure(cause, "use the version of ostiary that wrote it, or name another schema")
        return int(row["version"])

    async def _apply(self, connection: Connection, schema: str, version: int) -> None:
        async with connection.transaction():
            # Another gateway may be doing the same: the second one waits here, and then finds it done.
            await connection.execute("SELECT set_config('statement_timeout', '60s', true)")
            await connection.execute(_LOCK, schema, timeout=MIGRATION_SECONDS)
            current = await self._read_version(connection, schema)
            if current >= version:
                return
            if current == 0:
                await self._create(connection, schema)
            text = self._scripts.get(version) or script(schema, version)
            await connection.execute(text, timeout=MIGRATION_SECONDS)
            await connection.execute(
                f"UPDATE {quote_identifier(schema)}.version SET version = $1, usable_from = $2",  # noqa: S608
                version,
                self._usable_from[version],
            )

    async def _create(self, connection: Connection, schema: str) -> None:
        if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema):
            await connection.execute(f"CREATE SCHEMA {quote_identifier(schema)}")
        elif await connection.fetchval(_TABLES, schema, "%"):
            raise StoreFailure("the schema has tables of another program", "name another schema in store.schema")
        await connection.execute(_VERSION_TABLE.format(schema=quote_identifier(schema)))
        await connection.execute(f"INSERT INTO {quote_identifier(schema)}.version VALUES (true, 0, 0)")  # noqa: S608
