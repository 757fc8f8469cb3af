"""Asking everything outside that a configuration needs: each answers, fails, or does not answer in time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from ostiary.errors import ProviderError
from ostiary_gateway.config import default_config
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.provider import Identity
from ostiary_gateway.interfaces.identity import SignIn
from ostiary_gateway.interfaces.token_store import TokenStore
from ostiary_gateway.server.online_check import OnlineCheckResult, probe_all
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from tests.support.noting_store import NotingStore


class Probed:
    """An identity provider that can be probed."""

    def __init__(self, answer: str | Exception | None) -> None:
        self.answer, self.count = answer, 0

    async def handle_client(self, request: object) -> None: ...

    async def handle_provider(self, request: object) -> None: ...

    async def probe(self) -> str:
        self.count += 1
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)


async def probe(**answers: str | Exception | None) -> list[OnlineCheckResult]:
    identity = tuple(Identity(name, "test", Probed(answer)) for name, answer in answers.items())  # type: ignore[arg-type]
    return await probe_all(replace(default_config(), identity=identity, upstreams=()), seconds=0.01)


async def test_each_system_is_reported_in_the_order_of_the_configuration() -> None:
    broken = ProviderError("it cannot be reached", cause="connection refused", hint="start it")
    first, second, third = await probe(first="it answered", second=broken, third=None)
    assert first == OnlineCheckResult('identity "first"', True, "it answered")
    assert not second.ok
    assert "connection refused" in second.detail
    assert second.detail.endswith("(start it)")
    assert third == OnlineCheckResult('identity "third"', False, "it did not answer within 0.01 seconds")


async def test_a_provider_that_is_configured_twice_is_asked_once() -> None:
    provider = Probed("it answered")
    identity = tuple(Identity(name, "test", provider) for name in ("one", "two"))  # type: ignore[arg-type]
    results = await probe_all(replace(default_config(), identity=identity, upstreams=()))
    assert [result.what for result in results] == ['identity "one"']
    assert provider.count == 1


class Redirecting(Probed):
    """An identity provider whose issuer says something about the redirect URI."""

    def __init__(self, accepts: bool | Exception) -> None:
        super().__init__("it answered")
        self.accepts, self.tried = accepts, ""

    async def probe_redirect_uri(self, redirect_uri: str) -> bool:
        self.tried = redirect_uri
        if isinstance(self.accepts, Exception):
            raise self.accepts
        return self.accepts


class NeverTried(Probed):
    sign_in = SignIn.REDIRECT


async def test_the_redirect_uri_is_tried_where_the_issuer_allows_it() -> None:
    rejected = ProviderError("the issuer is unavailable", cause="status 400", hint="register it")
    providers = [Redirecting(True), Redirecting(False), Redirecting(rejected), NeverTried("it answered")]
    identity = tuple(Identity(f"p{number}", "test", each) for number, each in enumerate(providers))  # type: ignore[arg-type]
    config = replace(default_config(), identity=identity, upstreams=(), external_url="https://gw.example.com/")
    results = [result for result in await probe_all(config) if result.what.startswith("redirect URI")]
    assert [(result.what, result.outcome) for result in results] == [
        ('redirect URI of "p0"', "OK"),
        ('redirect URI of "p1"', "UNKNOWN"),
        ('redirect URI of "p2"', "FAILED"),
        ('redirect URI of "p3"', "UNKNOWN"),
    ]
    assert providers[0].tried == "https://gw.example.com/auth/p0/provider"  # type: ignore[attr-defined]
    assert results[0].detail == "the issuer accepts https://gw.example.com/auth/p0/provider"
    assert "could not determine whether https://gw.example.com/auth/p1/provider is registered" in results[1].detail
    assert results[2].detail == "the issuer is unavailable: status 400 (register it)"
    assert [result.ok for result in results] == [True, True, False, True], "what is unknown does not fail"


# --- the token store ---


MINE, THEIRS = "https://mine.example", "https://theirs.example"


def with_store(store: TokenStore, *, owner: str = MINE) -> GatewayConfig:
    config = default_config()
    return replace(config, store=replace(config.store, type="test", instance=store), identity=(), owner=owner)


async def probe_store(config: GatewayConfig) -> OnlineCheckResult:
    (result,) = await probe_all(config)
    return result


async def test_a_store_that_answers_is_ours(tmp_path: Path) -> None:
    store = NotingStore(str(tmp_path / "tokens.db"))
    await store.sessions()
    result = await probe_store(with_store(store))
    assert result == OnlineCheckResult('store "test"', True, f"it answered; it belongs to {MINE}")


async def test_a_store_of_another_gateway_fails_and_says_whose_it_is(tmp_path: Path) -> None:
    store = NotingStore(str(tmp_path / "tokens.db"))
    await store.sessions()
    await store.claim(THEIRS)
    result = await probe_store(with_store(store))
    assert not result.ok
    assert THEIRS in result.detail
    assert "--take-over" in result.detail


async def test_without_an_external_url_it_is_claimed_for_nobody(tmp_path: Path) -> None:
    store = NotingStore(str(tmp_path / "tokens.db"))
    await store.sessions()
    result = await probe_all(with_store(store, owner=""))
    assert [(each.ok, "no owner" in each.detail) for each in result] == [(True, True)]
    other = NotingStore(str(tmp_path / "tokens.db"))
    assert await other.claim(THEIRS) == THEIRS
    await other.close()


async def test_a_store_that_cannot_be_asked_fails(tmp_path: Path) -> None:
    (tmp_path / "tokens.db").write_bytes(b"this is no database" * 100)
    result = await probe_store(with_store(SqliteTokenStore(tmp_path / "tokens.db")))
    assert not result.ok


async def test_a_file_that_does_not_exist_yet_is_not_made(tmp_path: Path) -> None:
    result = await probe_store(with_store(SqliteTokenStore(tmp_path / "tokens.db")))
    assert (result.ok, "the first start makes it" in result.detail) == (True, True)
    assert list(tmp_path.iterdir()) == []


async def test_a_store_in_memory_is_not_asked() -> None:
    assert await probe_all(replace(default_config(), identity=())) == []


class ProbedStore(SqliteTokenStore):
    closed = False

    async def probe(self) -> str:
        assert not self.closed
        return "it keeps tokens"

    async def close(self) -> None:
        self.closed = True
        await super().close()


async def test_a_store_that_can_tell_more_is_asked_and_closed(tmp_path: Path) -> None:
    store = ProbedStore(tmp_path / "tokens.db")
    await store.sessions()
    assert await probe_all(with_store(store)) == [OnlineCheckResult('store "test"', True, "it keeps tokens")]
    assert store.closed
