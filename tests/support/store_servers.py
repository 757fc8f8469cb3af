"""Token stores at servers, as an operator keeps them: the settings, a backup, and its restore, as the docs say it.

with redis_store(folder) as store:
    site.serving(store=store.settings)
    store.back_up(); ...; store.restore()
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from tests.support.postgresql import DATABASE, PASSWORD, POSTGRESQL_15, USER, PostgresServer, running
from tests.support.redis import RedisServer, redis_server, wait_until

SECONDS = 60.0


class StoreServer(Protocol):
    settings: dict[str, Any]

    def back_up(self) -> None: ...

    def restore(self) -> None:
        """While no gateway runs."""


class RedisStore:
    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._backup = server.folder / "backup.rdb"
        self.settings = {"type": "redis", "address": server.address}

    def back_up(self) -> None:
        command = ["redis-cli", "-p", str(self._server.port), "--rdb", str(self._backup)]
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)

    def restore(self) -> None:
        folder = self._server.folder
        self._server.kill()
        shutil.rmtree(folder / "appendonlydir")
        shutil.copy(self._backup, folder / "dump.rdb")
        # With an append-only file Redis would read that, and there is none: so first without, and then with.
        config = folder / "redis.conf"
        usual = config.read_text()
        config.write_text(usual + "appendonly no\n")
        self._server.start()
        config.write_text(usual)
        self._server.ask("CONFIG", "SET", "appendonly", "yes")
        wait_until(self._is_saved, "Redis does not write its append-only file")

    def _is_saved(self) -> bool:
        facts = self._server.info("persistence")
        return facts["aof_enabled"] == 1 and facts["aof_rewrite_in_progress"] == 0 and not facts["loading"]


@contextmanager
def redis_store(folder: Path) -> Iterator[StoreServer]:
    with redis_server(folder) as server:
        yield RedisStore(server)


class PostgresqlStore:
    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self._server = server
        self._backup = folder / "ostiary.dump"
        password = folder / "password"
        password.touch(mode=0o600)
        password.write_text(PASSWORD)
        self.settings = {
            "type": "postgresql",
            "hosts": [f"{server.host}:{server.port}"],
            "database": DATABASE,
            "user": USER,
            "passwordFile": str(password),
        }

    def back_up(self) -> None:
        self._run(
            "pg_dump", "--schema=ostiary", "--no-unlogged-table-data", "--format=custom", f"--file={self._backup}"
        )

    def restore(self) -> None:
        self._run("pg_restore", "--clean", "--if-exists", "--single-transaction", str(self._backup))

    def _run(self, program: str, *arguments: str) -> None:
        connection = f"host={self._server.host} port={self._server.port} user={USER} dbname={DATABASE}"
        subprocess.run(
            [POSTGRESQL_15 / "bin" / program, *arguments, f"--dbname={connection}"],
            check=True,
            env={**os.environ, "PGPASSWORD": PASSWORD},
            timeout=SECONDS,
        )


@contextmanager
def postgresql_store(folder: Path) -> Iterator[StoreServer]:
    folder.mkdir()
    with running(config="fsync = on\n") as server:
        yield PostgresqlStore(server, folder)


STORE_SERVERS = {"postgresql": postgresql_store, "redis": redis_store}
