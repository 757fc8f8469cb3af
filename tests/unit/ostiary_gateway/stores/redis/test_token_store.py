"""What the contract does not ask of every store: revocations of very many, the server's clock, and messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.stores.redis.settings import RedisSettings
from ostiary_gateway.stores.redis.token_store import RedisTokenStore
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import digest_of, follow, make_session, make_token
from ostiary_gateway.testing.token_store.samples import head, of_user
from tests.support.clocks import OffsetClock
from tests.support.redis import RedisServer

Open = Callable[..., RedisTokenStore]
MANY = 1500


async def sign_in_many(store: RedisTokenStore, clock: FakeClock, count: int = MANY) -> None:
    sessions = [of_user(make_session(clock, f"s{number}"), f"user {number % 3}", "all") for number in range(count)]
    await asyncio.gather(*(store.add(session, [make_token(session, session.id)]) for session in sessions))


# --- revocations of very many ---


@pytest.mark.parametrize(
    ("kind", "value", "ended"),
    [(RevocationKind.BEFORE, "", MANY), (RevocationKind.GROUP, "all", MANY), (RevocationKind.USER, "user 1", MANY / 3)],
)
async def test_a_revocation_of_many_sessions_ends_them_all(
    store: RedisTokenStore, clock: FakeClock, kind: RevocationKind, value: str, ended: int
) -> None:
    await sign_in_many(store, clock)
    assert await store.revoke(Revocation(kind, value)) == ended
    assert await store.count() == MANY - ended
    assert len(await store.sessions(limit=2 * MANY)) == MANY - ended


async def test_what_is_not_deleted_yet_is_gone_already_and_somebody_finishes_it(
    store: RedisTokenStore,
    other: RedisTokenStore,
    server: RedisServer,
    settings: RedisSettings,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await sign_in_many(store, clock)

    async def die(self: RedisTokenStore, number: bytes) -> int:
        raise ConnectionResetError

    with monkeypatch.context() as patched:
        patched.setattr(RedisTokenStore, "_finish", die)
        with pytest.raises(ConnectionResetError):
            await store.revoke(Revocation(RevocationKind.BEFORE, ""))
    assert await other.count() > MANY / 2, "most of them are there"
    assert await other.sessions() == []
    for number in range(0, MANY, 100):
        assert await other.find(digest_of(f"s{number}")) is None
        assert await other.session(f"s{number}") is None
    names = (f"s{number}" for number in range(MANY))
    left = next(name for name in names if server.ask("EXISTS", f"{{{settings.prefix}}}:session:{name}"))
    again = make_session(clock, left, sequence=await head(other))
    await other.add(again, [make_token(again, "new")])
    assert await other.sessions() == [again]
    assert await other.find(digest_of(left)) is None, "the old token of a session with the same id is gone"
    await other.heartbeat()
    assert await other.count() > MANY / 2, "whoever began it may be at it"
    clock.advance(5)
    await other.heartbeat()
    async with asyncio.timeout(60):
        while await other.count() > 1:
            await asyncio.sleep(0.01)
    assert await store.find(digest_of("new")) is not None
    clock.advance(5)
    await other.heartbeat()
    assert server.ask("EXISTS", f"{{{settings.prefix}}}:unfinished", f"{{{settings.prefix}}}:progress") == 0


# --- the server's clock ---


async def test_what_expires_is_judged_by_the_clock_of_the_server(open_store: Open, settings: RedisSettings) -> None:
    """Two machines whose clocks are hours apart agree, and each is told times as its own clock says them."""
    now = datetime.now(UTC)
    ahead, behind = FakeClock(now + timedelta(hours=3)), FakeClock(now - timedelta(hours=2))
    here = open_store(settings, clock=ahead, server_time=True)
    there = open_store(settings, clock=behind, server_time=True)
    # The first answer tells how far the clocks are apart.
    for each in (here, there):
        await each.heartbeat()
    session = make_session(ahead)
    await here.add(session, [make_token(session, minutes=5), make_token(session, "gone", minutes=0)])
    entry = await there.find(digest_of("t1"))
    assert entry is not None
    assert abs(entry.token.expires_at - behind.now() - timedelta(minutes=5)) < timedelta(minutes=1)
    assert abs(entry.session.created_at - behind.now()) < timedelta(minutes=1)
    assert await there.find(digest_of("gone")) is None
    await there.revoke(Revocation(RevocationKind.BEFORE, "", behind.now() + timedelta(seconds=30)))
    assert await here.find(digest_of("t1")) is None


async def test_a_reader_whose_clock_was_changed_drops_what_it_remembers(
    open_store: Open, settings: RedisSettings
) -> None:
    clock = OffsetClock()
    store = open_store(settings, clock=clock, server_time=True)
    number = await head(store)
    assert (await store.revocations_after(number)).complete
    clock.set_back(hours=1)
    # An answer that took long tells nothing about the clock.
    async with asyncio.timeout(60):
        while (await store.revocations_after(number)).complete:
            pass
    assert not (await store.revocations_after(number)).complete, "told again, until it waits for the next"
    await store.wait_for_revocations(number, 0.01)
    assert (await store.revocations_after(number)).complete


# --- messages ---


async def test_revocations_are_polled_for_where_no_message_comes(
    open_store: Open,
    server: RedisServer,
    settings: RedisSettings,
    clock: FakeClock,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    password = tmp_path_factory.mktemp("deaf") / "password"
    password.write_text("deaf")
    server.ask("ACL", "SETUSER", "deaf", "on", ">deaf", "~*", "resetchannels", "+@all", "-subscribe")
    deaf = open_store(replace(settings, username="deaf", password_file=password), clock=clock)
    teller = open_store(settings, clock=clock)
    start = await head(deaf)
    waiting = asyncio.ensure_future(follow(deaf, start))
    await teller.revoke(Revocation(RevocationKind.USER, "ann"))
    assert [each.value for each in (await waiting).revocations] == ["ann"]


async def test_a_message_wakes_at_once(store: RedisTokenStore, other: RedisTokenStore) -> None:
    start = await head(store)
    await store.wait_for_revocations(start, 0.5)
    waiting = asyncio.ensure_future(store.wait_for_revocations(start, 60))
    await asyncio.sleep(0)
    await other.revoke(Revocation(RevocationKind.USER, "ann"))
    await asyncio.wait_for(waiting, 30)


async def test_messages_come_again_after_the_connection_was_lost(
    store: RedisTokenStore, other: RedisTokenStore, server: RedisServer
) -> None:
    start = await head(store)
    await store.wait_for_revocations(start, 0.5)
    server.ask("CLIENT", "KILL", "TYPE", "pubsub")
    waiting = asyncio.ensure_future(follow(store, start))
    await other.revoke(Revocation(RevocationKind.USER, "ann"))
    assert [each.value for each in (await waiting).revocations] == ["ann"]


# --- what is kept for how long ---


async def test_every_key_of_a_session_is_forgotten_by_the_server_itself_some_day(
    store: RedisTokenStore, server: RedisServer, settings: RedisSettings, clock: FakeClock
) -> None:
    """Even if nobody ever sweeps: memory is not lost for good."""
    session = make_session(clock)
    await store.add(session, [make_token(session)])
    await store.put_record(digest_of("a"), b"x", clock.now() + timedelta(minutes=1))
    await store.put_notes("t", {"k": b"v"}, seconds=60)
    await store.update_counts([("k", lambda state, now: ((1.0,), 60.0, None))])
    with server.client() as client:
        names = list(client.scan_iter(f"{{{settings.prefix}}}:*"))
        lasting = [name for name in names if client.pttl(name) == -1]
    assert len(names) > 10
    assert lasting == [f"{{{settings.prefix}}}:state".encode()]
