"""What the store says of itself, and whether anybody uses it."""

from __future__ import annotations

import pytest

from ostiary_gateway.stores.redis.settings import RedisSettings
from ostiary_gateway.stores.redis.token_store import RedisTokenStore
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import make_session, make_token
from ostiary_gateway.testing.token_store.samples import head
from tests.support.redis import RedisServer


async def sign_in(store: RedisTokenStore, clock: FakeClock, count: int) -> None:
    for number in range(count):
        session = make_session(clock, f"s{number}")
        await store.add(session, [make_token(session, f"t{number}"), make_token(session, f"u{number}")])


async def test_a_store_in_order_has_no_problems(store: RedisTokenStore, server: RedisServer, clock: FakeClock) -> None:
    await sign_in(store, clock, 250)
    report = await store.examine()
    assert report.problems == ()
    assert report.time == clock.now()
    facts = dict(report.facts)
    assert (facts["sessions"], facts["tokens"]) == ("250", "500")
    assert facts["server"] == server.address


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("DEL", "session:s1"), "1 sessions that are listed have gone"),
        (("DEL", "group:dev"), "3 entries are missing in the indexes"),
        (("ZREM", "user:ann", "s2"), "1 entries are missing in the indexes"),
        (("DEL", "token_expiry"), "6 tokens of sessions are missing"),
    ],
)
async def test_what_is_damaged_is_told(
    store: RedisTokenStore,
    server: RedisServer,
    settings: RedisSettings,
    clock: FakeClock,
    command: tuple[str, ...],
    expected: str,
) -> None:
    await sign_in(store, clock, 3)
    verb, key, *rest = command
    server.ask(verb, f"{{{settings.prefix}}}:{key}", *rest)
    (problem,) = (await store.examine()).problems
    assert problem.startswith(expected)


async def test_processes_that_wait_for_revocations_are_seen(store: RedisTokenStore, other: RedisTokenStore) -> None:
    assert await store.others_using() == ()
    await other.wait_for_revocations(await head(other), 0.5)
    while not (using := await store.others_using()):
        await other.wait_for_revocations(await head(other), 0.01)
    assert using == ("gateway processes that wait for its revocations: 1",)


async def test_a_probe_says_which_server_answers_and_what_it_lacks(store: RedisTokenStore, server: RedisServer) -> None:
    answer = await store.probe()
    assert answer.startswith("Redis 7.")
    assert "append-only" not in answer
    server.ask("CONFIG", "SET", "appendonly", "no")
    try:
        assert "no append-only file" in await store.probe()
    finally:
        server.ask("CONFIG", "SET", "appendonly", "yes")
