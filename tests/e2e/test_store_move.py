"""A token store is moved, interrupted, backed up and restored with real gateways and real processes."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest
import trustme
import yaml

from ostiary.model import UserInfo
from ostiary_gateway.interfaces.store_capabilities import StoredSession
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, Session, TokenKind, TokenRecord
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from ostiary_gateway.stores.transfer import PAGE, compare
from ostiary_gateway.testing.token_store import digest_of
from tests.support.cluster import Cluster
from tests.support.gateway import SECONDS, GatewayFolder, Login, ServedGateway, Site, role
from tests.support.postgresql import DATABASE, PASSWORD, POSTGRESQL_15, USER, PostgresServer, running
from tests.support.redis import RedisServer, redis_server
from tests.support.terminal import AtTerminal
from tests.support.tiers import missing
from tests.support.waiting import until

PODS = "/api/v1/namespaces/team/pods"
PROGRAM = [sys.executable, "-m", "ostiary_gateway"]
# So many that a copy can be caught in the middle.
MANY = 12 * PAGE


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
        subprocess.run(command, check=True, capture_output=True, timeout=60)

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
        until(self._is_saved, "Redis writes its append-only file")

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
            timeout=60,
        )


@contextmanager
def postgresql_store(folder: Path) -> Iterator[StoreServer]:
    folder.mkdir()
    with running(config="fsync = on\n") as server:
        yield PostgresqlStore(server, folder)


STORE_SERVERS = {"postgresql": postgresql_store, "redis": redis_store}


def run(folder: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [*PROGRAM, *arguments], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


# --- interrupted ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two configurations; the store of the first is full of sessions."""
    site = GatewayFolder(tmp_path)
    site.write_config("new.yaml", store={"type": "sqlite", "path": "new.db"})
    return tmp_path


async def fill(path: Path) -> None:
    store, now = SqliteTokenStore(path), datetime.now(UTC)
    until = now + timedelta(hours=12)
    stored = []
    for number in range(MANY):
        session = Session(f"{number:06}", UserInfo(f"user {number}", groups=("dev",)), "staff", now, until, sequence=0)
        tokens = [
            TokenRecord(digest_of(f"{kind} {number}"), session.id, now, until, kind)
            for kind in (TokenKind.ACCESS, TokenKind.RENEWAL, TokenKind.SPENT)
        ]
        stored.append(StoredSession(session, tuple(tokens)))
    await store.import_sessions(stored)
    await store.revoke(Revocation(RevocationKind.USER, "user 7"))
    await store.close()


def _size(path: Path) -> int:
    """Zero if it is not there: SQLite makes and removes it as it likes."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def kill_in_the_middle(folder: Path) -> bool:
    """Start a move, and SIGKILL it when it has written some more; False if it had ended before we looked."""
    log = folder / "new.db-wal"
    process = subprocess.Popen([*PROGRAM, "store", "migrate", "gateway.yaml", "new.yaml"], cwd=folder)
    give_up_at = time.monotonic() + SECONDS
    while _size(log) <= 500_000:
        if process.poll() is not None:
            return False
        assert time.monotonic() < give_up_at
        time.sleep(0.001)
    with closing(sqlite3.connect(folder / "new.db", timeout=SECONDS, isolation_level=None)) as held:
        # It cannot go on while this lock is held.
        held.execute("BEGIN IMMEDIATE")
        process.send_signal(signal.SIGKILL)
        was_killed = process.wait(SECONDS) == -signal.SIGKILL
        held.execute("ROLLBACK")
    return was_killed


@pytest.mark.slow
async def test_a_move_that_is_killed_goes_on_and_ends_as_if_nothing_had_happened(folder: Path) -> None:
    await fill(folder / "tokens.db")
    counts: list[int] = []
    while len(counts) < 2:
        if kill_in_the_middle(folder):
            with closing(sqlite3.connect(folder / "new.db")) as db:
                counts += [db.execute("SELECT count(*) FROM sessions").fetchone()[0]]
        else:
            # Nobody looked while it was under way: once more from the beginning.
            counts.clear()
            for file in folder.glob("new.db*"):
                file.unlink()
    assert 0 < counts[0] < counts[1] < MANY - 1
    said = run(folder, "store", "migrate", "gateway.yaml", "new.yaml")
    assert f"{MANY - 1 - counts[1]:,} sessions written" in said
    assert "both stores have the same content" in said
    source, target = SqliteTokenStore(folder / "tokens.db"), SqliteTokenStore(folder / "new.db")
    assert (await compare(source, target)).is_same
    assert await target.find(digest_of(f"{TokenKind.ACCESS} 7")) is None
    await source.close()
    await target.close()


@pytest.mark.slow
async def test_a_terminal_shows_how_far_it_is_and_standard_output_only_the_result(folder: Path) -> None:
    await fill(folder / "tokens.db")
    command = [*PROGRAM, "store", "migrate", str(folder / "gateway.yaml"), str(folder / "new.yaml")]
    person = AtTerminal(command, dict(os.environ))
    person.read_until(f" of about {MANY - 1:,} sessions, ")
    code, out = person.end()
    assert code == 0
    assert "comparing" in person.shown
    assert "copying" in person.shown
    assert out.startswith(f"{MANY - 1:,} sessions written")
    assert "\x1b" not in out


# --- with gateways ---


class Place:
    """A gateway before a cluster, which can be stopped and started with another store; each has its configuration."""

    def __init__(self, folder: Path, ca: trustme.CA, cluster: Cluster) -> None:
        self.site = Site(folder, ca)
        self.site.users("alice", "bob")
        self.site.policy(role("team", "pods", User="alice"), role("team", "pods", User="bob"))
        self._upstream = self.site.impersonating(cluster)
        self.folder = folder
        self._stores: dict[str, Any] = {}
        for name in ("old", "new", "backup"):
            self.add_store(name, {"type": "sqlite", "path": f"{name}.db"})

    def add_store(self, name: str, store: dict[str, Any]) -> None:
        self._stores[name] = store
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(self.site.config(**self._sections(name))))

    def serving(self, name: str) -> ServedGateway:
        return self.site.serving(**self._sections(name))

    def _sections(self, name: str) -> dict[str, Any]:
        return {"upstreams": [self._upstream], "store": self._stores[name]}

    def run(self, *arguments: str, code: int = 0) -> str:
        return run(self.folder, *arguments, code=code)


@pytest.fixture
def place(tmp_path: Path, ca: trustme.CA) -> Iterator[Place]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        yield Place(tmp_path / "site", ca, cluster)


def status(gateway: ServedGateway, login: Login) -> int:
    return gateway.get(PODS, login.token).status_code


def test_a_gateway_is_moved_to_another_store_and_back_and_nobody_signs_in_again(place: Place) -> None:
    with place.serving("old") as gateway:
        alice, bob = gateway.login("alice"), gateway.login("bob")
        assert [status(gateway, each) for each in (alice, bob)] == [200, 200]
        refused = place.run("store", "migrate", "old.yaml", "new.yaml", code=1)
        assert "store-in-use" in refused
        assert not (place.folder / "new.db").exists()
        ahead = place.run("store", "migrate", "old.yaml", "new.yaml", "--running")
        assert "2 sessions written" in ahead
        place.run("sessions", "revoke", "user", "bob", "--config", "old.yaml")
    assert "1 session written" in place.run("store", "migrate", "old.yaml", "new.yaml")
    with place.serving("new") as gateway:
        assert [status(gateway, each) for each in (alice, bob)] == [200, 401]
        again = gateway.login("bob")
        assert "store-in-use" in place.run("store", "migrate", "old.yaml", "new.yaml", code=1)
    assert "store-not-empty" in place.run("store", "migrate", "old.yaml", "new.yaml", code=1)
    place.run("store", "migrate", "new.yaml", "old.yaml")
    with place.serving("old") as gateway:
        assert [status(gateway, each) for each in (alice, bob, again)] == [200, 401, 200]


@pytest.fixture(params=STORE_SERVERS)
def server(request: pytest.FixtureRequest, place: Place) -> Iterator[StoreServer]:
    with STORE_SERVERS[request.param](place.folder / "server") as server:
        place.add_store("server", server.settings)
        yield server


@pytest.mark.slow
def test_a_gateway_moves_to_a_server_and_back_while_people_stay_signed_in(place: Place, server: StoreServer) -> None:
    with place.serving("old") as gateway:
        alice, bob = gateway.login("alice"), gateway.login("bob")
        place.run("sessions", "revoke", "user", "bob", "--config", "old.yaml")
    assert "both stores have the same content: 1 session with" in place.run(
        "store", "migrate", "old.yaml", "server.yaml"
    )
    with place.serving("server") as gateway:
        assert [status(gateway, each) for each in (alice, bob)] == [200, 401]
        again = gateway.login("bob")
        assert "store-in-use" in place.run("store", "migrate", "server.yaml", "new.yaml", code=1)
        assert "2 sessions written" in place.run("store", "migrate", "server.yaml", "new.yaml", "--running")
        place.run("sessions", "revoke", "user", "alice", "--config", "server.yaml")
    assert "1 session written" in place.run("store", "migrate", "server.yaml", "new.yaml")
    with place.serving("new") as gateway:
        assert [status(gateway, each) for each in (alice, bob, again)] == [401, 401, 200]


@pytest.mark.slow
def test_a_backup_of_a_server_is_restored_without_what_was_revoked_since(place: Place, server: StoreServer) -> None:
    with place.serving("server") as gateway:
        alice, bob = gateway.login("alice"), gateway.login("bob")
        server.back_up()
        place.run("sessions", "revoke", "user", "bob", "--config", "server.yaml")
        assert [status(gateway, each) for each in (alice, bob)] == [200, 401]
    server.restore()
    assert "2, 0 of them without a token" in place.run("store", "check", "--config", "server.yaml"), "the danger"
    assert "2 sessions ended" in place.run("store", "after-restore", "--config", "server.yaml")
    with place.serving("server") as gateway:
        assert [status(gateway, each) for each in (alice, bob)] == [401, 401]
        assert status(gateway, gateway.login("alice")) == 200


def restore(place: Place, backup: str) -> None:
    for name in ("old.db", "old.db-wal", "old.db-shm"):
        (place.folder / name).unlink(missing_ok=True)
    (place.folder / "old.db").write_bytes((place.folder / backup).read_bytes())


@pytest.mark.slow
def test_a_backup_of_a_running_gateway_is_restored_without_what_was_revoked_since(place: Place) -> None:
    with place.serving("old") as gateway:
        alice, bob = gateway.login("alice"), gateway.login("bob")
        place.run("store", "migrate", "old.yaml", "backup.yaml", "--running")
        sqlite3_program(place.folder, "VACUUM INTO 'vacuum.db'")
        sqlite3_program(place.folder, ".backup page-by-page.db")
        place.run("sessions", "revoke", "user", "bob", "--config", "old.yaml")
        assert status(gateway, bob) == 401
    for backup in ("backup.db", "vacuum.db", "page-by-page.db"):
        restore(place, backup)
        with place.serving("old") as gateway:
            assert [status(gateway, each) for each in (alice, bob)] == [200, 200], "the danger of a backup"
            # While it runs: who has forgotten it before the start can still do it.
            assert "2 sessions ended" in place.run("store", "after-restore", "--config", "old.yaml")
            assert [status(gateway, each) for each in (alice, bob)] == [401, 401]
    restore(place, "vacuum.db")
    place.run("store", "after-restore", "--config", "old.yaml")
    place.run("store", "check", "--config", "old.yaml")
    with place.serving("old") as gateway:
        assert [status(gateway, each) for each in (alice, bob)] == [401, 401]
        assert status(gateway, gateway.login("alice")) == 200


def sqlite3_program(folder: Path, statement: str) -> None:
    try:
        subprocess.run(["sqlite3", "old.db", statement], cwd=folder, check=True, timeout=SECONDS)
    except FileNotFoundError:
        missing("sqlite3")
