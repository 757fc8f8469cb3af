"""Signing in with GitHub, step by step, and everything that can go wrong on the way."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme

from ostiary.core.yaml import ConfigReader, parse
from ostiary.errors import ConfigurationError, LoginRefused, OstiaryError, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import LoginRequest, Redirect
from ostiary_gateway.providers.github.identity import HAND_OVER_SECONDS, GitHubIdentity
from ostiary_gateway.testing import FakeClock
from tests.support.github import GitHub, Person
from tests.support.http_server import HOLD, Response
from tests.support.oauth_server import go

CALLBACK = "https://gateway.example.com/auth/provider"
VISIT = LoginRequest("GET", "/auth", callback_url=CALLBACK, remote_address="192.0.2.1")
LIMITED = {"message": "API rate limit exceeded"}

Make = Callable[..., GitHubIdentity]


@pytest.fixture
def github(ca: trustme.CA) -> Iterator[GitHub]:
    with GitHub(ca).running() as server:
        yield server


@pytest.fixture
def files(ca: trustme.CA, tmp_path: Path) -> Path:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    (tmp_path / "secret").write_text(f"{GitHub.client_secret}\n")
    (tmp_path / "token").write_text(f"{GitHub.operator_token}\n")
    (tmp_path / "empty").write_text("\n")
    return tmp_path


@pytest.fixture
async def make(github: GitHub, files: Path, clock: FakeClock) -> AsyncIterator[Make]:
    made: list[GitHubIdentity] = []

    def build(*, operator: bool = False, **options: Any) -> GitHubIdentity:
        provider = GitHubIdentity(
            client_id=github.client_id,
            client_secret_file=files / "secret",
            token_file=files / "token" if operator else None,
            hostname=github.host,
            ca=files / "ca.pem",
            clock=clock,
            **options,
        )
        made.append(provider)
        return provider

    yield build
    for provider in made:
        await provider.close()


async def sign_in(provider: GitHubIdentity, ca: trustme.CA) -> UserInfo:
    return await provider.handle_provider(await go(await provider.handle_client(VISIT), ca))


def sent(redirect: Redirect) -> dict[str, str]:
    query = parse_qs(urlsplit(redirect.url).query, keep_blank_values=True, strict_parsing=True)
    return {name: value for name, (value,) in query.items()}


# --- the first request ---


@pytest.mark.parametrize(
    "request_",
    [
        replace(VISIT, method="POST"),
        replace(VISIT, method="HEAD"),
        replace(VISIT, query=(("rd", "https://evil.example"),)),
        replace(VISIT, query=(("", ""),)),
        replace(VISIT, method="POST", form=(("a", "b"),)),
    ],
)
async def test_a_visit_is_a_get_without_any_parameter(make: Make, request_: LoginRequest, github: GitHub) -> None:
    """S58."""
    with pytest.raises(LoginRefused):
        await make().handle_client(request_)
    assert github.requests == []


async def test_the_redirect_asks_for_nothing_but_the_identity(make: Make, github: GitHub) -> None:
    """S59, L2."""
    redirect = await make().handle_client(VISIT)
    assert redirect.url.startswith(f"{github.url}/login/oauth/authorize?")
    query = sent(redirect)
    assert query.pop("state") == dict(redirect.remember)["state"]
    assert len(query.pop("code_challenge")) == 43
    assert query == {
        "client_id": github.client_id,
        "redirect_uri": CALLBACK,
        "scope": "",
        "code_challenge_method": "S256",
    }


async def test_the_state_is_another_one_each_time_and_the_verifier_stays_here(make: Make) -> None:
    """S59, S60, L1, L6."""
    provider = make()
    redirects = [await provider.handle_client(VISIT) for _ in range(20)]
    assert len({sent(redirect)["state"] for redirect in redirects}) == 20
    for redirect in redirects:
        remembered = dict(redirect.remember)
        assert set(remembered) == {"state", "verifier"}
        assert len(remembered["state"]) >= 43
        assert remembered["verifier"] not in redirect.url
        assert remembered["verifier"] not in repr(redirect)


@pytest.mark.parametrize(
    ("options", "scope"),
    [
        ({"allowed_organizations": ["acme"]}, "read:org"),
        ({"groups_from": ["acme"]}, "read:org"),
        ({"groups_from": ["acme"], "operator": True}, ""),
        ({"allowed_organizations": ["acme"], "operator": True}, ""),
    ],
)
async def test_organizations_are_asked_for_only_where_the_person_must_show_them(
    make: Make, options: dict[str, Any], scope: str
) -> None:
    assert sent(await make(**options).handle_client(VISIT))["scope"] == scope


# --- the second request ---


async def test_somebody_signs_in_and_is_known_by_login_and_id(make: Make, ca: trustme.CA, github: GitHub) -> None:
    """S29, S61, S62: code, then token, then user; POST and https, as it is today (C4)."""
    assert await sign_in(make(), ca) == UserInfo("octocat", uid="583231")
    assert [(request.method, request.path) for request in github.requests] == [
        ("GET", "/login/oauth/authorize"),
        ("POST", "/login/oauth/access_token"),
        ("GET", "/api/v3/user"),
    ]
    exchange = github.requests[1]
    assert exchange.form["redirect_uri"] == CALLBACK
    assert not exchange.query


async def test_without_a_state_or_with_another_one_nobody_comes_in(make: Make, ca: trustme.CA, github: GitHub) -> None:
    """S61, L1."""
    provider = make()
    back = await go(await provider.handle_client(VISIT), ca)
    query = dict(back.query)
    other = await provider.handle_client(VISIT)
    wrong = [
        replace(back, query=(("code", query["code"]),)),
        replace(back, query=(("code", query["code"]), ("state", ""))),
        replace(back, query=(("code", query["code"]), ("state", "guessed"))),
        replace(back, query=(("code", query["code"]), ("state", "gr\u00fc\u00df\ud800"))),
        replace(back, query=(*back.query, ("state", query["state"]))),
        replace(back, remembered=()),
        replace(back, remembered=(("state", query["state"]),)),
        replace(back, remembered=other.remember),
        replace(back, method="POST"),
        replace(back, query=(("state", query["state"]),)),
        replace(back, query=(*back.query, ("code", "second"))),
        replace(back, query=(("state", query["state"]), ("code", "x" * 5000))),
    ]
    for request in wrong:
        with pytest.raises(LoginRefused):
            await provider.handle_provider(request)
    assert github.paths("/login/oauth/access_token") == []
    assert (await provider.handle_provider(back)).username == "octocat"


async def test_a_code_is_good_once(make: Make, ca: trustme.CA) -> None:
    """L1."""
    provider = make()
    back = await go(await provider.handle_client(VISIT), ca)
    await provider.handle_provider(back)
    with pytest.raises(LoginRefused):
        await provider.handle_provider(back)


async def test_a_code_of_another_browser_is_of_no_use(make: Make, ca: trustme.CA, github: GitHub) -> None:
    """L1, L2: the state may be right, the verifier is the one of this login."""
    provider = make()
    github.person = "hubot"
    stolen = dict((await go(await provider.handle_client(VISIT), ca)).query)["code"]
    mine = await provider.handle_client(VISIT)
    back = LoginRequest(
        "GET",
        "/auth/provider",
        query=(("code", stolen), ("state", dict(mine.remember)["state"])),
        callback_url=CALLBACK,
        remembered=mine.remember,
    )
    with pytest.raises(LoginRefused):
        await provider.handle_provider(back)


async def test_who_says_no_at_github_is_refused(make: Make, ca: trustme.CA, github: GitHub) -> None:
    github.denies = True
    with pytest.raises(LoginRefused):
        await sign_in(make(), ca)


@pytest.mark.parametrize("person", [Person(1, "acme", type="Organization"), Person(2, "ci", type="Bot")])
async def test_only_people_sign_in(make: Make, ca: trustme.CA, github: GitHub, person: Person) -> None:
    github.people[person.login] = person
    github.person = person.login
    with pytest.raises(ProviderError):
        await sign_in(make(), ca)


@pytest.mark.parametrize(
    "body",
    [
        {"id": 0, "login": "octocat", "type": "User"},
        {"id": True, "login": "octocat", "type": "User"},
        {"id": "583231", "login": "octocat", "type": "User"},
        {"id": 5, "login": "", "type": "User"},
        {"id": 5, "login": "octocat/../hubot", "type": "User"},
        {"id": 5, "login": "system:masters", "type": "User"},
        {"id": 5, "login": ["octocat"], "type": "User"},
        {"id": 5, "type": "User"},
        ["octocat"],
        None,
        b"<html>",
    ],
)
async def test_a_half_answer_is_no_identity(make: Make, ca: trustme.CA, github: GitHub, body: object) -> None:
    """S26."""
    github.failures["/api/v3/user"] = Response(200, body)
    with pytest.raises(ProviderError):
        await sign_in(make(), ca)


@pytest.mark.parametrize(
    ("path", "reply", "outcome"),
    [
        ("/login/oauth/access_token", Response(500), ProviderError),
        ("/login/oauth/access_token", Response(302, headers={"Location": "https://evil.example/"}), ProviderError),
        ("/login/oauth/access_token", Response(200, {"error": "incorrect_client_credentials"}), ProviderError),
        ("/login/oauth/access_token", Response(200, {"error": "redirect_uri_mismatch"}), ProviderError),
        ("/login/oauth/access_token", Response(200, {"error": "something-new"}), ProviderError),
        ("/login/oauth/access_token", Response(200, {"error": "unverified_user_email"}), LoginRefused),
        ("/login/oauth/access_token", Response(200, {"access_token": "a\r\nb", "token_type": "bearer"}), ProviderError),
        ("/login/oauth/access_token", Response(200, {"access_token": "abc", "token_type": "mac"}), ProviderError),
        ("/login/oauth/access_token", Response(200, b"access_token=abc&token_type=bearer"), ProviderError),
        ("/login/oauth/access_token", Response(200, b"[" * 100_000), ProviderError),
        ("/login/oauth/access_token", Response(200, b" " * (1024 * 1024 + 1)), ProviderError),
        ("/api/v3/user", Response(500), ProviderError),
        ("/api/v3/user", Response(401, {"message": "Bad credentials"}), LoginRefused),
        ("/api/v3/user", Response(403, LIMITED, {"x-ratelimit-remaining": "0"}), ProviderError),
        ("/api/v3/user", Response(429, LIMITED, {"retry-after": "30"}), ProviderError),
        ("/api/v3/user", Response(301, headers={"Location": "/api/v3/users/hubot"}), ProviderError),
    ],
)
async def test_whatever_goes_wrong_at_github_the_door_stays_shut(
    make: Make, ca: trustme.CA, github: GitHub, path: str, reply: Response, outcome: type[OstiaryError]
) -> None:
    github.failures[path] = reply
    with pytest.raises(outcome):
        await sign_in(make(), ca)


async def test_a_slow_github_is_waited_for_a_bounded_time(make: Make, ca: trustme.CA, github: GitHub) -> None:
    github.failures["/api/v3/user"] = HOLD
    with pytest.raises(ProviderError, match="is unavailable"):
        await sign_in(make(seconds=0.2), ca)


async def test_a_server_that_is_not_trusted_gets_no_secret(make: Make, ca: trustme.CA, github: GitHub) -> None:
    back = await go(await make().handle_client(VISIT), ca)
    provider = make()
    strange = GitHubIdentity(
        client_id="client-1", client_secret_file=provider._client_secret.path, hostname=github.host
    )
    with pytest.raises(ProviderError) as raised:
        await strange.handle_provider(back)
    assert "not trusted" in (raised.value.cause or "")
    assert github.paths("/login/oauth/access_token") == []
    await strange.close()


async def test_ten_people_sign_in_at_once_and_none_becomes_another(make: Make, ca: trustme.CA, github: GitHub) -> None:
    provider = make()
    waiting = []
    for number in range(10):
        login = f"person-{number}"
        github.people[login] = Person(1000 + number, login)
        github.person = login
        waiting.append(await go(await provider.handle_client(VISIT), ca))
    users = await asyncio.gather(*(provider.handle_provider(back) for back in waiting))
    assert users == [UserInfo(f"person-{number}", uid=str(1000 + number)) for number in range(10)]


async def test_no_cookie_of_one_login_goes_with_another(make: Make, ca: trustme.CA, github: GitHub) -> None:
    provider = make()
    await sign_in(provider, ca)
    await sign_in(provider, ca)
    assert all("cookie" not in request.headers for request in github.requests)


# --- organisations ---


async def test_only_members_of_an_allowed_organization_come_in(make: Make, ca: trustme.CA, github: GitHub) -> None:
    provider = make(allowed_organizations=["umbrella", "acme"])
    assert (await sign_in(provider, ca)).username == "octocat"
    github.organizations["acme"].members["octocat"] = "pending"
    with pytest.raises(LoginRefused):
        await sign_in(provider, ca)
    del github.organizations["acme"].members["octocat"]
    with pytest.raises(LoginRefused):
        await sign_in(provider, ca)


async def test_with_an_operators_token_the_person_shows_nothing(make: Make, ca: trustme.CA, github: GitHub) -> None:
    await sign_in(make(allowed_organizations=["acme"], operator=True), ca)
    (check,) = (request for request in github.requests if "orgs" in request.path)
    assert check.path == "/api/v3/orgs/acme/memberships/octocat"
    assert check.bearer == github.operator_token


@pytest.mark.parametrize(
    "reply",
    [
        Response(500),
        Response(403, {"message": "the organization has enabled OAuth App access restrictions"}),
        Response(403, {"message": "sso"}, {"X-GitHub-SSO": "required; url=https://github.com/orgs/acme/sso"}),
        Response(403, {"message": "You have exceeded a secondary rate limit"}),
        Response(301, headers={"Location": "/organizations/1"}),
        Response(200, b"not JSON"),
    ],
)
@pytest.mark.parametrize("operator", [False, True])
async def test_a_check_that_cannot_be_made_shuts_the_door(
    make: Make, ca: trustme.CA, github: GitHub, reply: Response, operator: bool
) -> None:
    github.failures["/api/v3/user/memberships" if not operator else "/api/v3/orgs"] = reply
    with pytest.raises(ProviderError):
        await sign_in(make(allowed_organizations=["acme"], operator=operator), ca)


async def test_an_operator_who_sees_too_little_shuts_the_door(make: Make, ca: trustme.CA, github: GitHub) -> None:
    github.operator_sees = set()
    with pytest.raises(ProviderError):
        await sign_in(make(allowed_organizations=["acme"], operator=True), ca)


async def test_who_does_not_grant_the_scope_is_refused(make: Make, ca: trustme.CA, github: GitHub) -> None:
    github.grants = "user:email"
    with pytest.raises(LoginRefused, match="organisations"):
        await sign_in(make(groups_from=["acme"]), ca)


async def test_a_larger_scope_granted_before_is_enough(make: Make, ca: trustme.CA, github: GitHub) -> None:
    github.grants = "admin:org read:org"
    assert (await sign_in(make(allowed_organizations=["acme"]), ca)).username == "octocat"


# --- groups ---

RELEVANT = frozenset({"acme", "acme:platform", "acme:security", "umbrella", "umbrella:labs", "developers"})


async def test_the_same_object_tells_groups_with_the_token_of_the_same_login(
    make: Make, ca: trustme.CA, github: GitHub
) -> None:
    """S6, S36."""
    provider = make(groups_from=["acme", "umbrella"])
    user = await sign_in(provider, ca)
    assert user == UserInfo("octocat", uid="583231"), "the token is not in what will be stored"
    github.requests.clear()
    found = await provider.groups_of(user, RELEVANT, VISIT)
    assert [membership.group for membership in found] == ["acme", "acme:platform"]
    assert {request.bearer for request in github.requests} <= set(github.tokens)
    assert "/api/v3/orgs/umbrella/teams/labs/memberships/octocat" not in github.paths()


async def test_the_token_serves_one_login_and_then_is_gone(make: Make, ca: trustme.CA) -> None:
    """At a renewal there is no person to ask, so such a session ends."""
    provider = make(groups_from=["acme"])
    user = await sign_in(provider, ca)
    await provider.groups_of(user, {"acme"}, VISIT)
    with pytest.raises(LoginRefused, match="sign in again"):
        await provider.groups_of(user, {"acme"}, VISIT)
    assert len(provider._handed_over) == 0


async def test_a_token_that_nobody_comes_for_is_forgotten(make: Make, ca: trustme.CA, clock: FakeClock) -> None:
    provider = make(groups_from=["acme"])
    user = await sign_in(provider, ca)
    clock.advance(HAND_OVER_SECONDS)
    with pytest.raises(LoginRefused):
        await provider.groups_of(user, {"acme"}, VISIT)
    await sign_in(provider, ca)
    await provider.close()
    assert len(provider._handed_over) == 0


async def test_a_token_that_no_group_needs_is_not_kept_at_all(make: Make, ca: trustme.CA) -> None:
    provider = make()
    await sign_in(provider, ca)
    assert len(provider._handed_over) == 0


async def test_somebody_signs_in_twice_at_once(make: Make, ca: trustme.CA) -> None:
    provider = make(groups_from=["acme"])
    users = await asyncio.gather(sign_in(provider, ca), sign_in(provider, ca))
    found = await asyncio.gather(*(provider.groups_of(user, {"acme"}, VISIT) for user in users))
    assert [len(memberships) for memberships in found] == [1, 1]


async def test_one_persons_token_never_answers_for_another(make: Make, ca: trustme.CA, github: GitHub) -> None:
    provider = make(groups_from=["acme"])
    await sign_in(provider, ca)
    with pytest.raises(LoginRefused):
        await provider.groups_of(UserInfo("hubot", uid="480938"), {"acme"}, VISIT)


async def test_groups_without_organizations_to_ask_are_a_mistake_that_is_told(make: Make, ca: trustme.CA) -> None:
    """S37."""
    provider = make()
    user = await sign_in(provider, ca)
    with pytest.raises(ProviderError, match="not asked"):
        await provider.groups_of(user, {"acme"}, VISIT)


async def test_where_no_policy_names_a_group_of_github_a_session_goes_on(make: Make, ca: trustme.CA) -> None:
    """S35."""
    provider = make(groups_from=["acme"])
    user = await sign_in(provider, ca)
    assert await provider.groups_of(user, {"developers"}, VISIT) == ()
    assert await provider.groups_of(user, {"developers"}, VISIT) == ()


# --- renewal ---


async def test_with_an_operators_token_everything_is_checked_again(make: Make, ca: trustme.CA, github: GitHub) -> None:
    """S36, T3: a group that was left is left at the next renewal."""
    provider = make(allowed_organizations=["acme"], groups_from=["acme"], operator=True)
    user = await sign_in(provider, ca)
    assert await provider.revalidate(user) == user
    assert len(await provider.groups_of(user, {"acme:platform"}, VISIT)) == 1
    github.organizations["acme"].teams["platform"]["octocat"] = "pending"
    assert await provider.groups_of(user, {"acme:platform"}, VISIT) == ()
    del github.organizations["acme"].members["octocat"]
    with pytest.raises(LoginRefused):
        await provider.revalidate(user)


async def test_without_a_token_the_account_itself_can_still_be_looked_up(
    make: Make, ca: trustme.CA, github: GitHub
) -> None:
    provider = make()
    user = await sign_in(provider, ca)
    assert await provider.revalidate(user) == user
    assert github.requests[-1].path == "/api/v3/user/583231"
    assert github.requests[-1].headers["authorization"].startswith("Basic ")


async def test_organizations_cannot_be_checked_again_without_a_token(make: Make, ca: trustme.CA) -> None:
    provider = make(allowed_organizations=["acme"])
    user = await sign_in(provider, ca)
    with pytest.raises(LoginRefused, match="sign in again"):
        await provider.revalidate(user)


async def test_who_is_gone_suspended_or_renamed_is_refused(make: Make, ca: trustme.CA, github: GitHub) -> None:
    provider = make()
    user = await sign_in(provider, ca)
    github.people["octocat"].suspended_at = "2026-01-01T00:00:00Z"
    with pytest.raises(LoginRefused):
        await provider.revalidate(user)
    # Somebody else takes the name that was given up: the id tells.
    github.people = {"mona": Person(583231, "mona"), "octocat": Person(999, "octocat")}
    with pytest.raises(LoginRefused):
        await provider.revalidate(user)
    github.people = {"octocat": Person(999, "octocat")}
    with pytest.raises(LoginRefused):
        await provider.revalidate(user)


@pytest.mark.parametrize("uid", ["", "x", "-1", "\u0661", "1/../../orgs", "9" * 5000])
async def test_what_is_no_id_is_nobody(make: Make, github: GitHub, uid: str) -> None:
    with pytest.raises(LoginRefused):
        await make().revalidate(UserInfo("octocat", uid=uid))
    assert github.requests == []


async def test_an_outage_at_renewal_is_no_refusal(make: Make, ca: trustme.CA, github: GitHub) -> None:
    provider = make()
    user = await sign_in(provider, ca)
    github.failures["/api/v3/user/"] = Response(502)
    with pytest.raises(ProviderError):
        await provider.revalidate(user)


async def test_a_limit_is_respected_until_it_ends(make: Make, ca: trustme.CA, github: GitHub, clock: FakeClock) -> None:
    provider = make(operator=True)
    user = await sign_in(provider, ca)
    reset = str(int(clock.now().timestamp()) + 300)
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": reset}
    github.failures["/api/v3/user/"] = Response(403, LIMITED, headers)
    with pytest.raises(ProviderError):
        await provider.revalidate(user)
    github.failures.clear()
    github.requests.clear()
    clock.advance(299)
    with pytest.raises(ProviderError):
        await provider.revalidate(user)
    assert github.requests == []
    clock.advance(1)
    assert await provider.revalidate(user) == user


# --- secrets ---


async def test_no_secret_is_in_any_error_log_or_repr(
    make: Make, ca: trustme.CA, github: GitHub, caplog: pytest.LogCaptureFixture
) -> None:
    """L6."""
    caplog.set_level(logging.DEBUG)
    provider = make(groups_from=["acme"])
    told = [repr(provider)]
    told.append(repr(await sign_in(provider, ca)))
    backs = []
    for path, reply in {
        "/login/oauth/access_token": Response(200, {"error": github.client_secret, "access_token": "x"}),
        "/api/v3/user": Response(500),
        "/api/v3/user/memberships": Response(401),
    }.items():
        github.failures = {path: reply}
        back = await go(await provider.handle_client(VISIT), ca)
        backs.append(back)
        with pytest.raises(OstiaryError) as raised:
            await provider.groups_of(await provider.handle_provider(back), {"acme"}, VISIT)
        told += [repr(raised.value), str(raised.value), "".join(traceback.format_exception(raised.value))]
    verifiers = {dict(back.remembered)["verifier"] for back in backs}
    hidden = {github.client_secret, *github.tokens, *verifiers, *(dict(back.query)["code"] for back in backs)}
    everything = "\n".join([*told, caplog.text])
    assert not [secret for secret in hidden if secret in everything]


# --- settings ---


def read(text: str, directory: Path, clock: FakeClock) -> tuple[GitHubIdentity, list[str]]:
    reading = ConfigReader(parse(text))
    provider = GitHubIdentity.from_config(reading.root, Context("github", directory, clock))
    unknown = [f"{place.path}: unknown" for place in reading.unknown_fields()]
    return provider, [f"{problem.place.path}: {problem.message}" for problem in reading.problems] + unknown


def test_a_whole_configuration_is_read(files: Path, clock: FakeClock) -> None:
    text = """
clientID: Iv1.0123
clientSecretFile: secret
hostname: github.example.com
allowedOrganizations: [acme]
groupsFrom: [acme]
tokenFile: token
ca: ca.pem
"""
    assert read(text, files, clock)[1] == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("clientSecretFile: secret", "clientID: it is missing"),
        ("clientID: a", "clientSecretFile: it is missing"),
        ("{clientID: a, clientSecretFile: none}", "clientSecretFile: the client secret"),
        ("{clientID: a, clientSecretFile: empty}", "clientSecretFile: the client secret"),
        ("{clientID: a, clientSecretFile: secret, tokenFile: none}", "tokenFile: the token"),
        ("{clientID: a, clientSecretFile: secret, allowedOrganizations: ['']}", "allowedOrganizations: it must"),
        ("{clientID: a, clientSecretFile: secret, allowedOrganizations: []}", "allowedOrganizations: an empty"),
        ("{clientID: a, clientSecretFile: secret, allowedOrganizations: [a/b]}", "allowedOrganizations: it must"),
        ("{clientID: a, clientSecretFile: secret, allowedOrganizations: ''}", "allowedOrganizations: expected"),
        ("{clientID: a, clientSecretFile: secret, allowedOrganizations: null}", "allowedOrganizations: an empty"),
        ("{clientID: a, clientSecretFile: secret, groupsFrom: []}", "groupsFrom: an empty"),
        ("{clientID: a, clientSecretFile: secret, hostname: 'https://github.com'}", "hostname: it must"),
        ("{clientID: a, clientSecretFile: secret, hostname: 'a/b'}", "hostname: it must"),
        ("{clientID: a, clientSecretFile: secret, ca: none}", "ca: "),
        ("{clientID: a, clientSecretFile: secret, ca: secret}", "ca: "),
        ("{clientID: a, clientSecretFile: secret, clientSecret: x}", "clientSecret: unknown"),
    ],
)
def test_a_mistake_is_told_with_its_place(files: Path, clock: FakeClock, text: str, problem: str) -> None:
    """T7: a restriction that would restrict nothing stops the start."""
    _, problems = read(text, files, clock)
    assert any(found.startswith(problem) for found in problems), problems


@pytest.mark.parametrize("names", [[], [""], ["acme", ""], ["acme/teams"]])
def test_an_organization_without_a_name_is_refused_from_python_too(files: Path, names: list[str]) -> None:
    """T7."""
    with pytest.raises(ConfigurationError):
        GitHubIdentity(client_id="a", client_secret_file=files / "secret", allowed_organizations=names)
