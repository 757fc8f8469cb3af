"""Organisations and teams at GitHub as groups: asked one by one, the relevant ones only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.yaml import ConfigReader, parse
from ostiary.errors import ConfigurationError, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.github.api import MAX_CHECKS, addresses, parse_groups
from ostiary_gateway.providers.github.groups import GitHubGroups
from ostiary_gateway.testing import FakeClock
from tests.support.github import GitHub
from tests.support.http_server import HOLD, Response

REQUEST = LoginRequest("GET", "/auth", callback_url="https://gateway.example.com/auth/groups/provider")
OCTOCAT = UserInfo("octocat", uid="583231")

Make = Callable[..., GitHubGroups]


@pytest.fixture
def github(ca: trustme.CA) -> Iterator[GitHub]:
    with GitHub(ca).running() as server:
        yield server


@pytest.fixture
def files(ca: trustme.CA, tmp_path: Path) -> Path:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    (tmp_path / "token").write_text(f"{GitHub.operator_token}\n")
    return tmp_path


@pytest.fixture
async def make(github: GitHub, files: Path, clock: FakeClock) -> AsyncIterator[Make]:
    made: list[GitHubGroups] = []

    def build(**options: Any) -> GitHubGroups:
        options = {"groups_from": ["acme", "umbrella"], **options}
        provider = GitHubGroups(
            token_file=files / "token", hostname=github.host, ca=files / "ca.pem", clock=clock, **options
        )
        made.append(provider)
        return provider

    yield build
    for provider in made:
        await provider.close()


async def groups(provider: GitHubGroups, *relevant: str, user: UserInfo = OCTOCAT) -> list[str]:
    return [membership.group for membership in await provider.groups_of(user, frozenset(relevant), REQUEST)]


async def test_each_relevant_group_is_asked_about_and_no_other(make: Make, github: GitHub) -> None:
    """S34, S35, S36."""
    assert await groups(make(), "acme:platform", "acme:security", "developers", "acme.example:x") == ["acme:platform"]
    assert sorted(github.paths()) == [
        "/api/v3/orgs/acme/memberships/octocat",
        "/api/v3/orgs/acme/teams/platform/memberships/octocat",
        "/api/v3/orgs/acme/teams/security/memberships/octocat",
    ]


async def test_a_group_that_a_new_policy_names_appears(make: Make) -> None:
    """S36."""
    provider = make()
    assert await groups(provider, "acme") == ["acme"]
    assert await groups(provider, "acme", "acme:platform") == ["acme", "acme:platform"]


async def test_how_a_group_is_known_is_told(make: Make) -> None:
    found = await make().groups_of(OCTOCAT, {"acme", "acme:platform"}, REQUEST)
    assert [item.source for item in found] == ["GitHub organisation acme", "GitHub team acme:platform"]


async def test_an_invitation_is_no_membership(make: Make, github: GitHub) -> None:
    github.organizations["acme"].teams["platform"]["octocat"] = "pending"
    assert await groups(make(), "acme:platform") == []
    github.organizations["acme"].members["octocat"] = "pending"
    assert await groups(make(), "acme") == []


async def test_who_is_not_in_the_organization_is_in_none_of_its_teams(make: Make, github: GitHub) -> None:
    github.organizations["umbrella"].teams["labs"]["octocat"] = "active"
    assert await groups(make(), "umbrella:labs") == []
    assert github.paths("/api/v3/orgs/umbrella/teams") == []


async def test_an_organization_that_is_not_named_is_not_asked_about(make: Make, github: GitHub) -> None:
    """A group of another provider can have the name of an organisation that somebody else owns."""
    assert await groups(make(groups_from=["acme"]), "umbrella", "umbrella:labs") == []
    assert github.requests == []


async def test_a_user_without_the_prefix_is_somebody_elses(make: Make, github: GitHub) -> None:
    provider = make(user_prefix="github:")
    assert await groups(provider, "acme") == []
    assert github.requests == []
    assert await groups(provider, "acme", user=UserInfo("github:octocat")) == ["acme"]


@pytest.mark.parametrize("name", ["", "..", "octocat/../hubot", "octocat?x", "octo cat", "\u212aelvin", "x" * 200])
async def test_what_is_no_login_is_nobody(make: Make, github: GitHub, name: str) -> None:
    assert await groups(make(), "acme", user=UserInfo(name)) == []
    assert github.requests == []


@pytest.mark.parametrize(
    "reply",
    [
        Response(500),
        Response(401, {"message": "Bad credentials"}),
        Response(403, {"message": "Resource not accessible"}),
        Response(403, {"message": "limit"}, {"x-ratelimit-remaining": "0"}),
        Response(429, {}, {"retry-after": "1"}),
        Response(301, headers={"Location": "/orgs/other"}),
        Response(200, b"<html>"),
    ],
)
@pytest.mark.parametrize("path", ["/api/v3/orgs/acme/memberships", "/api/v3/orgs/acme/teams/platform"])
async def test_an_answer_that_is_none_shuts_the_door(make: Make, github: GitHub, path: str, reply: Response) -> None:
    """S37: no token with silently missing groups."""
    github.failures[path] = reply
    with pytest.raises(ProviderError):
        await groups(make(), "acme", "acme:platform", "acme:security")


async def test_a_token_that_sees_too_little_shuts_the_door(make: Make, github: GitHub) -> None:
    """S37."""
    github.operator_sees = {"acme"}
    with pytest.raises(ProviderError):
        await groups(make(), "acme", "umbrella")


async def test_a_slow_answer_shuts_the_door_in_time(make: Make, github: GitHub) -> None:
    github.failures["/api/v3/orgs/acme/teams"] = HOLD
    with pytest.raises(ProviderError):
        await groups(make(seconds=0.2), "acme:platform")


async def test_a_new_token_is_used_at_once(make: Make, github: GitHub, files: Path) -> None:
    provider = make()
    (files / "token").write_text("expired")
    with pytest.raises(ProviderError):
        await groups(provider, "acme")
    (files / "token").write_text(GitHub.operator_token)
    assert await groups(provider, "acme") == ["acme"]


async def test_a_limit_is_respected_until_it_ends(make: Make, github: GitHub, clock: FakeClock) -> None:
    provider = make()
    github.failures["/api/v3"] = Response(429, {"message": "secondary rate limit"}, {"retry-after": "90"})
    with pytest.raises(ProviderError):
        await groups(provider, "acme")
    github.failures.clear()
    asked = len(github.requests)
    clock.advance(89)
    with pytest.raises(ProviderError, match="is unavailable"):
        await groups(provider, "acme")
    assert len(github.requests) == asked
    clock.advance(1)
    assert await groups(provider, "acme") == ["acme"]


async def test_many_teams_are_asked_about_a_few_at_a_time(make: Make, github: GitHub) -> None:
    github.organizations["acme"].teams = {f"team-{number}": {"octocat": "active"} for number in range(40)}
    found = await groups(make(), *(f"acme:team-{number}" for number in range(40)))
    assert len(found) == 40
    assert github.most_at_once <= 8


async def test_more_groups_than_can_be_asked_about_shut_the_door(make: Make, github: GitHub) -> None:
    with pytest.raises(ProviderError):
        await groups(make(), *(f"acme:team-{number}" for number in range(MAX_CHECKS + 1)))
    assert github.requests == []


@settings(max_examples=50)
@given(st.frozensets(st.text(max_size=12) | st.from_regex(r"(acme|ACME|other)(:[a-z.:/-]{0,6})?", fullmatch=True)))
def test_only_names_that_lead_to_one_team_are_asked_about(relevant: frozenset[str]) -> None:
    """S14, S36: what is asked is the name itself, whole, or nothing."""
    for group in parse_groups(relevant, ["acme"]):
        assert group.name in relevant
        assert group.name == (f"{group.organization}:{group.team}" if ":" in group.name else group.organization)
        assert group.organization.lower() == "acme"
        assert not set(group.team) & set("./:?#%\\ ")


@pytest.mark.parametrize(
    ("hostname", "web", "api"),
    [
        ("github.com", "https://github.com", "https://api.github.com"),
        ("GitHub.com", "https://github.com", "https://api.github.com"),
        ("octocorp.ghe.com", "https://octocorp.ghe.com", "https://api.octocorp.ghe.com"),
        ("git.example.com:8443", "https://git.example.com:8443", "https://git.example.com:8443/api/v3"),
    ],
)
def test_every_kind_of_github_has_its_addresses(hostname: str, web: str, api: str) -> None:
    assert addresses(hostname) == (web, api)


def test_what_is_no_host_is_refused(subtests: pytest.Subtests) -> None:
    for hostname in ["", "https://github.com", "a/b", "a@b", "a b", "a..b", "-a", "a:b", "a#b"]:
        with subtests.test(hostname=hostname), pytest.raises(ConfigurationError):
            addresses(hostname)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("{groupsFrom: [acme], tokenFile: token, userPrefix: 'a:', hostname: git.example.com, ca: ca.pem}", []),
        ("{tokenFile: token}", ["groupsFrom"]),
        ("{groupsFrom: [], tokenFile: token}", ["groupsFrom"]),
        ("{groupsFrom: [''], tokenFile: token}", ["groupsFrom"]),
        ("{groupsFrom: [acme]}", ["tokenFile"]),
        ("{groupsFrom: [acme], tokenFile: none}", ["tokenFile"]),
        ("{groupsFrom: [acme], tokenFile: token, hostname: 'a b'}", ["hostname"]),
    ],
)
def test_mistakes_are_told_with_their_places(files: Path, clock: FakeClock, text: str, problems: list[str]) -> None:
    """T7."""
    reading = ConfigReader(parse(text))
    GitHubGroups.from_config(reading.root, Context("teams", files, clock))
    assert [problem.place.path for problem in reading.problems] == problems
    assert reading.unknown_fields() == ()
