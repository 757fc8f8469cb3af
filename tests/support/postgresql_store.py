"""Token stores in the servers of `tests.support.postgresql`, each in a schema of its own."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from ostiary.plugins.postgresql.settings import PostgresqlSettings
from tests.support.postgresql import DATABASE, PASSWORD, USER, PgBouncer, PostgresServer

_numbers = itertools.count()


def new_schema() -> str:
    """A name that no other test uses on the same server."""
    return f"test_{os.getpid()}_{next(_numbers)}"


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
