"""What backends are told of a token."""

from __future__ import annotations

import inspect
import json
from datetime import timedelta
from pathlib import Path

import pytest

from ostiary.core.scopes import narrow, parse_scope
from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary.wire.status import Answer
from ostiary_gateway.api.webhooks import TokenIntrospections
from ostiary_gateway.authentication.authenticator import TokenAuthenticator
from ostiary_gateway.interfaces.token_store import Found
from ostiary_gateway.issuer.claims import session_digest
from ostiary_gateway.limits.rates import FailedAttempts
from ostiary_gateway.sessions import Tokens, new_token
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.wire.token_introspection import TokenDescription, decode_answer, question

ANN = UserInfo("ann", "u1", ("dev",), (("team", ("a", "b")),))


class BreakableStore(SqliteTokenStore):
    broken = False

    async def find(self, digest: bytes) -> Found | None:
        if self.broken:
            raise ProviderError("the token store does not answer", cause="canary-cause")
        return await super().find(digest)


class World:
    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.store = BreakableStore(folder / "tokens.db", clock=self.clock)
        self.tokens = Tokens(self.store, clock=self.clock)
        self.authenticator = TokenAuthenticator(self.tokens, self.clock)
        self.failures = FailedAttempts(2, clock=self.clock)
        self.introspections = TokenIntrospections(self.authenticator, self.failures)

    async def answer(self, body: bytes) -> Answer:
        answer = self.introspections.answer(body)
        return await answer if inspect.isawaitable(answer) else answer

    async def describe(self, token: str, address: str = "") -> TokenDescription | None:
        code, body = await self.answer(json.dumps(question(token, address)).encode())
        assert code == 200
        return decode_answer(json.loads(body))


@pytest.fixture
async def world(tmp_path: Path):  # type: ignore[no-untyped-def]
    world = World(tmp_path)
    yield world
    await world.store.close()


async def test_a_token_is_described_with_all_that_a_revocation_names(world: World) -> None:
    issued = await world.tokens.issue(ANN, provider="staff")
    # Once from the store, once from memory.
    for _ in range(2):
        description = await world.describe(issued.token.reveal())
        assert description is not None
        assert description.user == ANN
        assert description.session == session_digest(issued.session.id)
        assert description.expires_at == issued.expires_at
        assert description.began_at == int(issued.session.created_at.timestamp())
        assert description.delegation == ""


async def test_a_narrowed_token_comes_with_what_it_may_be_used_for(world: World) -> None:
    """Decision 0057: a TokenReview says that nobody is authenticated by it, since its answer has no place for this."""
    issued = await world.tokens.issue(ANN, provider="staff")
    delegation = narrow(None, parse_scope("get pods -n shop")).encode()
    token = await world.tokens.mint(issued.session, lifetime=timedelta(minutes=5), delegation=delegation)
    description = await world.describe(token.token.reveal())
    assert description is not None
    assert description.delegation == delegation


async def test_unknown_tokens_count_against_the_address_that_presents_them_to_a_backend(world: World) -> None:
    issued = await world.tokens.issue(ANN, provider="staff")
    for address in ("192.0.2.1", "192.0.2.1", "2001:db8::1", "not an address", ""):
        assert await world.describe(new_token().reveal(), address) is None
        assert await world.describe(issued.token.reveal(), "192.0.2.2") is not None
    blocked = [bool(world.failures.seconds_blocked(each)) for each in ("192.0.2.1", "192.0.2.2", "2001:db8::1")]
    assert blocked == [True, False, False]
    assert await world.describe(issued.token.reveal(), "192.0.2.1") is not None, "the backend is answered all the same"


async def test_unknown_expired_and_revoked_tokens_are_nobodys(world: World) -> None:
    """S39."""
    issued = await world.tokens.issue(ANN, provider="staff")
    assert await world.describe("no token") is None
    assert await world.describe(issued.renewal.reveal()) is None
    world.clock.advance(hours=1)
    assert await world.describe(issued.token.reveal()) is None


async def test_could_not_ask_is_a_500_that_says_nothing(world: World) -> None:
    issued = await world.tokens.issue(ANN, provider="staff")
    world.store.broken = True
    answer = await world.answer(json.dumps(question(issued.token.reveal())).encode())
    assert answer.code == 500
    assert b"canary" not in answer.body


async def test_what_is_no_question_is_a_bad_request(world: World) -> None:
    assert (await world.answer(b"{}")).code == 400
