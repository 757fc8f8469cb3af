"""What a SQLite token store reads and writes at once does not grow with what it holds."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, Session, SessionKind, TokenRecord
from ostiary_gateway.stores.sqlite import database_file, log
from ostiary_gateway.stores.sqlite import database_file as schema
from ostiary_gateway.stores.sqlite import transactions as changes
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from ostiary_gateway.stores.stored_session import micros
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import digest_of, make_session, make_token

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
FEW, MANY = 300, 3000
STEPS = 10


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(database_file.connect(":memory:")) as connection:
        database_file.prepare(connection)
        yield connection


def fill(db: sqlite3.Connection, first: int, last: int) -> None:
    """Sessions that began one second after the other, all in one group; a few of the oldest are of API tokens."""
    for number in range(first, last):
        begun = NOW - timedelta(hours=2) + timedelta(seconds=number)
        user = UserInfo(f"user-{number // 5}", groups=("staff", f"team-{number // 50}"))
        kind = SessionKind.API_TOKEN if number < FEW and number % 100 == 0 else SessionKind.SIGN_IN
        session = Session(f"s{number:06}", user, "staff", begun, NOW + timedelta(hours=24), kind=kind)
        assert changes.add(db, session, [], now=NOW, seen=log.Seen())


def steps_of(db: sqlite3.Connection, work: Callable[[], object]) -> int:
    """About how many instructions of SQLite's machine *work* takes: the same on every computer."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    db.set_progress_handler(step, STEPS)
    work()
    db.set_progress_handler(None, STEPS)
    return count


def listed(db: sqlite3.Connection, **search: object) -> list[log.Row]:
    arguments = {"username": None, "group": None, "kind": None, "limit": 20, **search}
    return schema.list_sessions(db, **arguments, now=NOW)  # type: ignore[arg-type]


# A page from the middle: sessions are there before and after it.
MIDDLE = (micros(NOW - timedelta(hours=2) + timedelta(seconds=FEW // 2)), FEW // 2)


@pytest.mark.parametrize(
    "search",
    [
        {},
        {"after": MIDDLE},
        {"username": "user-7"},
        {"username": "user-7", "kind": SessionKind.SIGN_IN},
        {"group": "team-3"},
        {"group": "staff"},
        {"group": "staff", "after": MIDDLE},
        {"kind": SessionKind.API_TOKEN, "limit": 3},
        {"kind": SessionKind.SIGN_IN},
    ],
    ids=str,
)
def test_a_page_of_sessions_takes_as_long_among_many(
    db: sqlite3.Connection, search: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "LARGE_GROUP", FEW // 2)
    fill(db, 0, FEW)
    with_few = steps_of(db, lambda: listed(db, **search))
    fill(db, FEW, MANY)
    assert listed(db, **search)
    assert steps_of(db, lambda: listed(db, **search)) < 1.5 * with_few + 5


@pytest.mark.parametrize("most_looked_at", [0, 7, 1000])
@pytest.mark.parametrize("kind", [None, SessionKind.API_TOKEN])
def test_the_sessions_of_a_large_group_are_the_same_in_the_same_order(
    db: sqlite3.Connection, most_looked_at: int, kind: SessionKind | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they are looked for among the newest of all, or sorted, or first the one and then the other."""
    fill(db, 0, FEW)
    searches = [
        {"group": group, "kind": kind, "after": after} for group in ("staff", "team-2") for after in (None, MIDDLE)
    ]
    sorted_ones = [listed(db, **search) for search in searches]
    monkeypatch.setattr(schema, "LARGE_GROUP", 0)
    monkeypatch.setattr(schema, "MOST_LOOKED_AT", most_looked_at)
    assert [listed(db, **search) for search in searches] == sorted_ones
    assert any(sorted_ones)


def test_a_sign_in_and_a_sweep_read_few_of_the_revocations(db: sqlite3.Connection) -> None:
    recent = NOW - timedelta(minutes=1)

    def look() -> None:
        log.last_before(db, recent)
        log.forget(db, micros(NOW))

    def revoke(count: int, at: datetime) -> None:
        for number in range(count):
            log.record(db, Revocation(RevocationKind.USER, f"user-{number}"), micros(at))

    revoke(FEW, NOW - timedelta(minutes=30))
    revoke(1, NOW)
    with_few = steps_of(db, look)
    assert log.last_before(db, recent) == FEW
    db.execute("DELETE FROM revocations")
    log.start_sequence(db, 0)
    revoke(MANY, NOW - timedelta(minutes=30))
    revoke(1, NOW)
    assert log.last_before(db, recent) == MANY
    assert steps_of(db, look) < 1.5 * with_few + 5


def test_revocations_are_forgotten_after_an_hour_and_not_before(db: sqlite3.Connection) -> None:
    for minutes in (90, 60, 59):
        log.record(db, Revocation(RevocationKind.USER, "ann"), micros(NOW - timedelta(minutes=minutes)))
    log.forget(db, micros(NOW))
    assert db.execute("SELECT sequence FROM revocations").fetchall() == [(3,)]
    assert db.execute("SELECT forgotten FROM state").fetchone() == (2,)


def test_a_reader_that_is_far_behind_reads_no_more_than_it_can_hold(db: sqlite3.Connection) -> None:
    for number in range(log.MOST_FOLLOWED + 5):
        log.record(db, Revocation(RevocationKind.USER, f"user-{number}"), micros(NOW))
    behind = log.batch(db.execute(log.AFTER, (0,)).fetchall(), 0)
    assert (behind.head, behind.complete) == (log.MOST_FOLLOWED + 5, False)
    assert len(behind.revocations) <= log.MOST_FOLLOWED
    near = log.batch(db.execute(log.AFTER, (behind.head - 2,)).fetchall(), behind.head - 2)
    assert near.complete
    assert [each.sequence for each in near.revocations] == [behind.head - 1, behind.head]


def test_a_portion_of_a_sweep_is_small_however_many_tokens_a_session_has(db: sqlite3.Connection) -> None:
    """Each portion is a transaction, and sign-ins wait for it."""
    sessions, tokens, limit = 6, 40, 50
    for number in range(sessions):
        begun = NOW - timedelta(hours=30)
        session = Session(f"s{number}", UserInfo("ann", groups=("dev",)), "staff", begun, NOW - timedelta(hours=1))
        records = [
            TokenRecord(digest_of(f"{number}/{place}"), session.id, begun, session.expires_at)
            for place in range(tokens)
        ]
        assert changes.add(db, session, records, now=begun, seen=log.Seen())
    swept, more, largest = 0, True, 0
    while more:
        before = db.total_changes
        deleted, more = changes.sweep(db, now=NOW, limit=limit)
        largest = max(largest, db.total_changes - before)
        swept += deleted
    assert swept == sessions * tokens
    # The time, and with the last tokens a row and a group of each session.
    assert largest <= limit + 1 + 2 * sessions
    for table in ("sessions", "tokens", "session_groups"):
        assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


@pytest.mark.parametrize(
    "revocation", [Revocation(RevocationKind.GROUP, "dev"), Revocation(RevocationKind.BEFORE, "")], ids=["group", "all"]
)
async def test_a_revocation_of_many_ends_them_in_small_transactions(
    store: SqliteTokenStore, clock: FakeClock, revocation: Revocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sign-in that comes meanwhile does not wait for the end of it."""
    monkeypatch.setattr(changes, "END_BATCH", 4)
    for number in range(10):
        session = make_session(clock, f"s{number}")
        await store.add(session, [make_token(session, f"s{number}")])
    portions = []
    end_some = changes.end_some

    def noting(db: sqlite3.Connection, revoked: Revocation, *, now: datetime) -> tuple[int, bool]:
        ended = end_some(db, revoked, now=now)
        portions.append(ended)
        return ended

    monkeypatch.setattr(changes, "end_some", noting)
    assert await store.revoke(revocation) == 10
    assert portions == [(4, True), (4, True), (2, False)]
    assert await store.sessions() == []
    assert await store.count() == 0
    assert [mark.kind for mark in await store.marks()] == [revocation.kind]
