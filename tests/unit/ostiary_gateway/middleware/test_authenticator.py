"""Token to bearer, with a server in the gateway's place that answers right, late, wrong or not at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ostiary.core.scopes import NOTHING, narrow, parse_scope
from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.middleware.authenticator import UNKNOWN_SECONDS, BackendAuthenticator
from ostiary_gateway.middleware.bearer import CachedBearer
from ostiary_gateway.middleware.config import loads
from ostiary_gateway.middleware.gateway_client import GatewayQuestions
from ostiary_gateway.sessions import digest, new_token
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.wire.revoked_credentials import RevokedSubject
from tests.support.http_server import Response
from tests.support.retrying import until_it_works
from tests.support.scripted_gateway import ScriptedGateway, garbage
from tests.support.waiting import until


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    with ScriptedGateway().running() as served:
        yield served


class World:
    """An authenticator whose clock stands still, with a *timeout* that a busy machine does not reach."""

    def __init__(self, gateway: ScriptedGateway, folder: Path, *, timeout: str = "60s") -> None:
        self.gateway, self.clock = gateway, FakeClock()
        config = loads(json.dumps(gateway.settings(folder, gateway={"timeout": timeout})), directory=folder)
        questions = GatewayQuestions(config.gateway, self.clock)
        self.authenticator = BackendAuthenticator(questions, None, max_stale=60.0, clock=self.clock)

    async def find(self, token: str, address: str = "") -> CachedBearer | None:
        data = token.encode()
        return self.authenticator.recall(digest(data)) or await self.authenticator.find(data, digest(data), address)

    def introspections(self) -> int:
        return sum("introspection" in request.path for request in self.gateway.requests)


@pytest.fixture
async def world(gateway: ScriptedGateway, tmp_path: Path) -> AsyncIterator[World]:
    world = World(gateway, tmp_path)
    yield world
    await world.authenticator.close()


async def test_a_token_is_asked_about_once(world: World) -> None:
    """S4."""
    token = world.gateway.add("ann")
    found = [await world.find(token) for _ in range(5)]
    assert {each.bearer.user for each in found if each} == {UserInfo("ann")}
    assert world.introspections() == 1


async def test_many_requests_with_a_new_token_ask_once(world: World) -> None:
    token = world.gateway.add("ann")
    await asyncio.gather(*(world.find(token) for _ in range(20)))
    assert world.introspections() == 1


async def test_unknown_and_malformed_tokens_are_nobodys(world: World) -> None:
    assert await world.find(new_token().reveal()) is None
    assert world.introspections() == 1
    for text in ("", "x", "ost_x", "a.b.c", "\xe4", new_token().reveal()[:-1] + "!"):
        assert await world.find(text) is None
    assert world.introspections() == 1


async def test_an_unknown_token_is_not_asked_about_again_for_a_while(world: World) -> None:
    unknown, known = new_token().reveal(), world.gateway.add("ann")
    for _ in range(3):
        assert await world.find(unknown, "192.0.2.1") is None
        assert await world.find(known, "192.0.2.1") is not None
    assert world.gateway.asked_about == [(unknown, "192.0.2.1"), (known, "192.0.2.1")]
    world.clock.advance(seconds=UNKNOWN_SECONDS)
    assert await world.find(unknown) is None
    assert world.introspections() == 3


async def test_a_flood_of_unknown_tokens_from_one_address_does_not_hold_up_those_from_others(world: World) -> None:
    """The gateway answers nobody yet, and the token of another client is asked about all the same."""
    await world.authenticator.follower.ensure_fresh()
    world.gateway.go_on.clear()
    flood = [asyncio.create_task(world.find(new_token().reveal(), "192.0.2.1")) for _ in range(200)]
    neighbour = asyncio.create_task(world.find(world.gateway.add("bob"), "192.0.2.1"))
    honest = world.gateway.add("ann")
    finding = asyncio.create_task(world.find(honest, "192.0.2.2"))
    await asyncio.to_thread(until, lambda: (honest, "192.0.2.2") in list(world.gateway.asked_about))
    assert len(world.gateway.asked_about) < 40
    world.gateway.go_on.set()
    assert await finding is not None
    # Whoever shares the address has a turn, too.
    assert await neighbour is not None
    assert await asyncio.gather(*flood) == [None] * 200


async def test_a_revocation_ends_what_is_remembered(world: World) -> None:
    """T3."""
    token, other = world.gateway.add("ann"), world.gateway.add("bob")
    found, kept = await world.find(token), await world.find(other)
    assert found is not None
    del world.gateway.tokens[token]
    world.gateway.revoke(subjects=(RevokedSubject("ann", None, 9),))
    await world.authenticator.follower._poll()
    assert found.is_revoked
    assert await world.find(token) is None
    assert await world.find(other) is kept


async def test_an_answer_from_before_a_revocation_is_asked_for_again(world: World) -> None:
    """The gateway said yes, the revocation came, and only then the answer arrived."""
    token = world.gateway.add("ann")
    await world.authenticator.follower.ensure_fresh()
    world.gateway.go_on.clear()
    finding = asyncio.create_task(world.find(token))
    await asyncio.to_thread(world.gateway.reached.wait)
    del world.gateway.tokens[token]
    world.gateway.revoke(subjects=(RevokedSubject("ann", None, 9),))
    await world.authenticator.follower._poll()
    world.gateway.go_on.set()
    assert await finding is None
    assert world.introspections() == 2


async def test_nothing_remembered_is_used_when_revocations_cannot_be_followed(world: World) -> None:
    """The stated bound, to the second."""
    token = world.gateway.add("ann")
    assert await world.find(token) is not None
    world.gateway.instead = lambda request: None
    world.clock.advance(seconds=59)
    assert await world.find(token) is not None
    world.clock.advance(seconds=1)
    with pytest.raises(ProviderError, match="the gateway is unavailable"):
        await world.find(token)


async def test_an_expired_token_is_not_recalled(world: World) -> None:
    """S24."""
    token = world.gateway.add("ann")
    found = await world.find(token)
    assert found is not None
    found.expires_at = world.clock.now()
    world.gateway.tokens[token] = replace(world.gateway.tokens[token], expires_at=world.clock.now())
    assert await world.find(token) is None


async def test_a_delegation_comes_along_and_what_cannot_be_read_allows_nothing(world: World) -> None:
    delegation = narrow(None, parse_scope("get pods -n shop"))
    found = await world.find(world.gateway.add("ann", delegation=delegation.encode()))
    assert found is not None
    assert found.bearer.delegation == delegation
    broken = await world.find(world.gateway.add("ann", delegation='{"v": 99}'))
    assert broken is not None
    assert broken.bearer.delegation == NOTHING


@pytest.mark.parametrize(
    ("instead", "cause"),
    [
        (garbage, "its answer cannot be used"),
        (lambda request: Response(200, b"<html>"), "not JSON"),
        (lambda request: Response(200, b""), "not a JSON object"),
        (lambda request: Response(200, b"[" * 100_000), "not JSON"),
        (lambda request: Response(200, b"x" * 2_000_000), "too large"),
        (lambda request: Response(302, b""), "status 302"),
        (lambda request: Response(401, b"{}"), "status 401"),
        (lambda request: Response(404, b"{}"), "status 404"),
        (lambda request: Response(500, b"{}"), "status 500"),
        (lambda request: None, "the connection failed"),
    ],
)
async def test_whatever_is_no_answer_is_could_not_ask(world: World, instead: Any, cause: str) -> None:
    """T5: neither a yes nor a no, and not a word of it is quoted."""
    token = world.gateway.add("ann")
    world.gateway.instead = instead
    with pytest.raises(ProviderError) as caught:
        await world.find(token)
    assert cause in (caught.value.cause or "")
    assert token not in str(caught.value.__dict__)
    assert "token-of-the-backend" not in repr(caught.value.__dict__)


async def test_a_slow_gateway_is_given_up_in_time(gateway: ScriptedGateway, tmp_path: Path) -> None:
    world = World(gateway, tmp_path, timeout="200ms")
    token = gateway.add("ann")
    gateway.go_on.clear()
    with pytest.raises(ProviderError) as caught:
        await world.find(token)
    assert caught.value.cause is not None
    assert "did not answer within 0.2 seconds" in caught.value.cause
    gateway.go_on.set()
    assert await until_it_works(lambda: world.find(token)) is not None
    await world.authenticator.close()


async def test_the_token_of_the_backend_is_read_again_at_every_question(world: World, tmp_path: Path) -> None:
    (tmp_path / "caller-token").write_text("")
    with pytest.raises(ProviderError, match="the token for the gateway cannot be read"):
        await world.find(world.gateway.add("ann"))
