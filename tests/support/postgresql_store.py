"""Token stores in the servers of `tests.support.postgresql`, each in a schema of its own."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from ostiary_gateway.stores.postgresql.settings import PostgresqlSettings
from tests.support.postgresql import DATABASE, PASSWORD, USER, PgBouncer, PostgresServer

_numbers = itertools.count()


def new_schema() -> str:
    """A name that no other test uses on the same server."""
    return f"test_{os.getpid()}_{next(_numbers)}"


_EMPTY = """
SET session_replication_role = replica;
DO $do$ DECLARE name text; BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = '{schema}' AND tablename <> 'version' LOOP
        EXECUTE format('DELETE FROM {schema}.%I', name);
        IF name = 'state' THEN INSERT INTO {schema}.state DEFAULT VALUES; END IF;
    END LOOP;
END $do$"""


class Schemas:
    """Schemas that tests use one after the other: creating the tables takes longer than most tests."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._unused: list[str] = []

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[str]:
        """A schema without tables, or with those of an earlier test, emptied."""
        schema = self._unused.pop() if self._unused else ""
        if schema:
            server = self._server
            superuser = await asyncpg.connect(
                host=str(server.folder), port=server.port, user="postgres", database=DATABASE
            )
            await superuser.execute(_EMPTY.format(schema=schema))
            await superuser.close()
        else:
            schema = new_schema()
        yield schema
        self._unused.append(schema)


def store_section(*addresses: str, folder: Path) -> dict[str, object]:
    """The section ``store`` of a gateway's configuration; *addresses* are servers as `host:port`."""
    password = folder / "database-password"
    password.write_text(PASSWORD + "\n")
    place = {"hosts": list(addresses), "database": DATABASE, "user": USER, "passwordFile": str(password)}
    return {"type": "postgresql", "schema": new_schema(), **place}


def settings_for(
    *servers: PostgresServer | PgBouncer, folder: Path, schema: str | None = None, **changes: object
) -> PostgresqlSettings:
    """How to reach the *servers*; the password lies in a file in *folder*."""
    password = folder / "password"
    password.write_text(PASSWORD + "\n")
    hosts = tuple(f"{server.host}:{server.port}" for server in servers)
    settings: dict[str, object] = {
        "hosts": hosts,
        "database": DATABASE,
        "user": USER,
        "password_file": password,
        "schema": schema or new_schema(),
        # A busy machine is no broken database; tests of the limits set their own.
        "connect_timeout": 60.0,
        "command_timeout": 60.0,
    }
    return PostgresqlSettings(**{**settings, **changes})  # type: ignore[arg-type]
