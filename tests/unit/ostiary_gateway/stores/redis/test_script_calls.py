"""A server that has lost revocations is found out, whatever it has in their place, and they hold again.

A Redis without an append-only file that is killed comes back as it was when it was last saved: exactly what a replica
is that takes over before it has heard of the last changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from ostiary.errors import LoginRefused
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, TokenKind
from ostiary_gateway.stores.redis.settings import RedisSettings
from ostiary_gateway.stores.redis.token_store import RedisTokenStore
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import digest_of, make_session, make_token
from ostiary_gateway.testing.token_store.samples import head, of_user
from tests.support.redis import RedisServer, patient_settings, redis_server

Open = Callable[..., RedisTokenStore]


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "server", "appendonly no") as server:
        yield server


@pytest.fixture
def settings(forgetful: RedisServer) -> RedisSettings:
    return patient_settings(address=forgetful.address)


def lose_what_came_since_the_last_save(server: RedisServer) -> None:
    server.kill()
    server.start()


async def sign_in(store: RedisTokenStore, clock: FakeClock, username: str) -> None:
    session = of_user(make_session(clock, username), username, "staff")
    await store.add(session, [make_token(session, username)])


async def is_in(store: RedisTokenStore, username: str) -> bool:
    return await store.find(digest_of(username)) is not None


async def test_a_lost_revocation_holds_again_and_every_reader_drops_what_it_remembers(
    store: RedisTokenStore, other: RedisTokenStore, forgetful: RedisServer, clock: FakeClock
) -> None:
    for username in ("ann", "bob"):
        await sign_in(store, clock, username)
    before = await head(other)
    assert (await other.revocations_after(before)).complete
    forgetful.ask("SAVE")
    await store.revoke(Revocation(RevocationKind.USER, "ann", by="root"))
    known = await head(store)
    lose_what_came_since_the_last_save(forgetful)
    assert await is_in(other, "ann"), "it was lost"
    batch = await store.revocations_after(known)
    assert not batch.complete
    for each in (store, other):
        assert not await is_in(each, "ann")
        assert await is_in(each, "bob")
    for reader, after in ((store, batch.head), (other, before)):
        assert (await reader.revocations_after(after)).head > known, "no number is used twice"
    assert not (await other.revocations_after(before)).complete
    assert [(mark.value, mark.by) for mark in await other.marks()] == [("ann", "root")]


@pytest.mark.parametrize("later", [1, 3])
async def test_another_revocation_under_the_same_number_is_noticed(
    store: RedisTokenStore, other: RedisTokenStore, forgetful: RedisServer, clock: FakeClock, later: int
) -> None:
    await sign_in(store, clock, "ann")
    await head(other)
    forgetful.ask("SAVE")
    await store.revoke(Revocation(RevocationKind.USER, "ann"))
    known = await head(store)
    lose_what_came_since_the_last_save(forgetful)
    assert await is_in(other, "ann"), "it was lost"
    for number in range(later):
        await other.revoke(Revocation(RevocationKind.USER, f"somebody else {number}"))
    batch = await store.revocations_after(known)
    assert not batch.complete
    assert not await is_in(other, "ann")


async def test_a_revocation_that_several_know_is_restored_once(
    store: RedisTokenStore, other: RedisTokenStore, forgetful: RedisServer, clock: FakeClock
) -> None:
    await sign_in(store, clock, "ann")
    start = await head(store)
    forgetful.ask("SAVE")
    await store.revoke(Revocation(RevocationKind.USER, "ann"))
    await other.revocations_after(start)
    lose_what_came_since_the_last_save(forgetful)
    for each in (store, other):
        await each.revocations_after(start + 1)
    assert [mark.value for mark in await store.marks()] == ["ann"]


async def test_what_only_the_second_knows_is_restored_too(
    store: RedisTokenStore, other: RedisTokenStore, forgetful: RedisServer, clock: FakeClock
) -> None:
    """The first has mended the log already, when the second comes with what nobody else has seen."""
    for username in ("ann", "bob"):
        await sign_in(store, clock, username)
    start = await head(other)
    forgetful.ask("SAVE")
    await store.revoke(Revocation(RevocationKind.USER, "ann"))
    await other.revoke(Revocation(RevocationKind.USER, "bob"))
    lose_what_came_since_the_last_save(forgetful)
    await store.revocations_after(start + 1)
    assert not await is_in(store, "ann")
    assert await is_in(store, "bob"), "the first has never heard of it"
    assert not (await other.revocations_after(start + 2)).complete
    assert not await is_in(store, "bob")
    for each in (store, other):
        number = await head(each)
        assert not (await each.revocations_after(number)).complete, "until it waits for the next"
        await each.wait_for_revocations(number, 0.01)
        assert (await each.revocations_after(number)).complete, "and then all is quiet"
    assert sorted(mark.value for mark in await store.marks()) == ["ann", "bob"]


async def test_what_survived_is_not_revoked_again(
    store: RedisTokenStore, forgetful: RedisServer, clock: FakeClock
) -> None:
    await store.revoke(Revocation(RevocationKind.USER, "ann"))
    await sign_in(store, clock, "bob")
    forgetful.ask("SAVE")
    await store.revoke(Revocation(RevocationKind.USER, "carol"))
    lose_what_came_since_the_last_save(forgetful)
    await store.heartbeat()
    assert sorted(mark.value for mark in await store.marks()) == ["ann", "carol"]


async def test_what_was_long_forgotten_is_not_revoked_again(
    store: RedisTokenStore, forgetful: RedisServer, clock: FakeClock
) -> None:
    await store.revoke(Revocation(RevocationKind.USER, "ann"))
    clock.advance(hours=2)
    await store.sweep()
    await sign_in(store, clock, "ann")
    forgetful.ask("SAVE")
    await store.revoke(Revocation(RevocationKind.USER, "carol"))
    lose_what_came_since_the_last_save(forgetful)
    await store.heartbeat()
    assert [mark.value for mark in await store.marks()] == ["carol"]
    assert await is_in(store, "ann")


async def test_who_signed_in_after_a_revocation_stays_when_it_is_restored(
    store: RedisTokenStore, open_store: Open, settings: RedisSettings, forgetful: RedisServer, clock: FakeClock
) -> None:
    await sign_in(store, clock, "bob")
    clock.advance(minutes=1)
    await store.revoke(Revocation(RevocationKind.USER, "ann"))
    await store.revoke(Revocation(RevocationKind.BEFORE, "", clock.now() - timedelta(hours=1)))
    forgetful.ask("FLUSHALL")
    clock.advance(minutes=1)
    newcomer = open_store(settings, clock=clock)
    await sign_in(newcomer, clock, "ann")
    await store.heartbeat()
    assert sorted(mark.value for mark in await store.marks()) == ["", "ann"]
    assert await is_in(newcomer, "ann")


async def test_whoever_began_to_sign_in_before_the_loss_begins_again(
    store: RedisTokenStore, other: RedisTokenStore, forgetful: RedisServer, clock: FakeClock
) -> None:
    """The number that the sign-in began with means nothing any more: a later one may be somebody else's."""
    forgetful.ask("SAVE")
    await store.revoke(Revocation(RevocationKind.USER, "somebody"))
    session = make_session(clock, sequence=await head(store))
    lose_what_came_since_the_last_save(forgetful)
    for each in (store, other):
        assert await each.sessions() == []
    with pytest.raises(LoginRefused):
        await other.add(session, [make_token(session)])
    with pytest.raises(LoginRefused):
        await store.add(session, [make_token(session)])
    again = make_session(clock, sequence=await head(store))
    await store.add(again, [make_token(again)])


async def test_an_empty_server_is_noticed_and_nobody_is_in(
    store: RedisTokenStore, other: RedisTokenStore, forgetful: RedisServer, clock: FakeClock
) -> None:
    await sign_in(store, clock, "ann")
    await store.revoke(Revocation(RevocationKind.USER, "bob"))
    known = await head(other)
    forgetful.ask("FLUSHALL")
    assert not await is_in(store, "ann")
    assert not (await other.revocations_after(known)).complete
    clock.advance(1)
    await sign_in(store, clock, "ann")
    assert await is_in(other, "ann")


async def test_a_renewal_after_a_loss_spends_the_token_once(
    store: RedisTokenStore, forgetful: RedisServer, clock: FakeClock
) -> None:
    session = make_session(clock)
    await store.add(session, [make_token(session, "r1", minutes=60, kind=TokenKind.RENEWAL)])
    forgetful.ask("SAVE")
    await store.revoke(Revocation(RevocationKind.USER, "somebody"))
    lose_what_came_since_the_last_save(forgetful)
    since = await head(store)
    for expected in (True, False):
        assert await store.renew(digest_of("r1"), at=clock.now(), session=session, tokens=[], since=since) is expected


async def test_time_goes_on_when_the_server_has_forgotten_how_late_it_was(
    store: RedisTokenStore, forgetful: RedisServer, clock: FakeClock
) -> None:
    session = make_session(clock)
    await store.add(session, [make_token(session, minutes=5)])
    forgetful.ask("SAVE")
    clock.advance(minutes=5)
    await store.heartbeat()
    clock.set_back(hours=1)
    await store.heartbeat()
    lose_what_came_since_the_last_save(forgetful)
    assert await store.find(digest_of("t1")) is None


async def test_a_sign_in_whose_answer_was_lost_can_be_repeated(
    store: RedisTokenStore, other: RedisTokenStore, clock: FakeClock
) -> None:
    session = make_session(clock)
    tokens = [make_token(session), make_token(session, "r1", kind=TokenKind.RENEWAL)]
    for each in (store, other, store):
        await each.add(session, tokens)
    assert await store.count() == 2
