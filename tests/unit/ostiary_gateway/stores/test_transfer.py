"""Moving from one store to another: what is copied, what goes on after an interruption, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError, LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.store_capabilities import StoredLog, StoredSession
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, Session, TokenKind, TokenRecord
from ostiary_gateway.sessions import Attested, Tokens
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from ostiary_gateway.stores.transfer import (
    PAGE,
    Comparison,
    Standing,
    check_target,
    compare,
    copy,
    end_restored_sessions,
    standing_of,
)
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import digest_of, make_session, make_token
from ostiary_gateway.testing.token_store.transfer import check_move, export_all, fill

NewStore = Callable[[str], SqliteTokenStore]


class Interrupted(Exception):
    pass


class FailingStore(SqliteTokenStore):
    """Fails at the import of sessions with this number, as a process that is killed then."""

    imports_left = 0

    async def import_sessions(self, sessions: Sequence[StoredSession]) -> None:
        if not self.imports_left:
            raise Interrupted
        self.imports_left -= 1
        await super().import_sessions(sessions)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def new_store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[NewStore]:
    opened: list[SqliteTokenStore] = []

    def new(name: str) -> SqliteTokenStore:
        opened.append(SqliteTokenStore(tmp_path / name, clock=clock))
        return opened[-1]

    yield new
    for store in opened:
        await store.close()


@pytest.fixture
def source(new_store: NewStore) -> SqliteTokenStore:
    return new_store("source.db")


@pytest.fixture
def target(new_store: NewStore) -> SqliteTokenStore:
    return new_store("target.db")


async def add_many(store: SqliteTokenStore, clock: FakeClock, count: int) -> None:
    sessions = [make_session(clock, f"{number:05}", sequence=0) for number in range(count)]
    await store.import_sessions([StoredSession(each, (make_token(each, each.id, minutes=60),)) for each in sessions])


# --- copying ---


async def test_everything_is_copied_and_then_both_are_the_same(
    source: SqliteTokenStore, target: SqliteTokenStore, clock: FakeClock
) -> None:
    await fill(source, clock)
    before = await compare(source, target, clock=clock)
    assert (before.sessions, before.missing, before.is_same) == (5, 5, False)
    assert await copy(source, target, clock=clock) == 5
    await check_move(source, target)
    after = await compare(source, target, clock=clock)
    assert after.is_same
    assert (after.sessions, after.tokens) == (5, sum(len(stored.tokens) for stored in await export_all(source)))


async def test_a_second_run_writes_nothing(
    source: SqliteTokenStore, target: SqliteTokenStore, clock: FakeClock
) -> None:
    await fill(source, clock)
    await copy(source, target, clock=clock)
    assert await copy(source, target, clock=clock) == 0
    await check_move(source, target)


async def test_what_was_interrupted_goes_on_with_what_is_missing(
    source: SqliteTokenStore, tmp_path: Path, clock: FakeClock
) -> None:
    await add_many(source, clock, 3 * PAGE + 7)
    await source.revoke(Revocation(RevocationKind.USER, "bob"))
    target = FailingStore(tmp_path / "target.db", clock=clock)
    target.imports_left = 2
    with pytest.raises(Interrupted):
        await copy(source, target, clock=clock)
    assert await target.count() == 2 * PAGE
    assert (await target.export_log()) == await source.export_log(), "the log is first"
    target.imports_left = 10
    assert await copy(source, target, clock=clock) == PAGE + 7
    await check_move(source, target)
    await target.close()


async def test_progress_is_told_for_each_page(
    source: SqliteTokenStore, target: SqliteTokenStore, clock: FakeClock
) -> None:
    await add_many(source, clock, 2 * PAGE + 1)
    counts: list[int] = []
    await compare(source, target, clock=clock, on_progress=counts.append)
    assert counts == [PAGE, 2 * PAGE]
    counts.clear()
    await copy(source, target, clock=clock, on_progress=counts.append)
    assert counts == [PAGE, 2 * PAGE]


async def test_what_the_source_did_since_is_done_in_the_target(
    source: SqliteTokenStore, target: SqliteTokenStore, clock: FakeClock
) -> None:
    """A first run beside gateways, then a second one: ended, refreshed and new sessions follow."""
    tokens = Tokens(source, clock=clock)
    ended, renewed = [await tokens.issue(UserInfo(name), provider="staff") for name in ("ann", "bob")]
    await copy(source, target, clock=clock)
    clock.advance(60)
    await tokens.revoke(RevocationKind.SESSION, ended.session.id, by="ann")
    again = await tokens.renew(renewed.renewal.reveal(), _same_user)
    new = await tokens.issue(UserInfo("eve"), provider="staff")
    between = await compare(source, target, clock=clock)
    assert (between.missing, between.changed, between.ended, between.foreign) == (1, 1, 1, 0)
    check_target(between)
    assert await copy(source, target, clock=clock) == 3
    await check_move(source, target)
    moved = Tokens(target, clock=clock)
    alive = [await moved.find(issued.token.reveal()) is not None for issued in (ended, again, new)]
    assert alive == [False, True, True]


async def _same_user(session: Session) -> Attested:
    return Attested(session.user, session.sources)


async def test_times_are_corrected_before_they_are_copied(
    source: SqliteTokenStore, target: SqliteTokenStore, clock: FakeClock
) -> None:
    """The clock was set back while no gateway ran: nothing lives longer because it was moved."""
    session = make_session(clock)
    await source.add(session, [make_token(session, minutes=30)])
    clock.advance(minutes=10)
    await source.heartbeat()
    clock.set_back(hours=5)
    await copy(source, target, clock=clock)
    clock.advance(minutes=20)
    assert await target.find(digest_of("t1")) is None


# --- how one session compares ---


def test_a_session_compares_with_its_copy(clock: FakeClock) -> None:
    session = replace(make_session(clock), sequence=3)
    access, renewal = (
        make_token(session, "t1", minutes=60),
        make_token(session, "r1", minutes=60, kind=TokenKind.RENEWAL),
    )
    spent = replace(renewal, kind=TokenKind.SPENT, issued_at=clock.now())
    next_renewal = make_token(session, "r2", minutes=60, kind=TokenKind.RENEWAL)
    short = make_token(session, "short", minutes=1)
    withdrawn = Revocation(RevocationKind.TOKEN, access.digest.hex(), sequence=4)

    def standing(ours: StoredSession | None, theirs: StoredSession | None, *log: Revocation) -> Standing:
        return standing_of(ours, theirs, StoredLog(9, 0, log), clock.now())

    whole = StoredSession(session, (access, renewal))
    assert standing(whole, None) is Standing.MISSING
    assert standing(whole, StoredSession(session, (renewal, access))) is Standing.SAME
    assert standing(whole, StoredSession(replace(session, sequence=2), whole.tokens)) is Standing.CHANGED
    assert standing(whole, StoredSession(replace(session, client="x"), whole.tokens)) is Standing.CHANGED
    assert standing(whole, StoredSession(session, (access,))) is Standing.CHANGED
    assert standing(whole, StoredSession(session, (access, renewal, short))) is Standing.SAME, "it is about to expire"
    refreshed = StoredSession(session, (access, spent, next_renewal))
    assert standing(refreshed, whole) is Standing.CHANGED
    assert standing(whole, refreshed) is Standing.FOREIGN, "the target has gone on"
    assert standing(whole, StoredSession(session, (access, spent))) is Standing.FOREIGN
    without = StoredSession(session, (renewal,))
    assert standing(without, whole) is Standing.FOREIGN
    assert standing(without, whole, withdrawn) is Standing.CHANGED


def test_times_that_were_translated_by_two_clocks_are_the_same(clock: FakeClock) -> None:
    """A server's clock is known about as well as the network is fast; more than that is a difference."""
    session = replace(make_session(clock), sequence=3)
    token = make_token(session, minutes=60)

    def standing(seconds: float, **times: str) -> Standing:
        def moved(value: Session | TokenRecord, names: str) -> dict[str, datetime]:
            return {name: getattr(value, name) + timedelta(seconds=seconds) for name in names.split()}

        theirs = replace(session, **moved(session, times.get("session", "")))  # type: ignore[arg-type]
        record = replace(token, **moved(token, times.get("token", "")))  # type: ignore[arg-type]
        ours = StoredSession(session, (token,))
        return standing_of(ours, StoredSession(theirs, (record,)), StoredLog(9, 0), clock.now())

    assert standing(2, session="created_at expires_at", token="issued_at expires_at") is Standing.SAME
    assert standing(-2, session="created_at expires_at", token="issued_at expires_at") is Standing.SAME
    for times in (
        {"session": "created_at"},
        {"session": "expires_at"},
        {"token": "issued_at"},
        {"token": "expires_at"},
    ):
        assert standing(2.001, **times) is Standing.CHANGED


def test_a_log_is_the_same_if_its_times_nearly_are(clock: FakeClock) -> None:
    now = clock.now()
    revocation = Revocation(RevocationKind.USER, "ann", now, "root", 4, now)
    log = StoredLog(9, 3, (revocation,), frozenset({4}))

    def is_same(**changes: object) -> bool:
        changed = replace(revocation, **changes)  # type: ignore[arg-type]
        return Comparison(log, replace(log, revocations=(changed,))).is_same

    near, far = now + timedelta(seconds=2), now + timedelta(seconds=2.001)
    assert is_same(at=near, recorded_at=near)
    for different in ({"at": far}, {"at": None}, {"recorded_at": far}, {"by": ""}, {"value": "bob"}, {"sequence": 5}):
        assert not is_same(**different)
    for other in (
        replace(log, head=10),
        replace(log, forgotten=2),
        replace(log, undone=frozenset()),
        replace(log, revocations=()),
    ):
        assert not Comparison(log, other).is_same


def test_a_session_that_only_the_target_has_was_ended_or_is_its_own(clock: FakeClock) -> None:
    session = replace(make_session(clock), sequence=3)

    def standing(*log: Revocation, **changes: object) -> Standing:
        theirs = StoredSession(replace(session, **changes), ())  # type: ignore[arg-type]
        return standing_of(None, theirs, StoredLog(9, 0, log), clock.now())

    user = Revocation(RevocationKind.USER, "ann", sequence=4)
    assert standing() is Standing.FOREIGN
    assert standing(user) is Standing.ENDED
    assert standing(replace(user, sequence=3)) is Standing.FOREIGN, "it began after that"
    assert standing(replace(user, value="bob")) is Standing.FOREIGN
    assert standing(Revocation(RevocationKind.SESSION, "s1", sequence=1)) is Standing.ENDED
    assert standing(expires_at=clock.now() + timedelta(minutes=1)) is Standing.SAME, "it has expired in the source"


# --- what is refused ---


async def test_a_target_with_sessions_of_its_own_is_refused_unless_they_may_end(
    source: SqliteTokenStore, target: SqliteTokenStore, clock: FakeClock
) -> None:
    await fill(source, clock)
    own = make_session(clock, "own")
    await target.add(own, [make_token(own, "own")])
    comparison = await compare(source, target, clock=clock)
    assert comparison.foreign == 1
    with pytest.raises(ConfigurationError) as caught:
        check_target(comparison)
    assert caught.value.code == "store-not-empty"
    check_target(comparison, replacing=True)
    await copy(source, target, clock=clock)
    await check_move(source, target)
    assert await target.find(digest_of("own")) is None


async def test_a_target_whose_log_is_further_is_refused_in_any_case(
    source: SqliteTokenStore, target: SqliteTokenStore, clock: FakeClock
) -> None:
    await target.revoke(Revocation(RevocationKind.USER, "ann"))
    comparison = await compare(source, target, clock=clock)
    for replacing in (False, True):
        with pytest.raises(ConfigurationError) as caught:
            check_target(comparison, replacing=replacing)
        assert caught.value.code == "store-not-empty"
    with pytest.raises(ProviderError):
        await copy(source, target, clock=clock)


@pytest.mark.parametrize("difference", ["missing", "changed", "ended", "foreign", "source_log"])
def test_any_difference_is_one(difference: str) -> None:
    same = Comparison(StoredLog(1, 0), StoredLog(1, 0))
    assert same.is_same
    change = {difference: StoredLog(2, 0) if difference == "source_log" else 1}
    assert not replace(same, **change).is_same  # type: ignore[arg-type]


# --- after a restore ---


async def restored_store(clock: FakeClock, source: SqliteTokenStore, path: Path) -> SqliteTokenStore:
    """As the source was before what follows the backup."""
    restored = SqliteTokenStore(path, clock=clock)
    await copy(source, restored, clock=clock)
    return restored


async def test_nothing_that_a_backup_brings_back_is_accepted(
    source: SqliteTokenStore, tmp_path: Path, clock: FakeClock
) -> None:
    tokens = Tokens(source, clock=clock)
    kept, revoked = [await tokens.issue(UserInfo(name), provider="staff") for name in ("ann", "bob")]
    await tokens.revoke(RevocationKind.USER, "somebody")
    restored = await restored_store(clock, source, tmp_path / "restored.db")
    await tokens.revoke(RevocationKind.USER, "bob")
    for _ in range(5):
        await tokens.revoke(RevocationKind.USER, "somebody else")
    clock.advance(60)
    head = (await source.revocations_after(None)).head
    back = Tokens(restored, clock=clock)
    assert await back.find(revoked.token.reveal()) is not None, "this is the danger"
    assert await end_restored_sessions(restored, by="root") == 2
    assert [await back.find(issued.token.reveal()) for issued in (kept, revoked)] == [None, None]
    for issued in (kept, revoked):
        with pytest.raises(LoginRefused):
            await back.renew(issued.renewal.reveal(), _same_user)
    assert not (await restored.revocations_after(head)).complete, "who has cached something drops it"
    late = make_session(clock, "late", sequence=head)
    with pytest.raises(LoginRefused):
        await restored.add(late, [])
    clock.advance(1)
    again = await back.issue(UserInfo("ann"), provider="staff")
    assert await back.find(again.token.reveal()) is not None
    await restored.close()
