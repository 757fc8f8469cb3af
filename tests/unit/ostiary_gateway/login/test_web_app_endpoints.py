"""The user of an application's session is checked again: silently, never too late, and fail closed."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import Secret, UserInfo
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.interfaces.token_store import Found, Session
from ostiary_gateway.login.web_app_endpoints import MOST_TRIES, ApplicationChecks
from ostiary_gateway.sessions import (
    ApplicationTokens,
    Attested,
    Tokens,
    application_digest,
    keeping_secret,
    unseal_kept,
)
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock

ALICE = UserInfo("alice", groups=("dev", "ops"))
INTERVAL = timedelta(minutes=15)


@dataclass
class Bench:
    clock: FakeClock
    says: UserInfo | Exception = ALICE
    kept: Secret | None = None
    asked: list[str | None] = field(default_factory=list)
    busy: int = 0
    pauses: int = 0

    def __post_init__(self) -> None:
        self.tokens = Tokens(MemoryTokenStore(clock=self.clock), clock=self.clock)
        self.applications = ApplicationTokens(self.tokens, self.clock)
        self.checks = ApplicationChecks(
            self.tokens, self.recheck, interval=INTERVAL, clock=self.clock, pause=self.pause
        )

    async def pause(self, seconds: float) -> None:
        self.pauses += 1

    async def recheck(self, session: Session, request: LoginRequest, kept: Secret | None) -> Attested:
        self.asked.append(None if kept is None else kept.reveal())
        if self.busy:
            self.busy -= 1
            raise LoginRefused("this session is being refreshed", retry_after=1.0)
        if isinstance(self.says, Exception):
            raise self.says
        return Attested(self.says, tuple((group, "directory") for group in self.says.groups), self.kept)

    async def begin(self, kept: Secret | None = None) -> None:
        browser = await self.tokens.issue_browser(ALICE, provider="staff", kept=kept)
        self.keeping = keeping_secret(browser.secret) if kept is not None else None
        self.session_id = browser.session.id
        _, token = await self.applications.issue(self.session_id, "wiki")
        self.digest = application_digest(token.reveal(), "wiki")

    async def check(self) -> Found | None:
        stored = await self.applications.find(self.digest)
        return None if stored is None else await self.checks.check(stored, self.keeping)

    async def session(self) -> Session | None:
        return await self.tokens.store.session(self.session_id)


@pytest.fixture
async def bench(clock: FakeClock) -> Bench:
    bench = Bench(clock)
    await bench.begin()
    return bench


async def test_it_is_asked_once_per_interval_and_not_before_the_first_is_over(bench: Bench) -> None:
    found = await bench.check()
    assert found is not None
    assert found.token.expires_at == bench.clock.now() + INTERVAL
    assert bench.asked == []
    bench.clock.advance(minutes=15)
    for _ in range(3):
        found = await bench.check()
        assert found is not None
        assert found.token.expires_at == bench.clock.now() + INTERVAL
    assert bench.asked == [None]
    bench.clock.advance(minutes=15)
    await bench.check()
    assert len(bench.asked) == 2


async def test_a_group_that_was_taken_away_is_gone_everywhere(bench: Bench) -> None:
    bench.says = UserInfo("alice", groups=("dev",))
    bench.clock.advance(minutes=15)
    found = await bench.check()
    assert found is not None
    assert found.session.user.groups == ("dev",)
    session = await bench.session()
    assert session is not None
    assert session.user.groups == ("dev",)


@pytest.mark.parametrize("says", [LoginRefused("disabled"), UserInfo("somebody else")])
async def test_a_no_ends_the_session(bench: Bench, says: UserInfo | Exception) -> None:
    bench.says = says
    bench.clock.advance(minutes=15)
    assert await bench.check() is None
    assert await bench.session() is None


@pytest.mark.parametrize("says", [ProviderError("down"), OSError("no route"), TimeoutError()])
async def test_nobody_is_let_through_if_nobody_can_be_asked_and_nobody_is_signed_out(
    bench: Bench, says: Exception
) -> None:
    bench.says = says
    bench.clock.advance(minutes=15)
    with pytest.raises(ProviderError):
        await bench.check()
    assert await bench.session() is not None
    bench.says = ALICE
    assert await bench.check() is not None


async def test_a_refresh_token_is_used_and_its_successor_kept_for_all_cookies(clock: FakeClock) -> None:
    bench = Bench(clock, kept=Secret("second"))
    await bench.begin(Secret("first"))
    clock.advance(minutes=15)
    assert await bench.check() is not None
    bench.kept = Secret("third")
    clock.advance(minutes=15)
    assert await bench.check() is not None
    assert bench.asked == ["first", "second"]
    session = await bench.session()
    assert session is not None
    assert bench.keeping is not None
    kept = unseal_kept(session, bench.keeping.reveal())
    assert kept is not None
    assert kept.reveal() == "third"


async def test_while_another_worker_asks_it_waits_for_its_turn(bench: Bench) -> None:
    bench.busy = 3
    bench.clock.advance(minutes=15)
    assert await bench.check() is not None
    assert bench.pauses == 3


async def test_it_does_not_wait_for_ever(bench: Bench) -> None:
    bench.busy = MOST_TRIES
    bench.clock.advance(minutes=15)
    with pytest.raises(ProviderError):
        await bench.check()
