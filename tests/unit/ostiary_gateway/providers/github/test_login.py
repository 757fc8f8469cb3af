"""The complete flow: from ``/auth`` over GitHub, and Google for groups, to a token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
import trustme

from ostiary.model import UserInfo
from ostiary_gateway.config.provider import Groups, Identity
from ostiary_gateway.interfaces.identity import LoginRequest, Redirect
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.providers.github.identity import GitHubIdentity
from ostiary_gateway.providers.google_groups import Consent, GoogleGroups
from ostiary_gateway.sessions import digest
from ostiary_gateway.testing import FakeClock
from tests.support.github import GitHub, Person
from tests.support.google import Google
from tests.support.oauth_server import go
from tests.unit.ostiary_gateway.signing_in import Gateway, body, cookie_of, nobody_came_in

RELEVANT = frozenset({"acme", "acme:platform", "acme:security", "developers"})


@pytest.fixture
async def github(ca: trustme.CA) -> AsyncIterator[GitHub]:
    with GitHub(ca).running() as server:
        yield server


@pytest.fixture
async def provider(github: GitHub, ca: trustme.CA, tmp_path: Path, clock: FakeClock) -> AsyncIterator[GitHubIdentity]:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    (tmp_path / "secret").write_text(github.client_secret)
    found = GitHubIdentity(
        client_id=github.client_id,
        client_secret_file=tmp_path / "secret",
        groups_from=["acme"],
        hostname=github.host,
        ca=tmp_path / "ca.pem",
        clock=clock,
    )
    yield found
    await found.close()


def gateway_with(provider: GitHubIdentity, clock: FakeClock) -> Gateway:
    """As ``groups: [{name: teams, provider: github}]`` makes it."""
    identity = Identity("github", "github", provider, prefix="gh:")
    teams = Groups("teams", "github", provider, identities=("github",), own=True)
    return Gateway([identity], clock, [teams], relevant=RELEVANT)


async def follow(gateway: Gateway, away: LoginAnswer, ca: trustme.CA, *, path: str = "/provider") -> LoginAnswer:
    """The browser goes where it is sent, and returns to the gateway with its cookie."""
    assert away.status in (302, 303), away
    back = await go(Redirect(away.header("Location") or ""), ca, path=path)
    return await gateway.get(f"{back.path}?{urlencode(back.query)}", cookie=cookie_of(away))


async def test_the_complete_flow_ends_with_a_token_for_login_and_teams(
    provider: GitHubIdentity, ca: trustme.CA, github: GitHub, clock: FakeClock
) -> None:
    """S29, S32, S36, S58, S59, S60, S61, S62, S63."""
    gateway = gateway_with(provider, clock)
    told = body(await follow(gateway, await gateway.get(), ca))
    assert (told["user"], told["groups"]) == ("gh:octocat", ["acme", "acme:platform"])
    found = await gateway.tokens.find(told["token"])
    assert found is not None
    assert found.session.user == UserInfo("gh:octocat", "583231", ("acme", "acme:platform"))


async def test_githubs_token_is_not_in_the_store(
    provider: GitHubIdentity, ca: trustme.CA, github: GitHub, clock: FakeClock
) -> None:
    """L6."""
    gateway = gateway_with(provider, clock)
    told = body(await follow(gateway, await gateway.get(), ca))
    found = await gateway.store.find(digest(told["token"]))
    (token,) = github.tokens
    assert token not in repr(found) + repr(gateway.events) + repr(told)
    assert len(provider._handed_over) == 0


async def test_another_browser_cannot_finish_a_login(
    provider: GitHubIdentity, ca: trustme.CA, github: GitHub, clock: FakeClock
) -> None:
    """L1: neither without the cookie, nor with that of a login of its own, nor a second time."""
    gateway = gateway_with(provider, clock)
    mine, theirs = await gateway.get(), await gateway.get()
    back = await go(Redirect(mine.header("Location") or ""), ca)
    target = f"{back.path}?{urlencode(back.query)}"
    for cookie in ("", cookie_of(theirs)):
        answer = await gateway.get(target, cookie=cookie)
        assert answer.status == 403
        await nobody_came_in(gateway, answer)
    assert github.paths("/login/oauth/access_token") == []
    assert (await gateway.get(target, cookie=cookie_of(mine))).status == 200
    assert (await gateway.get(target, cookie=cookie_of(mine))).status == 403


async def test_a_login_that_took_too_long_begins_again(
    provider: GitHubIdentity, ca: trustme.CA, clock: FakeClock
) -> None:
    """L1."""
    gateway = gateway_with(provider, clock)
    away = await gateway.get()
    clock.advance(minutes=10)
    answer = await follow(gateway, away, ca)
    assert answer.status == 403
    await nobody_came_in(gateway, answer)


async def test_groups_need_the_person_so_a_session_ends_at_its_renewal(
    provider: GitHubIdentity, ca: trustme.CA, clock: FakeClock
) -> None:
    gateway = gateway_with(provider, clock)
    told = body(await follow(gateway, await gateway.get(), ca))
    clock.advance(minutes=14)
    answer = await gateway.post("/auth/renew", renewal_token=told["renewal_token"])
    assert answer.status in (401, 403)
    assert b"sign in again" in answer.body


async def test_with_an_operators_token_a_session_is_renewed_with_the_groups_of_that_day(
    github: GitHub, ca: trustme.CA, tmp_path: Path, clock: FakeClock, provider: GitHubIdentity
) -> None:
    """S36, T3."""
    (tmp_path / "token").write_text(github.operator_token)
    checked = GitHubIdentity(
        client_id=github.client_id,
        client_secret_file=tmp_path / "secret",
        token_file=tmp_path / "token",
        groups_from=["acme"],
        hostname=github.host,
        ca=tmp_path / "ca.pem",
        clock=clock,
    )
    gateway = gateway_with(checked, clock)
    told = body(await follow(gateway, await gateway.get(), ca))
    del github.organizations["acme"].teams["platform"]["octocat"]
    clock.advance(minutes=14)
    renewed = body(await gateway.post("/auth/renew", renewal_token=told["renewal_token"]))
    assert renewed["groups"] == ["acme"]
    github.people["octocat"] = Person(1, "octocat")
    clock.advance(minutes=14)
    assert (await gateway.post("/auth/renew", renewal_token=renewed["renewal_token"])).status in (401, 403)
    await checked.close()


async def test_a_policy_whose_groups_are_not_known_lets_nobody_in(
    provider: GitHubIdentity, ca: trustme.CA, clock: FakeClock
) -> None:
    """S37."""
    gateway = gateway_with(provider, clock)
    gateway.relevant = OSError("the policy cannot be read")
    answer = await follow(gateway, await gateway.get(), ca)
    assert answer.status == 503
    await nobody_came_in(gateway, answer)


async def test_groups_can_have_a_page_of_their_own(
    github: GitHub, provider: GitHubIdentity, ca: trustme.CA, tmp_path: Path, clock: FakeClock
) -> None:
    """S32, S33: first to GitHub for the identity, then to Google for the groups, then a token."""
    with Google(ca).running() as google:
        consent = Consent(
            google.client_id, tmp_path / "secret", f"{google.url}/o/oauth2/v2/auth", f"{google.url}/token"
        )
        groups = GoogleGroups(consent=consent, endpoint=google.url, ca=tmp_path / "ca.pem", clock=clock)
        google.groups["team-a@example.com"].members.add("octocat@example.com")
        named = _Renamed(provider)
        gateway = Gateway(
            [Identity("github", "github", named)],
            clock,
            [Groups("google", "google", groups)],
            relevant=frozenset({"platform@example.com", "security@example.com"}),
        )
        away = await follow(gateway, await gateway.get(), ca)
        await nobody_came_in(gateway, away)
        told = body(await follow(gateway, away, ca, path="/auth/github/groups/provider"))
        assert (told["user"], told["groups"]) == ("octocat@example.com", ["platform@example.com"])
        await groups.close()


class _Renamed:
    """GitHub's people under addresses, as Google would call them."""

    def __init__(self, provider: GitHubIdentity) -> None:
        self.handle_client = provider.handle_client
        self._provider = provider

    async def handle_provider(self, request: LoginRequest) -> UserInfo:
        user = await self._provider.handle_provider(request)
        return UserInfo(f"{user.username}@example.com")
