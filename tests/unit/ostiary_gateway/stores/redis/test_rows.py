"""Entries that something else has written to our keys are an outage, and nobody is let in by them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ostiary.errors import ProviderError
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, SessionKind
from ostiary_gateway.stores.redis.settings import RedisSettings
from ostiary_gateway.stores.redis.token_store import RedisTokenStore
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import digest_of, make_session, make_token
from tests.support.redis import RedisServer

CANARY = "canary-4d2e"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("user", CANARY),
        ("user", f'["{CANARY}"]'),
        ("user", "[1, 2, 3, 4]"),
        ("rest", f'["{CANARY}"]'),
        ("created", CANARY),
        ("expires", CANARY),
        ("sequence", CANARY),
    ],
)
async def test_a_session_that_cannot_be_understood_is_an_outage(
    store: RedisTokenStore, server: RedisServer, settings: RedisSettings, clock: FakeClock, field: str, value: str
) -> None:
    session = make_session(clock)
    await store.add(session, [make_token(session)])
    server.ask("HSET", f"{{{settings.prefix}}}:session:s1", field, value)
    with pytest.raises(ProviderError) as caught:
        await store.find(digest_of("t1"))
    assert caught.value.code == "token-store-unavailable"
    assert CANARY not in f"{caught.value} {caught.value!r}"


@pytest.mark.parametrize("value", [CANARY, "access 1 2", "access x y s1", f"{CANARY} 1 99999999999999999 s1"])
async def test_a_token_that_cannot_be_understood_is_an_outage(
    store: RedisTokenStore, server: RedisServer, settings: RedisSettings, clock: FakeClock, value: str
) -> None:
    session = make_session(clock)
    await store.add(session, [make_token(session)])
    key = f"{{{settings.prefix}}}:token:".encode() + digest_of("t1")
    assert server.ask("EXISTS", key) == 1
    server.ask("SET", key, value)
    with pytest.raises(ProviderError) as caught:
        await store.find(digest_of("t1"))
    assert CANARY not in f"{caught.value} {caught.value!r}"


async def test_a_log_that_cannot_be_understood_is_an_outage(
    store: RedisTokenStore, other: RedisTokenStore, server: RedisServer, settings: RedisSettings
) -> None:
    await store.revoke(Revocation(RevocationKind.USER, "ann"))
    server.ask("HSET", f"{{{settings.prefix}}}:log", "1", CANARY)
    for question in (other.marks(), other.revocations_after(0), other.export_log()):
        with pytest.raises(ProviderError) as caught:
            await question
        assert CANARY not in f"{caught.value} {caught.value!r}"


async def test_a_key_of_another_type_is_an_outage(
    store: RedisTokenStore, server: RedisServer, settings: RedisSettings
) -> None:
    server.ask("SET", f"{{{settings.prefix}}}:state", CANARY)
    with pytest.raises(ProviderError) as caught:
        await store.find(digest_of("t1"))
    assert CANARY not in f"{caught.value} {caught.value!r}"


# --- entries of the version before, and what that makes of ours ---

# How the version before takes a token apart: it knows of no delegation.
OLD_TOKEN_ID = """local _, _, _, id = string.match(redis.call('GET', KEYS[1]), '^(%a+) (%-?%d+) (%-?%d+) (.*)$')
return redis.call('EXISTS', ARGV[1] .. id)"""


async def test_a_session_of_the_version_before_is_read(
    store: RedisTokenStore, server: RedisServer, settings: RedisSettings, clock: FakeClock
) -> None:
    session = make_session(clock)
    await store.add(session, [make_token(session)])
    assert server.ask("HDEL", f"{{{settings.prefix}}}:session:s1", "kind", "name", "used") == 3
    entry = await store.find(digest_of("t1"))
    assert entry is not None
    assert (entry.session, entry.session.last_used_at) == (session, None)
    assert await store.sessions(kind=SessionKind.SIGN_IN) == [session]
    assert await store.count_sessions("ann", SessionKind.SIGN_IN) == 1


async def test_the_version_before_finds_no_session_for_a_narrowed_token(
    store: RedisTokenStore, server: RedisServer, settings: RedisSettings, clock: FakeClock
) -> None:
    """It would take it for all that its session may do."""
    session = make_session(clock)
    await store.add(session, [make_token(session), replace(make_token(session, "t2"), delegation="less")])
    prefix = f"{{{settings.prefix}}}:"
    exists = [
        server.ask("EVAL", OLD_TOKEN_ID, "1", f"{prefix}token:".encode() + digest_of(name), f"{prefix}session:")
        for name in ("t1", "t2")
    ]
    assert exists == [1, 0]
