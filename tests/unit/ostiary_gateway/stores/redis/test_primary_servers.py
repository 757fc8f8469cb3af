"""The primary is found, and found again, through Sentinels and in a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from redis.crc import key_slot

from ostiary.errors import ProviderError
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.stores.redis.settings import ClusterSettings, RedisSettings, SentinelSettings
from ostiary_gateway.stores.redis.token_store import RedisTokenStore
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import digest_of, make_session, make_token
from ostiary_gateway.testing.token_store.samples import head
from tests.support.ports import free_port
from tests.support.redis import (
    SENTINEL_NAME,
    RedisServer,
    RedisSite,
    patient_settings,
    redis_cluster,
    redis_server,
    redis_with_sentinels,
)
from tests.support.retrying import until_it_works

Open = Callable[..., RedisTokenStore]
# Longer than any test: the Sentinels leave the primary alone, even if a busy machine makes it slow.
CALM_MILLISECONDS = 600_000


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RedisSite]:
    """Its Sentinels soon replace a primary that is killed or hangs."""
    with redis_with_sentinels(tmp_path) as site:
        yield site


@pytest.fixture
def calm_site(tmp_path: Path) -> Iterator[RedisSite]:
    """Its primary is replaced only by command."""
    with redis_with_sentinels(tmp_path, down_after=CALM_MILLISECONDS) as site:
        yield site


def through_sentinels(site: RedisSite, **changes: object) -> RedisSettings:
    sentinel = SentinelSettings(name=SENTINEL_NAME, addresses=site.sentinel_addresses)
    return patient_settings(sentinel=sentinel, **changes)


async def sign_in(store: RedisTokenStore, clock: FakeClock, name: str) -> None:
    session = make_session(clock, name)
    await store.add(session, [make_token(session, name)])


async def sign_in_as_soon_as_possible(store: RedisTokenStore, clock: FakeClock, name: str) -> None:
    await until_it_works(lambda: sign_in(store, clock, name))


async def test_a_killed_primary_is_replaced_and_nothing_that_was_confirmed_is_lost(
    open_store: Open, site: RedisSite, clock: FakeClock
) -> None:
    store = open_store(through_sentinels(site, wait_replicas=2), clock=clock)
    for number in range(20):
        await sign_in(store, clock, f"s{number}")
    await store.revoke(Revocation(RevocationKind.SESSION, "s0"))
    known = await head(store)
    old = site.primary()
    old.kill()
    later = open_store(through_sentinels(site, wait_replicas=1), clock=clock)
    await sign_in_as_soon_as_possible(later, clock, "after")
    assert site.primary() is not old
    for number in range(1, 20):
        assert await later.find(digest_of(f"s{number}")) is not None
    assert await later.find(digest_of("s0")) is None
    assert (await later.revocations_after(None)).head == known, "no revocation was lost"
    # One replica is left, and this store asks for two. Until its Sentinel has heard of the failover, it finds nobody.
    demanding, cause = open_store(through_sentinels(site, wait_replicas=2, wait_timeout=0.2), clock=clock), ""
    async with asyncio.timeout(60):
        while not cause.startswith("only 1 of 2 replicas have confirmed"):
            with pytest.raises(ProviderError) as caught:
                await sign_in(demanding, clock, "too few")
            cause = caught.value.cause or ""


async def test_a_primary_that_is_demoted_on_purpose_is_left_at_once(
    open_store: Open, calm_site: RedisSite, clock: FakeClock
) -> None:
    store = open_store(through_sentinels(calm_site), clock=clock)
    await sign_in(store, clock, "s1")
    old = calm_site.primary()
    calm_site.sentinels[0].ask("SENTINEL", "FAILOVER", SENTINEL_NAME)
    calm_site.wait_for_failover(old)
    await sign_in_as_soon_as_possible(store, clock, "s2")
    assert await store.find(digest_of("s1")) is not None
    await store.heartbeat()


async def test_a_primary_that_hangs_is_replaced_and_does_not_come_back_with_old_data(
    open_store: Open, site: RedisSite, clock: FakeClock
) -> None:
    patient = open_store(through_sentinels(site, wait_replicas=2), clock=clock)
    await sign_in(patient, clock, "s1")
    store = open_store(through_sentinels(site, timeout=0.5), clock=clock)
    assert await until_it_works(lambda: store.find(digest_of("s1"))) is not None
    old = site.primary()
    old.pause()
    try:
        await sign_in_as_soon_as_possible(store, clock, "s2")
        await until_it_works(lambda: store.revoke(Revocation(RevocationKind.SESSION, "s1")))
    finally:
        old.resume()
    assert await until_it_works(lambda: store.find(digest_of("s1"))) is None
    assert await until_it_works(lambda: store.find(digest_of("s2"))) is not None


async def test_without_the_replicas_nothing_is_acknowledged_or_confirmed(
    open_store: Open, calm_site: RedisSite, clock: FakeClock
) -> None:
    """A primary that is cut off from its replicas may have been replaced: it cannot say what is not revoked."""
    store = open_store(through_sentinels(calm_site, wait_replicas=1, wait_timeout=0.05), clock=clock)
    await until_it_works(lambda: sign_in(store, clock, "s1"))
    known = await until_it_works(lambda: head(store))
    for replica in calm_site.replicas():
        replica.pause()
    try:
        for attempt in (sign_in(store, clock, "s2"), store.revocations_after(known), store.heartbeat()):
            with pytest.raises(ProviderError) as caught:
                await attempt
            assert (caught.value.cause or "").startswith("only 0 of 1 replicas have confirmed")
    finally:
        for server in calm_site.servers:
            server.resume()
    await sign_in_as_soon_as_possible(store, clock, "s3")


async def test_an_old_primary_that_comes_back_says_nothing_about_anybody(
    open_store: Open, site: RedisSite, clock: FakeClock
) -> None:
    """It calls itself primary until a Sentinel tells it otherwise, and knows nobody who has signed in since.

    A Sentinel that has not heard of the failover yet may still name it.
    """
    store = open_store(through_sentinels(site, wait_replicas=1), clock=clock)
    old = site.primary()
    old.kill()
    site.wait_for_failover(old)
    await sign_in_as_soon_as_possible(store, clock, "s1")
    for sentinel in site.sentinels:
        sentinel.kill()
    old.start()
    assert old.info("replication")["role"] == "master"
    stale = open_store(patient_settings(address=old.address, wait_replicas=1, wait_timeout=0.05), clock=clock)
    with pytest.raises(ProviderError) as caught:
        await stale.find(digest_of("s1"))
    assert caught.value.cause == "only 0 of 1 replicas have confirmed that this is the primary"


async def test_a_primary_that_was_replaced_while_it_hung_refuses_nobody(
    open_store: Open, site: RedisSite, clock: FakeClock
) -> None:
    """Our connections to it are still there when it goes on. It knows nobody who has signed in since."""
    settings = through_sentinels(site, wait_replicas=1, timeout=2.0, wait_timeout=0.2)
    store, other = open_store(settings, clock=clock), open_store(settings, clock=clock)
    for each in (store, other):
        await sign_in_as_soon_as_possible(each, clock, "s1")
    old = site.primary()
    old.pause()
    try:
        site.wait_for_failover(old)
        await sign_in_as_soon_as_possible(other, clock, "s2")
        later = clock.now() + timedelta(minutes=1)
        await until_it_works(lambda: other.put_record(digest_of("later"), b"y", later))
    finally:
        old.resume()
    for question in (
        lambda: store.find(digest_of("s2")),
        lambda: store.session("s2"),
        lambda: store.find_record(digest_of("later")),
    ):
        # Until the store has found the primary again, it says that it cannot.
        assert await until_it_works(question) is not None


async def test_sentinels_that_are_away_or_hang_are_passed_over(
    open_store: Open, calm_site: RedisSite, clock: FakeClock
) -> None:
    calm_site.sentinels[0].kill()
    calm_site.sentinels[1].pause()
    try:
        store = open_store(through_sentinels(calm_site, timeout=5.0), clock=clock)
        await sign_in_as_soon_as_possible(store, clock, "s1")
    finally:
        calm_site.sentinels[1].resume()


async def test_a_primary_that_is_known_is_used_without_the_sentinels(
    open_store: Open, calm_site: RedisSite, clock: FakeClock
) -> None:
    store = open_store(through_sentinels(calm_site), clock=clock)
    await sign_in(store, clock, "s1")
    for sentinel in calm_site.sentinels:
        sentinel.kill()
    await store.heartbeat()
    await sign_in(store, clock, "s2")


async def test_a_primary_that_was_replaced_without_noticing_is_left(
    open_store: Open, calm_site: RedisSite, clock: FakeClock, tmp_path: Path
) -> None:
    """It goes on answering; the Sentinels name another server."""
    (watching, *_) = calm_site.sentinels
    sentinel = SentinelSettings(name=SENTINEL_NAME, addresses=(watching.address,))
    store = open_store(patient_settings(sentinel=sentinel), clock=clock)
    await sign_in(store, clock, "s1")
    with redis_server(tmp_path / "another") as another:
        watching.ask("SENTINEL", "REMOVE", SENTINEL_NAME)
        watching.ask("SENTINEL", "MONITOR", SENTINEL_NAME, "127.0.0.1", another.port, 1)
        await store.heartbeat()
        assert await store.find(digest_of("s1")) is None


async def test_what_the_sentinels_do_not_know_is_told(open_store: Open, calm_site: RedisSite) -> None:
    sentinel = SentinelSettings(name="another", addresses=calm_site.sentinel_addresses)
    with pytest.raises(ProviderError) as caught:
        await open_store(patient_settings(sentinel=sentinel)).find(digest_of("t1"))
    assert caught.value.cause == 'the Sentinel 127.0.0.1 knows no primary called "another"'
    nowhere = SentinelSettings(name="another", addresses=(f"127.0.0.1:{free_port()}",))
    with pytest.raises(ProviderError) as caught:
        await open_store(patient_settings(sentinel=nowhere)).find(digest_of("t1"))
    assert "no connection to Redis" in (caught.value.cause or "")


# --- a cluster ---


async def test_a_slot_that_moves_to_another_node_is_followed(
    open_store: Open, tmp_path: Path, clock: FakeClock
) -> None:
    with redis_cluster(tmp_path) as nodes:
        slot = key_slot(b"{ostiary}:state")
        owner = next(node for node in nodes if _has_slot(node, slot))
        target, third = (node for node in nodes if node is not owner)
        settings = patient_settings(cluster=ClusterSettings(addresses=(third.address, owner.address)))
        store = open_store(settings, clock=clock)
        assert await store.sessions() == []
        target_id = target.ask("CLUSTER", "MYID")
        assert isinstance(target_id, bytes)
        for node in (target, owner, third):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", target_id)
        await sign_in(store, clock, "s1")
        third.kill()
        assert await open_store(settings, clock=clock).find(digest_of("s1")) is not None


def _has_slot(node: RedisServer, slot: int) -> bool:
    slots = node.ask("CLUSTER", "SLOTS")
    assert isinstance(slots, list)
    return any(first <= slot <= last and primary[1] == node.port for first, last, primary, *_ in slots)
