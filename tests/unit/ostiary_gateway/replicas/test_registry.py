"""Replicas write down how they are, and see each other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from ostiary.errors import ProviderError
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.observability.logging import TextFormatter
from ostiary_gateway.replicas import registry
from ostiary_gateway.replicas.drift import Configuration, SeenReplica
from ostiary_gateway.replicas.registry import KEY_TOPIC, SHOWN_SECONDS, TOPIC, ReplicaRegistry, Replicas, read_replicas
from ostiary_gateway.replicas.replica import ReplicaIdentity
from ostiary_gateway.replicas.workers import WorkerState
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock
from tests.support.noting_store import NotingStore
from tests.unit.ostiary_gateway.replicas.test_workers import state


@pytest.fixture
async def store(clock: FakeClock, tmp_path: Path) -> AsyncIterator[NotingStore]:
    store = NotingStore(str(tmp_path / "tokens.db"), clock=clock)
    yield store
    await store.close()


class Site:
    """Replicas with one worker each, whose state a test may change."""

    def __init__(self, store: NotingStore, clock: FakeClock) -> None:
        self.store, self.clock = store, clock
        self.states: dict[str, WorkerState | None] = {}
        self.seen: dict[str, Sequence[SeenReplica]] = {}

    def replica(self, host: str, **fields: object) -> ReplicaRegistry:
        self.states[host] = state(**fields)  # type: ignore[arg-type]

        async def gather() -> list[WorkerState | None]:
            return [self.states[host]]

        def on_seen(seen: Sequence[SeenReplica]) -> None:
            self.seen[host] = seen

        identity = ReplicaIdentity(f"id-{host}", host, 1)
        return ReplicaRegistry(identity, self.store, gather, clock=self.clock, max_stale=5.0, on_seen=on_seen)


@pytest.fixture
def site(store: NotingStore, clock: FakeClock) -> Site:
    return Site(store, clock)


async def test_each_replica_sees_all_and_how_they_are(site: Site) -> None:
    a, b = site.replica("a", revocation=3, in_flight=4), site.replica("b", checks=[("token store", "away")])
    await site.store.revoke(Revocation(RevocationKind.USER, "bob"))
    await a.publish()
    await b.publish()
    seen = {each.name: each for each in site.seen["b"]}
    assert set(seen) == {"a", "b"}
    first = seen["a"].replica
    assert (first.revocation, first.head, first.in_flight, first.workers, first.trouble) == (3, 1, 4, 1, "")
    assert seen["b"].trouble == "token store: away"
    assert seen["a"].configuration is Configuration.SAME


async def test_the_rate_is_that_between_two_notes(site: Site, clock: FakeClock) -> None:
    a = site.replica("a", requests=100.0)
    await a.publish()
    clock.advance(3)
    site.states["a"] = state(requests=130.0)
    await a.publish()
    assert (await a.own()).requests_per_second == 10.0
    assert (await a.own()).up_seconds == 3.0


async def test_a_replica_that_stops_takes_itself_off_the_list(site: Site) -> None:
    a, b = site.replica("a"), site.replica("b")
    await a.publish()
    await b.publish()
    await a.leave()
    assert [each.name for each in await read_replicas(site.store)] == ["b"]
    # A note that was on its way when it left must not bring it back.
    await a.publish()
    assert [each.name for each in await read_replicas(site.store)] == ["b"]


async def test_leaving_works_while_the_store_is_away(site: Site) -> None:
    a = site.replica("a")
    await a.publish()
    site.store.away = True
    await a.leave()


async def test_a_replica_that_crashed_is_silent_and_then_forgotten(site: Site, clock: FakeClock) -> None:
    a, b = site.replica("a"), site.replica("b")
    await a.publish()
    for _ in range(3):
        await b.publish()
        assert not any(each.silent_seconds for each in site.seen["b"])
        clock.advance(3)
    clock.advance(3)
    await b.publish()
    assert {each.name: each.silent_seconds for each in site.seen["b"]} == {"a": 12.0, "b": 0.0}
    clock.advance(SHOWN_SECONDS - 12)
    await b.publish()
    assert [each.name for each in site.seen["b"]] == ["b"]


async def test_the_hash_of_a_configuration_needs_the_key_in_the_store(site: Site) -> None:
    a, b = (site.replica(host, configuration="the-digest-itself") for host in "ab")
    await a.publish()
    await b.publish()
    first, second = site.seen["b"]
    assert first.replica.configuration == second.replica.configuration
    key = await site.store.find_note(KEY_TOPIC, "")
    assert key is not None
    for note in await site.store.latest_notes(TOPIC, 10):
        assert key.data.hex().encode() not in note.data
    assert all(b"the-digest-itself" not in note.data for note in await site.store.latest_notes(TOPIC, 10))


async def test_a_key_that_was_lost_is_made_anew_and_nobody_is_accused(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = site.replica("a"), site.replica("b")
    await a.publish()
    await b.publish()
    await site.store.remove_note(KEY_TOPIC, "")
    await a.publish()
    assert {each.configuration for each in site.seen["a"]} <= {Configuration.SAME, Configuration.UNKNOWN}
    await b.publish()
    assert [each.configuration for each in site.seen["b"]] == [Configuration.SAME] * 2
    assert "another configuration" not in caplog.text


async def test_another_configuration_is_logged_once_per_change(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ostiary.gateway")
    a, b, c = (site.replica(name) for name in "abc")
    for each in (a, b, c):
        await each.publish()
    assert not caplog.records
    site.states["c"] = state(configuration="c2")
    for _ in range(3):
        await c.publish()
        await a.publish()
    assert [each.configuration.value for each in site.seen["a"]] == ["same", "same", "other"]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    # One by the replica that differs, and one by a replica that sees it.
    assert len(warnings) == 2
    other = next(each.replica.configuration for each in site.seen["a"] if each.name == "c")
    text = TextFormatter().format(warnings[1])
    assert f"c ({other})" in text
    assert site.seen["a"][0].replica.configuration in text
    caplog.clear()
    site.states["c"] = state()
    await c.publish()
    await a.publish()
    assert [record.getMessage() for record in caplog.records] == ["all replicas have the same configuration"] * 2


async def test_a_store_that_is_away_is_an_error_and_not_an_empty_list(site: Site) -> None:
    a = site.replica("a")
    await a.publish()
    site.store.away = True
    with pytest.raises(ProviderError):
        await a.publish()
    with pytest.raises(ProviderError):
        await Replicas(site.store, a.own).all()


async def test_whoever_asks_gets_this_replica_as_it_is_now_and_the_others_as_they_wrote(site: Site) -> None:
    a, b = site.replica("a"), site.replica("b")
    await a.publish()
    await b.publish()
    site.states["a"] = site.states["b"] = state(in_flight=99)
    everyone = await Replicas(site.store, a.own).all()
    assert {each.name: each.replica.in_flight for each in everyone} == {"a": 99, "b": 1}


async def test_with_a_store_of_one_machine_there_is_one_replica(clock: FakeClock) -> None:
    seen: list[Sequence[SeenReplica]] = []

    async def gather() -> list[WorkerState | None]:
        return [state()]

    store = MemoryTokenStore(clock=clock)
    on_seen: Callable[[Sequence[SeenReplica]], None] = seen.append
    alone = ReplicaRegistry(ReplicaIdentity("id", "a", 1), store, gather, clock=clock, max_stale=5.0, on_seen=on_seen)
    await alone.publish()
    await alone.leave()
    assert [[each.name for each in replicas] for replicas in seen] == [["a"]]
    (own,) = await Replicas(store, alone.own).all()
    assert (own.name, own.configuration, own.trouble) == ("a", Configuration.SAME, "")


async def test_a_replica_with_nobody_to_tell_looks_at_itself_once_and_counts_from_one_question_to_the_next(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "PUBLISH_SECONDS", 0.0)
    gathered, published = 0, asyncio.Event()

    async def gather() -> list[WorkerState | None]:
        nonlocal gathered
        gathered += 1
        return [state(requests=30.0 * gathered)]

    alone = ReplicaRegistry(
        ReplicaIdentity("id", "a", 1),
        MemoryTokenStore(clock=clock),
        gather,
        clock=clock,
        max_stale=5.0,
        on_seen=lambda seen: published.set(),
    )
    running = asyncio.create_task(alone.run())
    await published.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    assert gathered == 1
    clock.advance(seconds=10)
    assert (await alone.own()).requests_per_second == 3.0
    running.cancel()


async def test_a_replica_that_is_gone_is_not_said_to_have_another_configuration(
    site: Site, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    a, old = site.replica("a"), site.replica("old", configuration="c0")
    await old.publish()
    clock.advance(12)
    await a.publish()
    assert [each.name for each in site.seen["a"] if each.silent_seconds] == ["old"]
    assert "another configuration" not in caplog.text
