"""Google Groups: a question per relevant group, as a service account or with the person's consent."""

from __future__ import annotations

import asyncio
import json
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
from ostiary_gateway.providers.google_groups import EARLY_SECONDS, MAX_CHECKS, NAME_SECONDS, Consent, GoogleGroups
from ostiary_gateway.testing import FakeClock
from tests.support.google import HIDDEN, PERSON_SCOPE, Google, Group
from tests.support.http_server import HOLD, Response
from tests.support.oauth_server import go

CALLBACK = "https://gateway.example.com/auth/groups/provider"
REQUEST = LoginRequest("GET", "/auth", callback_url=CALLBACK)
ALICE = UserInfo("alice@example.com")
RELEVANT = ("platform@example.com", "security@example.com")

Make = Callable[..., GoogleGroups]


@pytest.fixture
def google(ca: trustme.CA) -> Iterator[Google]:
    with Google(ca).running() as server:
        yield server


@pytest.fixture
def files(google: Google, ca: trustme.CA, tmp_path: Path) -> Path:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    (tmp_path / "secret").write_text(google.client_secret)
    google.write_key(tmp_path / "key.json")
    return tmp_path


@pytest.fixture
async def make(google: Google, files: Path, clock: FakeClock) -> AsyncIterator[Make]:
    made: list[GoogleGroups] = []

    def build(*, consent: bool = False, **options: Any) -> GoogleGroups:
        who: dict[str, Any] = {"key_file": files / "key.json"}
        if consent:
            page, token = f"{google.url}/o/oauth2/v2/auth", f"{google.url}/token"
            who = {"consent": Consent(google.client_id, files / "secret", page, token)}
        provider = GoogleGroups(endpoint=google.url, ca=files / "ca.pem", clock=clock, **who, **options)
        made.append(provider)
        return provider

    yield build
    for provider in made:
        await provider.close()


async def groups(provider: GoogleGroups, *relevant: str, user: UserInfo = ALICE) -> list[str]:
    found = await provider.groups_of(user, frozenset(relevant), REQUEST)
    assert not isinstance(found, Redirect)
    return [membership.group for membership in found]


# --- as a service account ---


@pytest.mark.parametrize("api", ["cloudIdentity", "directory"])
async def test_each_relevant_group_is_asked_about_also_through_nested_ones(
    make: Make, google: Google, api: str
) -> None:
    """S34, S35, S36."""
    assert await groups(make(api=api), *RELEVANT, "developers", "acme:platform") == ["platform@example.com"]
    asked = " ".join(google.paths() + [request.query.get("groupKey.id", "") for request in google.requests])
    assert "developers" not in asked


async def test_a_group_that_a_new_policy_names_appears(make: Make) -> None:
    """S36."""
    provider = make()
    assert await groups(provider, "security@example.com") == []
    assert await groups(provider, "security@example.com", "team-a@example.com") == ["team-a@example.com"]


async def test_the_service_account_signs_for_itself_and_names_whom_it_stands_for(
    make: Make, google: Google, clock: FakeClock
) -> None:
    await groups(make(subject="admin@example.com"), *RELEVANT)
    (claims,) = google.assertions
    now = int(clock.now().timestamp())
    assert claims == {
        "iss": google.account,
        "sub": "admin@example.com",
        "scope": PERSON_SCOPE,
        "aud": f"{google.url}/token",
        "iat": now,
        "exp": now + 600,
        "kid": "key-1",
    }


async def test_one_token_serves_many_logins_until_it_is_old(make: Make, google: Google, clock: FakeClock) -> None:
    """S4."""
    provider = make()
    await asyncio.gather(*(groups(provider, *RELEVANT) for _ in range(5)))
    assert len(google.assertions) == 1
    clock.advance(3599 - EARLY_SECONDS)
    await groups(provider, *RELEVANT)
    assert len(google.assertions) == 2


async def test_a_token_that_was_withdrawn_is_replaced_once(make: Make, google: Google) -> None:
    provider = make()
    await groups(provider, *RELEVANT)
    google.tokens.clear()
    assert await groups(provider, *RELEVANT) == ["platform@example.com"]
    assert len(google.assertions) == 2
    google.failures["/v1/"] = Response(401)
    with pytest.raises(ProviderError):
        await groups(provider, *RELEVANT)


async def test_names_are_looked_up_once_in_a_while(make: Make, google: Google, clock: FakeClock) -> None:
    provider = make()
    await groups(provider, *RELEVANT)
    await groups(provider, *RELEVANT)
    assert len(google.paths("/v1/groups:lookup")) == 2
    clock.advance(NAME_SECONDS)
    await groups(provider, *RELEVANT)
    assert len(google.paths("/v1/groups:lookup")) == 4


async def test_a_group_that_was_made_anew_is_found_again(make: Make, google: Google) -> None:
    provider = make()
    assert await groups(provider, "team-a@example.com") == ["team-a@example.com"]
    google.groups["team-a@example.com"] = Group("groups/09new", {"alice@example.com"})
    with pytest.raises(ProviderError):
        await groups(provider, "team-a@example.com")
    assert await groups(provider, "team-a@example.com") == ["team-a@example.com"]


async def test_an_apostrophe_in_an_address_does_not_end_the_question(make: Make, google: Google) -> None:
    """Nobody can ask about somebody else by the way they are called."""
    assert await groups(make(), *RELEVANT, user=UserInfo("o'neil@example.com")) == ["platform@example.com"]
    query = google.requests[-1].query["query"]
    assert query == "member_key_id == 'o\\'neil@example.com'"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "alice",
        "x' || member_key_id == 'alice@example.com",
        "alice@example.com' ",
        "a\\'@example.com",
        "alice@example.com\n",
        "alice@@example.com",
        "alice@example.com/../..",
        "\u212a@example.com",
    ],
)
async def test_what_is_no_address_is_nobody(make: Make, google: Google, name: str) -> None:
    assert await groups(make(), *RELEVANT, user=UserInfo(name)) == []
    assert google.requests == []


async def test_a_user_without_the_prefix_is_somebody_elses(make: Make, google: Google) -> None:
    provider = make(user_prefix="google:")
    assert await groups(provider, *RELEVANT) == []
    assert google.requests == []
    assert await groups(provider, *RELEVANT, user=UserInfo("google:alice@example.com")) == ["platform@example.com"]


async def test_only_groups_of_the_named_domains_are_asked_about(make: Make, google: Google) -> None:
    provider = make(domains=["Example.com"])
    assert await groups(provider, *RELEVANT, "all@other.example", "all@sub.example.com") == ["platform@example.com"]
    assert {request.query.get("groupKey.id", "@example.com").partition("@")[2] for request in google.requests} == {
        "example.com"
    }


async def test_a_group_that_google_says_is_not_there_has_no_members(make: Make, google: Google) -> None:
    google.tells_missing = True
    assert await groups(make(), "nothing@example.com") == []
    assert await groups(make(api="directory"), "nothing@example.com") == []


async def test_a_group_that_google_hides_shuts_the_door(make: Make, google: Google) -> None:
    """S37: hidden and absent look the same there, and a token may lack no group silently."""
    with pytest.raises(ProviderError) as raised:
        await groups(make(), *RELEVANT, "nothing@example.com")
    assert "must exist and be visible" in (raised.value.hint or "")


async def test_the_directory_knows_guests_of_other_domains(make: Make) -> None:
    guest = UserInfo("guest@partner.example")
    assert await groups(make(api="directory"), *RELEVANT, user=guest) == ["security@example.com"]


LIMIT = {"error": {"code": 403, "errors": [{"reason": "userRateLimitExceeded"}]}}


@pytest.mark.parametrize(
    ("path", "reply"),
    [
        ("/token", Response(500)),
        ("/token", Response(400, {"error": "invalid_grant"})),
        ("/token", Response(200, {"access_token": "x y", "token_type": "Bearer"})),
        ("/token", Response(200, {"access_token": "x", "token_type": "mac"})),
        ("/v1/groups:lookup", Response(500)),
        ("/v1/groups:lookup", HIDDEN),
        ("/v1/groups:lookup", Response(200, {"name": "groups/../../evil"})),
        ("/v1/groups:lookup", Response(200, {})),
        ("/v1/groups/", Response(503)),
        ("/v1/groups/", Response(200, [True])),
        ("/v1/groups/", Response(200, b"true\x00")),
        ("/v1/groups/", Response(302, headers={"Location": "/v1/groups/03security"})),
        ("/v1/groups/", Response(429, {}, {"Retry-After": "1"})),
        ("/v1/groups/", Response(403, LIMIT)),
        ("/v1/groups/", Response(401)),
    ],
)
async def test_an_answer_that_is_none_shuts_the_door(make: Make, google: Google, path: str, reply: Response) -> None:
    """S37."""
    google.failures[path] = reply
    with pytest.raises(ProviderError):
        await groups(make(), *RELEVANT)


@pytest.mark.parametrize("said", ["true", 1, "yes", None, {}])
async def test_only_a_plain_yes_is_one(make: Make, google: Google, said: object) -> None:
    google.failures["/v1/groups/"] = Response(200, {"hasMembership": said})
    assert await groups(make(), *RELEVANT) == []


async def test_a_slow_answer_shuts_the_door_in_time(make: Make, google: Google) -> None:
    google.failures["/v1/groups/"] = HOLD
    with pytest.raises(ProviderError):
        await groups(make(seconds=0.2), *RELEVANT)


async def test_a_limit_is_respected_until_it_ends(make: Make, google: Google, clock: FakeClock) -> None:
    provider = make()
    google.failures["/v1/"] = Response(429, {}, {"Retry-After": "30"})
    with pytest.raises(ProviderError):
        await groups(provider, *RELEVANT)
    google.failures.clear()
    asked = len(google.requests)
    clock.advance(29)
    with pytest.raises(ProviderError):
        await groups(provider, *RELEVANT)
    assert len(google.requests) == asked
    clock.advance(1)
    assert await groups(provider, *RELEVANT) == ["platform@example.com"]


async def test_many_groups_are_asked_about_a_few_at_a_time(make: Make, google: Google) -> None:
    names = [f"g{number}@example.com" for number in range(30)]
    google.groups |= {name: Group(f"groups/{name[:-12]}", {"alice@example.com"}) for name in names}
    assert await groups(make(), *names) == sorted(names)
    assert google.most_at_once <= 8


async def test_more_groups_than_can_be_asked_about_shut_the_door(make: Make) -> None:
    with pytest.raises(ProviderError):
        await groups(make(), *(f"g{number}@example.com" for number in range(MAX_CHECKS + 1)))


async def test_a_key_that_is_broken_later_shuts_the_door(make: Make, files: Path) -> None:
    provider = make()
    (files / "key.json").write_text("{}")
    with pytest.raises(ProviderError):
        await groups(provider, *RELEVANT)


# --- with the person's consent ---


async def begin(provider: GoogleGroups) -> Redirect:
    redirect = await provider.groups_of(ALICE, frozenset(RELEVANT), REQUEST)
    assert isinstance(redirect, Redirect)
    return redirect


async def test_the_person_consents_and_returns_as_in_the_design_document(
    make: Make, ca: trustme.CA, google: Google
) -> None:
    """S32, S33, S36."""
    provider = make(consent=True)
    redirect = await begin(provider)
    query = {name: value for name, (value,) in parse_qs(urlsplit(redirect.url).query).items()}
    assert (query["redirect_uri"], query["scope"], query["response_type"]) == (CALLBACK, PERSON_SCOPE, "code")
    back = await go(redirect, ca, path="/auth/groups/provider")
    found = await provider.groups_from_provider(ALICE, frozenset(RELEVANT), back)
    assert [membership.group for membership in found] == ["platform@example.com"]
    assert google.assertions == []


async def test_nobody_is_bothered_where_no_group_matters(make: Make) -> None:
    """S35."""
    assert await groups(make(consent=True), "developers") == []


async def test_a_return_needs_the_state_of_this_browser_and_a_code_that_is_good_once(
    make: Make, ca: trustme.CA
) -> None:
    """L1."""
    provider = make(consent=True)
    back = await go(await begin(provider), ca, path="/auth/groups/provider")
    for wrong in (
        replace(back, remembered=()),
        replace(back, remembered=(await begin(provider)).remember),
        replace(back, query=tuple(pair for pair in back.query if pair[0] != "state")),
    ):
        with pytest.raises(LoginRefused):
            await provider.groups_from_provider(ALICE, frozenset(RELEVANT), wrong)
    await provider.groups_from_provider(ALICE, frozenset(RELEVANT), back)
    with pytest.raises(LoginRefused):
        await provider.groups_from_provider(ALICE, frozenset(RELEVANT), back)


async def test_who_does_not_consent_is_refused(make: Make, ca: trustme.CA, google: Google) -> None:
    provider = make(consent=True)
    google.grants = "openid"
    unticked = await go(await begin(provider), ca, path="/auth/groups/provider")
    with pytest.raises(LoginRefused, match="groups"):
        await provider.groups_from_provider(ALICE, frozenset(RELEVANT), unticked)
    google.denies = True
    denied = await go(await begin(provider), ca, path="/auth/groups/provider")
    with pytest.raises(LoginRefused):
        await provider.groups_from_provider(ALICE, frozenset(RELEVANT), denied)


async def test_somebody_elses_consent_does_not_give_their_groups(make: Make, ca: trustme.CA, google: Google) -> None:
    """Asked about is the user who signed in, whoever pressed the button at Google."""
    google.person = "bob@example.com"
    provider = make(consent=True)
    back = await go(await begin(provider), ca, path="/auth/groups/provider")
    found = await provider.groups_from_provider(ALICE, frozenset(RELEVANT), back)
    assert [membership.group for membership in found] == ["platform@example.com"]


@pytest.mark.parametrize(
    ("path", "reply", "outcome"),
    [
        ("/token", Response(500), ProviderError),
        ("/token", Response(401, {"error": "invalid_client"}), ProviderError),
        ("/v1/", Response(401), LoginRefused),
        ("/v1/", HIDDEN, ProviderError),
    ],
)
async def test_a_consent_that_leads_nowhere_shuts_the_door(
    make: Make, ca: trustme.CA, google: Google, path: str, reply: Response, outcome: type[OstiaryError]
) -> None:
    """S37."""
    provider = make(consent=True)
    back = await go(await begin(provider), ca, path="/auth/groups/provider")
    google.failures[path] = reply
    with pytest.raises(outcome):
        await provider.groups_from_provider(ALICE, frozenset(RELEVANT), back)


# --- secrets and settings ---


async def test_no_secret_is_in_any_error_log_or_repr(
    make: Make, ca: trustme.CA, google: Google, files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """L6."""
    caplog.set_level(logging.DEBUG)
    told = []
    for path in ("/token", "/v1/groups:lookup", "/v1/groups/"):
        google.failures = {path: Response(500, {"error": google.client_secret})}
        provider = make()
        with pytest.raises(ProviderError) as raised:
            await groups(provider, *RELEVANT)
        told += [repr(provider), str(raised.value), "".join(traceback.format_exception(raised.value))]
    google.failures = {"/v1/": Response(401)}
    consent = make(consent=True)
    back = await go(await begin(consent), ca, path="/auth/groups/provider")
    with pytest.raises(LoginRefused) as refused:
        await consent.groups_from_provider(ALICE, frozenset(RELEVANT), back)
    told += [repr(consent), "".join(traceback.format_exception(refused.value))]
    assertions = {request.form["assertion"] for request in google.requests if "assertion" in request.form}
    private = json.loads((files / "key.json").read_text())["private_key"].splitlines()[1]
    hidden = {google.client_secret, private, *google.tokens, *assertions, dict(back.query)["code"]}
    everything = "\n".join([*told, caplog.text])
    assert len(hidden) >= 6
    assert not [secret for secret in hidden if secret in everything]


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("{keyFile: key.json, subject: a@b.example, domains: [b.example], userPrefix: 'g:', ca: ca.pem}", []),
        ("{keyFile: key.json, subject: a@b.example, api: directory, endpoint: 'https://google.example'}", []),
        ("{consent: true, clientID: a, clientSecretFile: secret}", []),
        ("{}", ["keyFile"]),
        ("{keyFile: none}", ["keyFile"]),
        ("{keyFile: secret}", ["keyFile"]),
        ("{keyFile: key.json, api: directory}", ["subject"]),
        ("{keyFile: key.json, api: feeds}", ["api"]),
        ("{keyFile: key.json, domains: []}", ["domains"]),
        ("{keyFile: key.json, domains: ['']}", ["domains"]),
        ("{keyFile: key.json, domains: ['*']}", ["domains"]),
        ("{keyFile: key.json, endpoint: 'http://google.example'}", ["endpoint"]),
        ("{keyFile: key.json, ca: none}", ["ca"]),
        ("{keyFile: key.json, clientID: a}", ["clientID"]),
        ("{consent: true}", ["clientID", "clientSecretFile", "clientSecretFile"]),
        ("{consent: true, clientID: a, clientSecretFile: secret, keyFile: key.json}", ["keyFile"]),
    ],
)
def test_mistakes_are_told_with_their_places(files: Path, clock: FakeClock, text: str, problems: list[str]) -> None:
    """T7."""
    reading = ConfigReader(parse(text))
    GoogleGroups.from_config(reading.root, Context("google", files, clock))
    assert [problem.place.path for problem in reading.problems] == problems
    assert reading.unknown_fields() == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "authorized_user"},
        {"client_email": None},
        {"private_key": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"},
        {"private_key": "not a key"},
        {"private_key": 5},
        {"token_uri": "http://oauth2.example/token"},
        {"token_uri": 5},
    ],
)
def test_a_key_that_cannot_be_used_is_refused_without_quoting_it(
    google: Google, files: Path, clock: FakeClock, changes: dict[str, Any]
) -> None:
    google.write_key(files / "key.json", **changes)
    reading = ConfigReader(parse("{keyFile: key.json}"))
    GoogleGroups.from_config(reading.root, Context("google", files, clock))
    assert [problem.place.path for problem in reading.problems] == ["keyFile"]
    assert "BEGIN" not in str(reading.problems)


def test_neither_and_both_ways_of_asking_are_refused(files: Path) -> None:
    with pytest.raises(ConfigurationError):
        GoogleGroups()
    with pytest.raises(ConfigurationError):
        GoogleGroups(key_file=files / "key.json", consent=Consent("a", files / "secret"))
