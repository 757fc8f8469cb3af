"""The relying party, against an issuer over TLS that does as it should, lies, changes its keys, or is not there."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme

from ostiary.core.yaml import ConfigReader, parse
from ostiary.errors import LoginRefused, OstiaryError, ProviderError
from ostiary.model import Secret, UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import Identified, LoginRequest, Redirect, RenewalCheck
from ostiary_gateway.providers.common.jwt_issuer import KEYS_SECONDS, METADATA_SECONDS, REFETCH_SECONDS
from ostiary_gateway.providers.common.refresh import Renewal
from ostiary_gateway.providers.oidc.claims import ClaimNames
from ostiary_gateway.providers.oidc.identity import OidcIdentity
from ostiary_gateway.testing import FakeClock
from tests.support.http_server import HOLD, Response
from tests.support.issuer import ABSENT, Issuer, ec_key, public, rsa_key
from tests.support.retrying import until_it_works
from tests.unit.ostiary_gateway.providers.oidc.conftest import Make

CALLBACK = "https://gateway.example.com/auth/provider"
VISIT = LoginRequest("GET", "/auth", callback_url=CALLBACK)
WELL_KNOWN = "/.well-known/openid-configuration"


async def sign_in(provider: OidcIdentity, issuer: Issuer) -> UserInfo:
    identified = await provider.handle_provider(issuer.visit(await provider.handle_client(VISIT)))
    assert identified.kept is None
    return identified.user


async def sign_in_and_keep(provider: OidcIdentity, issuer: Issuer) -> Identified:
    issuer.gives_refresh_tokens = True
    return await provider.handle_provider(issuer.visit(await provider.handle_client(VISIT)))


def kept_of(identified: Identified) -> Secret:
    assert identified.kept is not None
    return identified.kept


async def refusal(provider: OidcIdentity, request: LoginRequest) -> LoginRefused:
    with pytest.raises(LoginRefused) as refused:
        await provider.handle_provider(request)
    return refused.value


# --- the way there and back ---


async def test_a_person_signs_in_at_the_issuer(provider: OidcIdentity, issuer: Issuer) -> None:
    """S1, S29."""
    assert await sign_in(provider, issuer) == UserInfo("7f3a")


async def test_the_redirect_has_a_challenge_a_nonce_and_a_state_that_are_new_each_time(make: Make) -> None:
    """L2, S27, S59."""
    provider = make(scopes=("email", "openid"))
    first, second = [await provider.handle_client(VISIT) for _ in range(2)]
    query = {name: values[0] for name, values in parse_qs(urlsplit(first.url).query).items()}
    assert query["response_type"] == "code"
    assert query["scope"] == "openid email"
    assert query["redirect_uri"] == CALLBACK
    assert query["code_challenge_method"] == "S256"
    remembered = dict(first.remember)
    assert (query["state"], query["nonce"]) == (remembered["state"], remembered["nonce"])
    for name in ("state", "nonce", "verifier"):
        assert len(remembered[name]) >= 43, "256 bits"
        assert remembered[name] != dict(second.remember)[name]


async def test_no_secret_is_in_the_redirect_or_shown_with_it(provider: OidcIdentity, issuer: Issuer) -> None:
    """L6."""
    redirect = await provider.handle_client(VISIT)
    assert dict(redirect.remember)["verifier"] not in redirect.url
    assert "canary" not in redirect.url
    assert dict(redirect.remember)["verifier"] not in repr(redirect)


async def test_every_visit_is_redirected(provider: OidcIdentity) -> None:
    """S30."""
    for visit in (VISIT, replace(VISIT, method="POST", query=(("code", "x"), ("state", "y")))):
        assert isinstance(await provider.handle_client(visit), Redirect)


@pytest.mark.parametrize("methods", [ABSENT, ["client_secret_post"], ["client_secret_basic", "client_secret_post"]])
async def test_the_client_proves_itself_in_the_way_that_the_issuer_takes(
    make: Make, issuer: Issuer, methods: Any
) -> None:
    issuer.metadata["token_endpoint_auth_methods_supported"] = methods
    await sign_in(make(), issuer)
    request = next(request for request in issuer.requests if request.path == "/token")
    assert ("authorization" in request.headers) != ("client_secret" in request.form)
    assert ("client_secret" in request.form) == (methods == ["client_secret_post"])


async def test_a_public_client_has_no_secret_and_still_a_verifier(make: Make, issuer: Issuer) -> None:
    """L2."""
    await sign_in(make(client_secret_file=None), issuer)
    request = next(request for request in issuer.requests if request.path == "/token")
    assert request.form["code_verifier"]
    assert "client_secret" not in request.form
    assert "authorization" not in request.headers


async def test_a_secret_that_is_replaced_in_place_is_used(make: Make, issuer: Issuer, tmp_path: Path) -> None:
    provider = make()
    secret = (tmp_path / "secret").read_text()
    (tmp_path / "secret").write_text("another\n")
    with pytest.raises(ProviderError, match="the issuer is unavailable") as outage:
        await sign_in(provider, issuer)
    assert "invalid_client" in str(outage.value.cause)
    (tmp_path / "secret").write_text(secret)
    assert await sign_in(provider, issuer)


# --- state, code ---


def _without(request: LoginRequest, name: str) -> LoginRequest:
    return replace(request, query=tuple(pair for pair in request.query if pair[0] != name))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda back: _without(back, "state"), id="missing"),
        pytest.param(lambda back: replace(back, remembered=()), id="used before, too old, or of another browser"),
        pytest.param(lambda back: replace(_without(back, "state"), remembered=()), id="neither"),
        pytest.param(lambda back: _with(back, "state", "foreign"), id="foreign"),
        pytest.param(lambda back: _with(back, "state", ""), id="empty"),
        pytest.param(lambda back: _with(back, "state", "größe\ud800"), id="no text"),
        pytest.param(lambda back: replace(back, query=(*back.query, ("state", "other"))), id="twice"),
        pytest.param(lambda back: replace(back, method="POST", form=back.query, query=()), id="in a form"),
        pytest.param(lambda back: _without(back, "code"), id="without a code"),
        pytest.param(lambda back: replace(back, query=(*back.query, ("code", "other"))), id="with two codes"),
    ],
)
async def test_a_return_that_is_not_of_this_login_is_refused_and_its_code_not_used(
    provider: OidcIdentity, issuer: Issuer, change: Callable[[LoginRequest], LoginRequest]
) -> None:
    """L1, S61."""
    back = issuer.visit(await provider.handle_client(VISIT))
    await refusal(provider, change(back))
    assert issuer.paths("/token") == []


def _with(request: LoginRequest, name: str, value: str) -> LoginRequest:
    return replace(_without(request, name), query=(*_without(request, name).query, (name, value)))


async def test_a_code_is_good_once(provider: OidcIdentity, issuer: Issuer) -> None:
    """L1. The gateway remembers a login for one return; here it is made to forget that."""
    back = issuer.visit(await provider.handle_client(VISIT))
    await provider.handle_provider(back)
    assert "used" in str((await refusal(provider, back)).cause)


async def test_the_code_of_another_login_does_not_fit(provider: OidcIdentity, issuer: Issuer) -> None:
    """L1, L2. A code that somebody smuggles into a person's browser fails at the verifier."""
    theirs = issuer.visit(await provider.handle_client(VISIT))
    ours = issuer.visit(await provider.handle_client(VISIT))
    await refusal(provider, _with(ours, "code", dict(theirs.query)["code"]))


# --- what the issuer says in the browser ---


async def test_a_person_who_says_no_is_refused(provider: OidcIdentity, issuer: Issuer) -> None:
    issuer.denies = True
    refused = await refusal(provider, issuer.visit(await provider.handle_client(VISIT)))
    assert "denied" in str(refused)


async def test_an_error_that_comes_through_the_browser_is_a_refusal_and_no_outage(
    provider: OidcIdentity, issuer: Issuer
) -> None:
    back = issuer.visit(await provider.handle_client(VISIT))
    for error in ("server_error", "temporarily_unavailable", "invalid_scope", "\x1b[31m"):
        with pytest.raises(LoginRefused) as refused:
            await provider.handle_provider(_with(_without(back, "code"), "error", error))
        assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize(("announced", "said"), [(True, None), (True, "https://evil.example"), (False, "https://evil")])
async def test_an_answer_of_another_issuer_is_refused(
    provider: OidcIdentity, issuer: Issuer, announced: bool, said: str | None
) -> None:
    """L7, and RFC 9207."""
    issuer.metadata["authorization_response_iss_parameter_supported"] = announced
    if said is not None:
        issuer.returns["iss"] = said
    refused = await refusal(provider, issuer.visit(await provider.handle_client(VISIT)))
    assert "iss" in str(refused.cause)
    assert issuer.paths("/token") == []


@pytest.mark.parametrize("announced", [True, False])
async def test_an_answer_that_names_its_issuer_is_taken(
    provider: OidcIdentity, issuer: Issuer, announced: bool
) -> None:
    issuer.metadata["authorization_response_iss_parameter_supported"] = announced
    issuer.returns["iss"] = issuer.url
    assert await sign_in(provider, issuer)


async def test_two_issuers_at_once_do_not_mix(make: Make, issuer: Issuer, ca: trustme.CA, clock: FakeClock) -> None:
    """S31, L1. Each person's code goes to the issuer that gave it, and to no other."""
    with Issuer(ca, clock).running() as other:
        other.person = {"sub": "bob"}
        one, two = make(), make(issuer=other.url)
        back_one, back_two = [who.visit(await each.handle_client(VISIT)) for who, each in ((issuer, one), (other, two))]
        assert (await one.handle_provider(back_one)).user == UserInfo("7f3a")
        assert (await two.handle_provider(back_two)).user == UserInfo("bob")
        mixed = replace(issuer.visit(await one.handle_client(VISIT)), remembered=back_two.remembered)
        await refusal(two, mixed)
        assert len(other.paths("/token")) == 1


# --- lies in the ID token ---


@pytest.mark.parametrize(
    ("claims", "header"),
    [
        pytest.param({"iss": "https://evil.example"}, {}, id="iss"),
        pytest.param({"aud": "somebody-else"}, {}, id="aud"),
        pytest.param({"azp": "somebody-else"}, {}, id="azp"),
        pytest.param({"nonce": "another"}, {}, id="nonce"),
        pytest.param({"nonce": ABSENT}, {}, id="no nonce"),
        pytest.param({"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"}, {}, id="at_hash"),
        pytest.param({"exp": 1}, {}, id="exp"),
        pytest.param({}, {"alg": "none"}, id="unsigned"),
        pytest.param({}, {"alg": "HS256"}, id="signed with the public key"),
    ],
)
async def test_a_lying_issuer_is_not_believed(
    provider: OidcIdentity, issuer: Issuer, claims: dict[str, Any], header: dict[str, Any]
) -> None:
    """L7, L2. Every lie is told in test_oidc_tokens.py; these see that they are listened for."""
    issuer.claims, issuer.header = claims, header
    refused = await refusal(provider, issuer.visit(await provider.handle_client(VISIT)))
    assert "the response of the identity system is invalid" in refused.summary


async def test_clocks_may_differ_a_little(provider: OidcIdentity, issuer: Issuer) -> None:
    now = int(issuer.clock.now().timestamp())
    issuer.claims = {"exp": now - 29, "iat": now + 30, "nbf": now + 30}
    assert await sign_in(provider, issuer)


async def test_a_further_audience_is_allowed_if_it_is_named(make: Make, issuer: Issuer) -> None:
    """L7."""
    issuer.claims = {"aud": [issuer.client_id, "reports"], "azp": issuer.client_id}
    assert await sign_in(make(audiences=("reports",)), issuer)
    issuer.claims = {"aud": [issuer.client_id, "reports"]}
    await refusal(make(audiences=("reports",)), issuer.visit(await make().handle_client(VISIT)))
    issuer.claims = {"aud": "reports"}
    provider = make(audiences=("reports",))
    await refusal(provider, issuer.visit(await provider.handle_client(VISIT)))


async def test_an_algorithm_that_is_not_allowed_is_refused(make: Make, issuer: Issuer) -> None:
    """L7."""
    provider = make(algorithms=("RS256",))
    await refusal(provider, issuer.visit(await provider.handle_client(VISIT)))
    issuer.rotate(rsa_key())
    provider = make(algorithms=("RS256",))
    assert await sign_in(provider, issuer)
    issuer.header = {"alg": "PS256"}
    await refusal(provider, issuer.visit(await provider.handle_client(VISIT)))


@pytest.mark.parametrize("id_token", [ABSENT, "", "e30.e30", "a.b.c", "e30.e30.e30", "." * 100_000, 7, None])
async def test_what_is_no_token_is_not_believed(provider: OidcIdentity, issuer: Issuer, id_token: Any) -> None:
    issuer.tokens["id_token"] = id_token
    back = issuer.visit(await provider.handle_client(VISIT))
    with pytest.raises((LoginRefused, ProviderError)):
        await provider.handle_provider(back)


# --- keys that change ---


async def test_an_issuer_that_changes_its_keys_is_asked_for_them_once(provider: OidcIdentity, issuer: Issuer) -> None:
    await sign_in(provider, issuer)
    issuer.rotate(ec_key("ec-2"))
    assert await sign_in(provider, issuer)
    await sign_in(provider, issuer)
    assert len(issuer.paths("/keys")) == 2


@pytest.mark.parametrize("kid", ["ec-1", ABSENT])
async def test_a_new_key_under_the_old_name_is_found_too(provider: OidcIdentity, issuer: Issuer, kid: Any) -> None:
    await sign_in(provider, issuer)
    issuer.rotate(ec_key("ec-1"))
    issuer.header["kid"] = kid
    assert await sign_in(provider, issuer)


async def test_many_logins_while_the_keys_change_ask_once(provider: OidcIdentity, issuer: Issuer) -> None:
    await sign_in(provider, issuer)
    issuer.rotate(ec_key("ec-2"))
    backs = [issuer.visit(await provider.handle_client(VISIT)) for _ in range(10)]
    identified = await asyncio.gather(*(provider.handle_provider(back) for back in backs))
    assert [each.user for each in identified] == [UserInfo("7f3a")] * 10
    assert len(issuer.paths("/keys")) == 2


async def test_unknown_keys_are_asked_for_no_more_often_than_the_bound(
    provider: OidcIdentity, issuer: Issuer, clock: FakeClock
) -> None:
    await sign_in(provider, issuer)
    issuer.header["kid"] = "unknown"
    for _ in range(3):
        await refusal(provider, issuer.visit(await provider.handle_client(VISIT)))
    assert len(issuer.paths("/keys")) == 2
    clock.advance(REFETCH_SECONDS)
    await refusal(provider, issuer.visit(await provider.handle_client(VISIT)))
    assert len(issuer.paths("/keys")) == 3


async def test_keys_at_hand_serve_while_newer_ones_cannot_be_had(provider: OidcIdentity, issuer: Issuer) -> None:
    await sign_in(provider, issuer)
    issuer.failures["/keys"] = Response(500)
    issuer.header["kid"] = "unknown"
    back = issuer.visit(await provider.handle_client(VISIT))
    with pytest.raises(ProviderError):
        await provider.handle_provider(back)
    issuer.header.clear()
    assert await sign_in(provider, issuer)


async def test_a_key_that_the_issuer_withdraws_is_forgotten(
    provider: OidcIdentity, issuer: Issuer, clock: FakeClock
) -> None:
    await sign_in(provider, issuer)
    issuer.published = [public(ec_key("ec-2"))]
    assert await sign_in(provider, issuer)
    clock.advance(KEYS_SECONDS)
    await refusal(provider, issuer.visit(await provider.handle_client(VISIT)))


# --- discovery ---


async def test_discovery_is_asked_once_an_hour(provider: OidcIdentity, issuer: Issuer, clock: FakeClock) -> None:
    await asyncio.gather(*(provider.handle_client(VISIT) for _ in range(10)))
    assert len(issuer.paths(WELL_KNOWN)) == 1
    clock.advance(METADATA_SECONDS)
    issuer.metadata["token_endpoint"] = f"{issuer.url}/elsewhere"
    back = issuer.visit(await provider.handle_client(VISIT))
    with pytest.raises(ProviderError):
        await provider.handle_provider(back)
    assert issuer.paths("/elsewhere") == ["/elsewhere"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example"},
        {"issuer": ABSENT},
        {"authorization_endpoint": ABSENT},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"token_endpoint": "http://127.0.0.1:1/token"},
        {"token_endpoint": "https://user:password@127.0.0.1/token"},
        {"jwks_uri": "http://sso.example.com/keys"},
        {"jwks_uri": 7},
        {"jwks_uri": "https://[::1"},
        {"userinfo_endpoint": "ftp://sso.example.com"},
    ],
)
async def test_a_description_that_cannot_be_trusted_is_an_outage(
    provider: OidcIdentity, issuer: Issuer, metadata: dict[str, Any]
) -> None:
    issuer.metadata = metadata
    with pytest.raises(ProviderError):
        await provider.handle_client(VISIT)


# --- outages ---


async def test_an_issuer_that_is_down_is_an_outage(make: Make) -> None:
    with pytest.raises(ProviderError, match="is unavailable"):
        await make(issuer="https://127.0.0.1:1").handle_client(VISIT)


async def test_an_issuer_whose_certificate_is_not_trusted_is_an_outage(issuer: Issuer, clock: FakeClock) -> None:
    provider = OidcIdentity(issuer=issuer.url, client_id="x", clock=clock)
    with pytest.raises(ProviderError) as outage:
        await provider.handle_client(VISIT)
    assert "not trusted" in str(outage.value.cause)
    await provider.close()


@pytest.mark.parametrize("path", [WELL_KNOWN, "/token", "/keys", "/userinfo"])
@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(HOLD, id="slow"),
        pytest.param(Response(500, {"error": "server_error"}), id="500"),
        pytest.param(Response(302, headers={"Location": "https://evil.example/"}), id="redirects"),
        pytest.param(Response(body=b"<html>"), id="a page"),
        pytest.param(Response(body=[]), id="a list"),
        pytest.param(Response(body=b"[" * 100_000), id="deep"),
        pytest.param(Response(body=b" " * 2_000_000), id="huge"),
    ],
)
async def test_an_issuer_that_is_slow_or_broken_is_an_outage_and_heals(
    make: Make, issuer: Issuer, path: str, reply: Response
) -> None:
    provider = make(seconds=0.3 if reply is HOLD else 60.0, user_info=True)
    issuer.failures[path] = reply
    with pytest.raises(ProviderError):
        await sign_in(provider, issuer)
    issuer.failures.clear()
    assert await until_it_works(lambda: sign_in(provider, issuer))


# --- who it is ---


async def test_groups_of_a_claim_are_in_the_user(make: Make, issuer: Issuer) -> None:
    issuer.person["groups"] = ["developers", "a,b"]
    provider = make(claims=ClaimNames(username="email", uid="sub", groups="groups", extra=(("example.com/s", "sub"),)))
    assert await sign_in(provider, issuer) == UserInfo(
        "alice@example.com", "7f3a", ("developers", "a,b"), (("example.com/s", ("7f3a",)),)
    )


async def test_user_info_is_the_only_source_of_claims_then(make: Make, issuer: Issuer) -> None:
    """L7. An address of one source must not be verified by the other."""
    issuer.claims = {"email": "alice@example.com", "email_verified": True}
    issuer.user_info = {"email": "boss@example.com", "email_verified": ABSENT}
    provider = make(user_info=True, claims=ClaimNames(username="email"))
    await refusal(provider, issuer.visit(await provider.handle_client(VISIT)))
    issuer.user_info = {"email": "new@example.com"}
    assert (await sign_in(provider, issuer)).username == "new@example.com"


@pytest.mark.parametrize("sub", ["another", ABSENT, None])
async def test_user_info_about_another_person_is_refused(make: Make, issuer: Issuer, sub: object) -> None:
    issuer.user_info = {"sub": sub}
    provider = make(user_info=True)
    await refusal(provider, issuer.visit(await provider.handle_client(VISIT)))


# --- secrets, renewal, settings ---


async def test_no_secret_is_told(make: Make, issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    """L6. Neither the client secret nor code, tokens or verifier, whatever goes wrong."""
    caplog.set_level(logging.DEBUG)
    told: list[str] = []
    secrets = {issuer.client_secret, "access-canary"}
    for failure in (
        Response(401, {"error": "invalid_client"}),
        Response(500),
        Response(400, {"error": "invalid_grant"}),
        None,
    ):
        provider = make()
        back = issuer.visit(await provider.handle_client(VISIT))
        secrets |= {dict(back.query)["code"], dict(back.remembered)["verifier"], issuer.id_token().split(".")[1]}
        issuer.failures = {} if failure is None else {"/token": failure}
        issuer.claims = {"aud": "somebody-else"}
        with pytest.raises(OstiaryError) as raised:
            await provider.handle_provider(back)
        told += [repr(provider), str(raised.value), repr(raised.value), *traceback.format_exception(raised.value)]
    shown = "".join(told) + "".join(
        record.getMessage() for record in caplog.records if record.name.startswith(("ostiary", "httpx2"))
    )
    # What the browser itself asked for is the person's own; the way back is in no log of ours.
    assert not [secret for secret in secrets if secret in shown]


async def test_sessions_are_renewed_until_they_end_unless_it_says_otherwise(make: Make) -> None:
    """T3. Without the person there is nobody to ask, so the choice is the operator's."""
    assert not hasattr(make(), "revalidate")
    with pytest.raises(LoginRefused, match="sign in again"):
        await make(renewal=Renewal.SIGN_IN).revalidate(UserInfo("7f3a"))


def configured(text: str, folder: Path) -> tuple[OidcIdentity, list[str]]:
    reading = ConfigReader(parse(text))
    provider = OidcIdentity.from_config(reading.root, Context(name="acme", directory=folder))
    return provider, [f"{problem.place.path}: {problem.message}" for problem in reading.problems]


async def test_it_is_configured_in_a_few_lines(issuer: Issuer, ca_file: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(issuer.client_secret)
    provider, problems = configured(
        f"""
        issuer: {issuer.url}
        clientID: {issuer.client_id}
        clientSecretFile: secret
        clientAuthentication: client_secret_post
        scopes: [email, groups]
        claims: {{username: email, uid: sub, groups: groups, extra: {{example.com/team: team}}}}
        audiences: [reports]
        algorithms: [ES256]
        userInfo: true
        clockSkew: 1m
        renewal: signIn
        ca: ca.pem
        """,
        tmp_path,
    )
    assert problems == []
    assert hasattr(provider, "revalidate")
    assert isinstance(await provider.handle_client(VISIT), Redirect)
    await provider.close()


def test_a_wrong_setting_is_told_with_its_place(
    subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cases = [
        ("clientID: x", "issuer: it is missing"),
        ("issuer: https://sso.example.com", "clientID: it is missing"),
        ("{issuer: http://sso.example.com, clientID: x}", "issuer: it is not a https URL"),
        ("{issuer: https://sso.example.com?a=b, clientID: x}", "issuer: it is not a https URL"),
        ("{issuer: https://u:p@sso.example.com, clientID: x}", "issuer: it is not a https URL"),
        ("{issuer: https://a, clientID: x, clientSecretFile: no-such-file}", "clientSecretFile: "),
        ("{issuer: https://a, clientID: x, clientSecretFile: empty}", "clientSecretFile: "),
        ("{issuer: https://a, clientID: x, ca: empty}", "ca: "),
        ("{issuer: https://a, clientID: x, clientAuthentication: none}", "clientAuthentication: "),
        ("{issuer: https://a, clientID: x, algorithms: [none]}", "algorithms: "),
        ("{issuer: https://a, clientID: x, algorithms: [HS256]}", "algorithms: "),
        ("{issuer: https://a, clientID: x, audiences: ['']}", "audiences: "),
        ("{issuer: https://a, clientID: x, scopes: ['a b']}", "scopes: "),
        ("{issuer: https://a, clientID: x, clockSkew: 1h}", "clockSkew: "),
        ("{issuer: https://a, clientID: x, renewal: never}", "renewal: "),
        ("{issuer: https://a, clientID: x, claims: {username: ''}}", "claims.username: "),
        ("{issuer: https://a, clientID: x, claims: {extra: {Team: team}}}", "claims.extra.Team: "),
        ("{issuer: https://a, clientID: x, claims: {extra: {a.k8s.io/team: team}}}", 'claims.extra["a.k8s.io/team"]: '),
    ]
    for text, problem in cases:
        with subtests.test(text=text, problem=problem):
            tmp_path = tmp_path_factory.mktemp("case")
            (tmp_path / "empty").touch()
            _, problems = configured(text, tmp_path)
            assert [told for told in problems if told.startswith(problem)], problems
            assert len(problems) == 1


def test_the_page_about_it_says_what_works(tmp_path: Path) -> None:
    page = (Path(__file__).parents[5] / "docs/how-to/sign-in-with-oidc.md").read_text()
    reading = ConfigReader(parse(page.split("```yaml\n")[1].split("```")[0]))
    (tmp_path / "oidc-secret").write_text("secret")
    (entry,) = reading.root.sections("identity")
    entry.ignore("name", "type")
    OidcIdentity.from_config(entry, Context(name="acme", directory=tmp_path))
    assert entry.unread() == []
    assert reading.problems == []
    settings = set(entry._asked) - {"name", "type"}
    assert {name for name in settings if f"`{name}`" not in page and f"`{name}." not in page} == set()


# --- asked again, with a refresh token ---

GROUPS = ClaimNames(username="email", groups="groups")


async def test_at_renewal_the_issuer_is_asked_and_tells_name_and_groups_as_of_now(make: Make, issuer: Issuer) -> None:
    issuer.person["groups"] = ["developers", "operators"]
    provider = make(claims=GROUPS)
    kept = kept_of(await sign_in_and_keep(provider, issuer))
    issuer.person["groups"] = ["developers"]
    for _ in range(3):
        # A rotating issuer takes each refresh token once, so the newest one must be kept each time.
        again = await provider.ask_again(UserInfo("alice@example.com"), kept)
        assert again.user == UserInfo("alice@example.com", groups=("developers",))
        kept = kept_of(again)


async def test_somebody_whose_account_has_ended_is_refused_at_renewal(make: Make, issuer: Issuer) -> None:
    provider = make()
    kept = kept_of(await sign_in_and_keep(provider, issuer))
    issuer.refresh_tokens.clear()
    with pytest.raises(LoginRefused, match="sign in again") as refused:
        await provider.ask_again(UserInfo("7f3a"), kept)
    assert "refresh-canary" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    ("description", "error"),
    [
        ("Refresh token is invalid or has already been claimed by another client.", LoginRefused),
        ("Refresh token expired.", LoginRefused),
        ("No refresh token is found in request.", ProviderError),
        ("", ProviderError),
    ],
)
async def test_dex_calls_the_request_invalid_where_it_means_the_refresh_token(
    make: Make, issuer: Issuer, description: str, error: type[OstiaryError]
) -> None:
    provider = make()
    kept = kept_of(await sign_in_and_keep(provider, issuer))
    issuer.failures["/token"] = Response(400, {"error": "invalid_request", "error_description": description})
    with pytest.raises(error):
        await provider.ask_again(UserInfo("7f3a"), kept)


@pytest.mark.parametrize("status", [401, 500, 503])
async def test_an_issuer_that_cannot_be_asked_at_renewal_is_an_outage_and_no_refusal(
    make: Make, issuer: Issuer, status: int
) -> None:
    provider = make()
    kept = kept_of(await sign_in_and_keep(provider, issuer))
    issuer.failures["/token"] = Response(status, {"error": "temporarily_unavailable"})
    with pytest.raises(ProviderError):
        await provider.ask_again(UserInfo("7f3a"), kept)


@pytest.mark.parametrize("user_info", [False, True])
async def test_without_an_id_token_at_the_refresh_the_issuers_user_info_tells(
    make: Make, issuer: Issuer, user_info: bool
) -> None:
    provider = make(claims=GROUPS, user_info=user_info)
    kept = kept_of(await sign_in_and_keep(provider, issuer))
    issuer.tokens = {"id_token": ABSENT, "refresh_token": ABSENT}
    issuer.user_info = {"groups": ["new"]}
    again = await provider.ask_again(UserInfo("alice@example.com"), kept)
    assert again.user.groups == ("new",)
    # The old one stays good where no newer one comes.
    assert kept_of(again).reveal() == kept.reveal()


async def test_an_answer_about_another_person_is_not_believed_at_renewal(make: Make, issuer: Issuer) -> None:
    provider = make()
    kept = kept_of(await sign_in_and_keep(provider, issuer))
    issuer.person["sub"] = "another"
    with pytest.raises(LoginRefused, match="the response of the identity system is invalid"):
        await provider.ask_again(UserInfo("7f3a"), kept)
    issuer.tokens = {"id_token": ABSENT}
    kept = Secret(kept.reveal().replace("-1", "-2"))
    with pytest.raises(LoginRefused, match="the response of the identity system is invalid"):
        await provider.ask_again(UserInfo("7f3a"), kept)


async def test_what_was_kept_in_another_form_ends_the_session(make: Make) -> None:
    for text in ("", "{}", "[1]", "x"):
        with pytest.raises(LoginRefused, match="sign in again"):
            await make().ask_again(UserInfo("a"), Secret(text))


async def test_nothing_is_kept_where_sessions_are_not_renewed(make: Make, issuer: Issuer) -> None:
    issuer.gives_refresh_tokens = True
    assert await sign_in(make(renewal=Renewal.SIGN_IN), issuer) == UserInfo("7f3a")


def test_who_is_asked_at_renewals_is_said_beforehand(make: Make) -> None:
    told = [make(renewal=renewal).renewal_check for renewal in Renewal]
    assert told == [RenewalCheck.WITH_KEPT, RenewalCheck.ACCEPTED, RenewalCheck.SIGN_IN]


async def test_the_issuer_is_told_what_to_ask_the_person(make: Make) -> None:
    redirect = await make(prompt="consent").handle_client(VISIT)
    assert parse_qs(urlsplit(redirect.url).query)["prompt"] == ["consent"]


# --- what the issuer itself says went wrong ---


async def test_the_error_with_which_a_browser_returns_is_told_to_the_person_and_the_log(
    provider: OidcIdentity, issuer: Issuer
) -> None:
    issuer.returns = {"error": "invalid_scope", "error_description": "no scope 'groups'"}
    with pytest.raises(LoginRefused) as refused:
        await sign_in(provider, issuer)
    assert refused.value.summary == """the identity system did not sign you in: invalid_scope ("no scope 'groups'")"""


async def test_why_the_issuer_denied_access_is_told(provider: OidcIdentity, issuer: Issuer) -> None:
    issuer.returns = {"error": "access_denied", "error_description": "you are not assigned to this application"}
    with pytest.raises(LoginRefused) as refused:
        await sign_in(provider, issuer)
    assert "you are not assigned to this application" in refused.value.summary
    issuer.returns = {"error": "access_denied"}
    with pytest.raises(LoginRefused, match="you did not allow it to share your identity"):
        await sign_in(provider, issuer)


async def test_the_error_of_the_token_endpoint_is_told_without_what_was_sent_there(
    provider: OidcIdentity, issuer: Issuer
) -> None:
    description = f"the secret {issuer.client_secret} has expired"
    issuer.failures["/token"] = Response(401, {"error": "invalid_client", "error_description": description})
    with pytest.raises(ProviderError) as outage:
        await sign_in(provider, issuer)
    told = 'invalid_client ("the secret *** has expired")'
    assert str(outage.value.cause).endswith(f"it answered a code with status 401 and {told}")
    assert outage.value.reported == told
    issuer.failures["/token"] = Response(400, {"error": "invalid_grant", "error_description": "redirect_uri mismatch"})
    with pytest.raises(LoginRefused) as refused:
        await sign_in(provider, issuer)
    assert 'invalid_grant ("redirect_uri mismatch")' in str(refused.value.cause)
