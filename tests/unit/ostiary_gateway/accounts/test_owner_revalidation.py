"""The holder of a program's token is checked again: never too late, not with every request, and fail closed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from ostiary.core.account_names import AccountName
from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.accounts.owner_revalidation import OwnerRevalidation, TokenUse
from ostiary_gateway.accounts.service_accounts import KIND, ServiceAccounts
from ostiary_gateway.config.accounts import ServiceAccountSettings
from ostiary_gateway.interfaces.token_store import Found, RevocationKind, Session
from ostiary_gateway.sessions import Attested, IssuedToken, Tokens
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock

ALICE = UserInfo("alice", groups=("dev", "ops"))
INTERVAL = timedelta(minutes=15)
DEPLOYER = AccountName("shop", "deployer")


@dataclass
class Directory:
    """Says who somebody is today."""

    says: UserInfo | Exception = ALICE
    asked: list[str] = field(default_factory=list)
    # Happens while it is asked.
    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def __call__(self, session: Session) -> Attested:
        self.asked.append(session.user.username)
        if self.meanwhile is not None:
            await self.meanwhile()
        if isinstance(self.says, Exception):
            raise self.says
        return Attested(self.says, tuple((group, "directory") for group in self.says.groups))


class Bench:
    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.directory = clock, Directory()
        self.tokens = Tokens(MemoryTokenStore(clock=clock), clock=clock)
        self.accounts = ServiceAccounts(self.tokens, ServiceAccountSettings(), clock=clock)
        self.use = TokenUse(self.tokens, clock)
        self.checks = OwnerRevalidation(
            self.tokens, self.accounts, self.directory, self.use, interval=INTERVAL, clock=clock
        )

    async def api_token(self) -> IssuedToken:
        return await self.tokens.issue_token(ALICE, provider="ldap", name="job", lifetime=timedelta(days=30))

    async def stored(self, issued: IssuedToken) -> Found | None:
        return await self.tokens.find(issued.token.reveal())

    async def check(self, issued: IssuedToken) -> Found | None:
        stored = await self.stored(issued)
        return None if stored is None else await self.checks.check(stored)


@pytest.fixture
def bench(clock: FakeClock) -> Bench:
    return Bench(clock)


async def test_a_new_token_is_good_until_its_first_check_is_due(bench: Bench) -> None:
    issued = await bench.api_token()
    bench.clock.advance(600)
    checked = await bench.check(issued)
    assert checked is not None
    assert checked.token.expires_at == issued.session.created_at + INTERVAL
    assert bench.directory.asked == []


async def test_the_owner_is_asked_about_once_in_an_interval(bench: Bench) -> None:
    issued = await bench.api_token()
    bench.clock.advance(INTERVAL.total_seconds())
    at = bench.clock.now()
    for _ in range(3):
        checked = await bench.check(issued)
        assert checked is not None
        assert checked.token.expires_at == at + INTERVAL
        bench.clock.advance(60)
    assert bench.directory.asked == ["alice"]
    bench.clock.advance(INTERVAL.total_seconds())
    await bench.check(issued)
    assert bench.directory.asked == ["alice", "alice"]


async def test_a_token_is_never_kept_longer_than_it_lives(bench: Bench) -> None:
    issued = await bench.tokens.issue_token(ALICE, provider="ldap", name="short", lifetime=timedelta(minutes=5))
    checked = await bench.check(issued)
    assert checked is not None
    assert checked.token.expires_at == issued.expires_at


async def test_groups_that_were_taken_away_are_gone_from_the_token_and_from_the_store(bench: Bench) -> None:
    issued = await bench.api_token()
    bench.clock.advance(INTERVAL.total_seconds())
    bench.directory.says = UserInfo("alice", groups=("dev",))
    for _ in range(2):
        checked = await bench.check(issued)
        assert checked is not None
        assert checked.session.user.groups == ("dev",)
        assert checked.session.sources == (("dev", "directory"),)
    session = await bench.tokens.store.session(issued.session.id)
    assert session is not None
    assert session.user.groups == ("dev",)


async def test_groups_may_change_long_after_somebody_elses_session_was_revoked(bench: Bench) -> None:
    issued = await bench.api_token()
    await bench.tokens.revoke(RevocationKind.USER, "bob")
    bench.clock.advance(timedelta(hours=2).total_seconds())
    await bench.tokens.store.sweep()
    bench.directory.says = UserInfo("alice", groups=("dev",))
    checked = await bench.check(issued)
    assert checked is not None
    assert checked.session.user.groups == ("dev",)


@pytest.mark.parametrize(
    ("kind", "value"), [(RevocationKind.USER, "alice"), (RevocationKind.GROUP, "ops"), (RevocationKind.GROUP, "new")]
)
async def test_what_is_revoked_while_the_owner_is_asked_about_does_not_come_back(
    bench: Bench, kind: RevocationKind, value: str
) -> None:
    issued = await bench.api_token()
    bench.clock.advance(INTERVAL.total_seconds())
    bench.directory.says = UserInfo("alice", groups=("new",))
    bench.directory.meanwhile = lambda: bench.tokens.revoke(kind, value)
    assert await bench.check(issued) is None
    if value != "new":
        assert await bench.stored(issued) is None


async def test_a_token_is_not_handed_to_another_name(bench: Bench) -> None:
    issued = await bench.api_token()
    bench.clock.advance(INTERVAL.total_seconds())
    bench.directory.says = UserInfo("root", groups=("ops",))
    assert await bench.check(issued) is None
    assert await bench.stored(issued) is None


async def test_an_owner_who_is_disabled_loses_the_token(bench: Bench) -> None:
    issued = await bench.api_token()
    bench.clock.advance(INTERVAL.total_seconds())
    bench.directory.says = LoginRefused("unknown user")
    assert await bench.check(issued) is None
    assert await bench.stored(issued) is None
    # Enabled again, they make another one.
    bench.directory.says = ALICE
    assert await bench.check(issued) is None


@pytest.mark.parametrize(
    "outage",
    [
        ProviderError("the directory is away", cause="connection refused"),
        TimeoutError(),
        OSError("refused"),
        LoginRefused("wait", retry_after=1.0),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_if_nobody_can_be_asked_nothing_is_let_through_and_nothing_ends(bench: Bench, outage: Exception) -> None:
    issued = await bench.api_token()
    bench.clock.advance(INTERVAL.total_seconds())
    bench.directory.says = outage
    for _ in range(2):
        with pytest.raises(ProviderError, match="cannot be checked"):
            await bench.check(issued)
    bench.directory.says = ALICE
    assert await bench.check(issued) is not None


async def test_a_token_of_an_account_is_good_as_long_as_the_account_is(bench: Bench) -> None:
    await bench.accounts.create(DEPLOYER)
    issued = await bench.accounts.issue(DEPLOYER)
    checked = await bench.check(issued)
    assert checked is not None
    assert checked.token.expires_at == bench.clock.now() + INTERVAL
    # As after a crash in the middle of a delete: the account is gone, and its tokens are not revoked yet.
    await bench.accounts._writable().delete_object(KIND, str(DEPLOYER))
    assert await bench.check(issued) is None
    assert await bench.stored(issued) is not None, "another replica may know the account"
    assert bench.directory.asked == []


async def test_tokens_for_a_proof_of_somebody_else_are_left_alone(bench: Bench) -> None:
    issued = await bench.tokens.issue_token(UserInfo("ci"), provider="github", lifetime=timedelta(hours=1))
    bench.clock.advance(INTERVAL.total_seconds())
    assert await bench.check(issued) == await bench.stored(issued)
    assert bench.directory.asked == []


async def test_the_use_of_an_api_token_is_written_down_now_and_then(bench: Bench) -> None:
    issued = await bench.api_token()
    bench.clock.advance(60)
    first = bench.clock.now()
    await bench.check(issued)
    assert await last_used(bench, issued) is None, "never while a request waits"
    await bench.use.write()
    assert await last_used(bench, issued) == first
    bench.clock.advance(299)
    await bench.check(issued)
    await bench.use.write()
    assert await last_used(bench, issued) == first
    bench.clock.advance(1)
    await bench.check(issued)
    await bench.use.write()
    assert await last_used(bench, issued) == first + timedelta(minutes=5)


async def last_used(bench: Bench, issued: IssuedToken) -> object:
    session = await bench.tokens.store.session(issued.session.id)
    assert session is not None
    return session.last_used_at
