"""The SQLite store as a file: its mode, its neighbours, its accidents. tests/conformance has the contract."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ostiary.core.yaml import ConfigReader, parse
from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.sessions import Tokens, digest
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import digest_of, follow
from tests.unit.ostiary_gateway.stores.sqlite.stores import add, unavailable, writer_of

# --- configuration ---


def test_its_path_is_meant_from_the_configuration(tmp_path: Path) -> None:
    reading = ConfigReader(parse("path: ostiary.db"))
    store = SqliteTokenStore.from_config(reading.root, Context(directory=tmp_path))
    assert store.path == str(tmp_path / "ostiary.db")
    assert reading.problems == []
    assert list(tmp_path.iterdir()) == [], "nothing is opened before it is needed"


def test_a_configuration_without_a_path_is_a_mistake() -> None:
    reading = ConfigReader(parse("{}"))
    SqliteTokenStore.from_config(reading.root, Context())
    assert [problem.place.path for problem in reading.problems] == ["path"]


# --- the file ---


async def test_what_is_stored_survives_a_restart(path: Path, clock: FakeClock) -> None:
    """C3."""
    first = SqliteTokenStore(path, clock=clock)
    await add(first, clock, "kept")
    await add(first, clock, "revoked")
    await first.revoke(Revocation(RevocationKind.SESSION, "revoked", clock.now()))
    await first.close()
    second = SqliteTokenStore(path, clock=clock)
    assert await second.find(digest_of("kept")) is not None
    assert await second.find(digest_of("revoked")) is None
    assert (await second.count(), len(await second.sessions())) == (1, 1)
    await second.close()


async def test_no_token_is_on_the_disk(store: SqliteTokenStore, clock: FakeClock) -> None:
    """C3, S23."""
    issued = await Tokens(store, clock=clock).issue(UserInfo("ann"), provider="staff")
    written = b"".join(file.read_bytes() for file in Path(store.path).parent.iterdir())
    assert digest(issued.token.reveal()) in written
    for token in (issued.token, issued.renewal):
        assert token.reveal()[4:30].encode() not in written


# --- neighbours ---


async def test_a_neighbour_that_writes_for_long_holds_up_no_look_up(
    store: SqliteTokenStore, path: Path, clock: FakeClock
) -> None:
    await add(store, clock, "a")
    with closing(sqlite3.connect(path, isolation_level=None)) as neighbour:
        neighbour.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(add(store, clock, "b"))
        assert await store.find(digest_of("a")) is not None
        assert not writing.done()
        neighbour.execute("COMMIT")
        await writing
    assert await store.find(digest_of("b")) is not None


async def test_a_neighbour_that_never_lets_go_is_an_outage(
    store: SqliteTokenStore, path: Path, clock: FakeClock
) -> None:
    await add(store, clock, "a")
    writer_of(store).execute("PRAGMA busy_timeout = 20")
    with closing(sqlite3.connect(path, isolation_level=None)) as neighbour:
        neighbour.execute("BEGIN IMMEDIATE")
        await unavailable(add(store, clock, "b"))
        neighbour.execute("ROLLBACK")
    await add(store, clock, "b")


# --- accidents ---


async def test_a_full_disk_loses_nothing_that_was_acknowledged(store: SqliteTokenStore, clock: FakeClock) -> None:
    await add(store, clock, "kept")
    writer = writer_of(store)
    (pages,) = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count = {pages}")
    names = [f"s{number}" for number in range(200)]
    outcomes = [await asyncio.gather(add(store, clock, name), return_exceptions=True) for name in names]
    failed = {name: error for name, (error,) in zip(names, outcomes, strict=True) if error is not None}
    assert {type(error) for error in failed.values()} == {ProviderError}
    assert all("full" in str(error) and "token-store-unavailable" in str(error) for error in failed.values())
    refused, acknowledged = list(failed), ["kept", *(name for name in names if name not in failed)]
    for name in acknowledged:
        assert await store.find(digest_of(name)) is not None
    for name in refused:
        assert await store.find(digest_of(name)) is None
        assert await store.session(name) is None
    writer.execute("PRAGMA max_page_count = 100000")
    await add(store, clock, refused[0])


async def test_a_file_that_cannot_be_written_is_an_outage_for_writers_only(path: Path, clock: FakeClock) -> None:
    store = SqliteTokenStore(path, clock=clock)
    await add(store, clock, "a")
    writer_of(store).execute("PRAGMA query_only = ON")
    await unavailable(add(store, clock, "b"))
    await unavailable(store.revoke(Revocation(RevocationKind.USER, "ann", clock.now())))
    assert await store.find(digest_of("a")) is not None
    await store.close()


async def test_a_damaged_page_is_an_outage_and_not_an_absent_token(path: Path, clock: FakeClock) -> None:
    """T5."""
    store = SqliteTokenStore(path, clock=clock)
    await asyncio.gather(*(add(store, clock, f"s{number}") for number in range(300)))
    await store.close()
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(data)
    again = SqliteTokenStore(path, clock=clock)
    await unavailable(again.find(digest_of("s1")))
    await again.close()


async def test_a_row_that_cannot_be_understood_is_an_outage_and_is_not_quoted(
    store: SqliteTokenStore, path: Path, clock: FakeClock
) -> None:
    await add(store, clock, "a")
    with closing(sqlite3.connect(path)) as neighbour:
        neighbour.execute("UPDATE sessions SET body = '[\"canary'")
        neighbour.commit()
    error = await unavailable(store.find(digest_of("a")))
    assert "canary" not in str(error)


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_file_that_was_removed_shuts_the_door(
    store: SqliteTokenStore, path: Path, clock: FakeClock, replaced: bool
) -> None:
    """T5: whoever revokes now does so in another file, and would not be heard."""
    await add(store, clock, "a")
    waiting = asyncio.ensure_future(follow(store, 0))
    await asyncio.sleep(0)
    path.unlink()
    if replaced:
        path.touch()
    await unavailable(waiting)
    await unavailable(store.find(digest_of("a")))
    await unavailable(add(store, clock, "b"))
