"""What an issuer says about logouts, and what only looks like it: forged, replayed, expired, for somebody else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import Secret
from ostiary_gateway.interfaces.identity import LoginRequest, Logout, Redirect, SignOut
from ostiary_gateway.providers.common.outbound import Outbound
from ostiary_gateway.providers.oidc.identity import OidcIdentity
from ostiary_gateway.providers.oidc.logout import EVENT, LONGEST_LIFE, MAX_ID, USUAL_LIFE
from ostiary_gateway.testing import FakeClock
from tests.support.issuer import ABSENT, Issuer, ec_key, token

HERE = "https://gateway.example.com/auth/acme/logout"
VISIT = LoginRequest("GET", "/auth", callback_url="https://gateway.example.com/auth/provider")
SKEW = timedelta(minutes=1)

Make = Callable[..., OidcIdentity]


@pytest.fixture
def issuer(ca: trustme.CA, clock: FakeClock) -> Iterator[Issuer]:
    with Issuer(ca, clock).running() as server:
        yield server


@pytest.fixture
async def make(issuer: Issuer, ca: trustme.CA, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Make]:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    made: list[OidcIdentity] = []

    def make(**settings: Any) -> OidcIdentity:
        given: dict[str, Any] = {
            "issuer": issuer.url,
            "client_id": issuer.client_id,
            "outbound": Outbound("the issuer", ca=tmp_path / "ca.pem"),
            "clock_skew": SKEW,
            "clock": clock,
        }
        made.append(OidcIdentity(**{**given, **settings}))
        return made[-1]

    yield make
    for provider in made:
        await provider.close()


@pytest.fixture
def provider(make: Make) -> OidcIdentity:
    return make()


def claims_of(issuer: Issuer, **changes: Any) -> dict[str, Any]:
    now = int(issuer.clock.now().timestamp())
    true = {"iss": issuer.url, "aud": issuer.client_id, "iat": now, "exp": now + 120, "jti": "id-1"}
    true |= {"sub": "7f3a", "sid": "sid-1", "events": {EVENT: {}}}
    return {name: value for name, value in {**true, **changes}.items() if value is not ABSENT}


def logout_token(issuer: Issuer, *, header: dict[str, Any] | None = None, **changes: Any) -> str:
    return token(claims_of(issuer, **changes), issuer.key, **(header or {}))


def posted(*tokens: str) -> LoginRequest:
    return LoginRequest("POST", "/auth/acme/logout", form=tuple(("logout_token", each) for each in tokens))


def framed(**query: str) -> LoginRequest:
    return LoginRequest("GET", "/auth/acme/logout", query=tuple(query.items()), callback_url=HERE)


async def cause_of(provider: OidcIdentity, request: LoginRequest) -> str:
    with pytest.raises(LoginRefused) as refused:
        await provider.handle_logout(request)
    assert refused.value.summary == "the logout is not accepted", "the sender learns nothing"
    return refused.value.cause or ""


# --- back channel ---


async def test_a_logout_token_names_the_session_and_the_person_that_the_sign_in_named(
    provider: OidcIdentity, issuer: Issuer, clock: FakeClock
) -> None:
    issuer.claims["sid"] = "sid-1"
    identified = await provider.handle_provider(issuer.visit(await provider.handle_client(VISIT)))
    logout = await provider.handle_logout(posted(logout_token(issuer)))
    assert (logout.session_id, logout.subject) == (identified.session_id, identified.subject) == ("sid-1", "7f3a")
    assert logout.verified
    assert (logout.token_id, logout.once_until) == ("id-1", clock.now() + timedelta(seconds=120) + 2 * SKEW)
    assert (logout.answer, logout.is_return) == (None, False)


@pytest.mark.parametrize("claims", [{"sid": ABSENT}, {"sub": ABSENT}])
async def test_one_of_the_two_is_enough(provider: OidcIdentity, issuer: Issuer, claims: dict[str, Any]) -> None:
    logout = await provider.handle_logout(posted(logout_token(issuer, **claims)))
    assert (logout.session_id, logout.subject) in (("sid-1", ""), ("", "7f3a"))


@pytest.mark.parametrize("kind", ["logout+jwt", "LOGOUT+JWT", "JWT"])
async def test_it_may_say_what_kind_of_token_it_is(provider: OidcIdentity, issuer: Issuer, kind: str) -> None:
    assert (await provider.handle_logout(posted(logout_token(issuer, header={"typ": kind})))).session_id == "sid-1"


async def test_one_without_an_expiry_is_good_for_two_minutes(
    provider: OidcIdentity, issuer: Issuer, clock: FakeClock
) -> None:
    text = logout_token(issuer, exp=ABSENT)
    logout = await provider.handle_logout(posted(text))
    assert logout.once_until == clock.now() + USUAL_LIFE + 2 * SKEW
    clock.advance((USUAL_LIFE + SKEW).total_seconds())
    assert "expired" in await cause_of(provider, posted(text))


async def test_its_id_is_remembered_for_longer_than_it_is_good(
    provider: OidcIdentity, issuer: Issuer, clock: FakeClock
) -> None:
    """Whatever expiry it has: the gateway remembers ids for a bounded time, and then the token itself is too old."""
    text = logout_token(issuer, exp=int(clock.now().timestamp()) + 10**6)
    logout = await provider.handle_logout(posted(text))
    assert logout.once_until is not None
    assert logout.once_until <= clock.now() + LONGEST_LIFE + 2 * SKEW
    clock.advance((logout.once_until - clock.now()).total_seconds())
    assert "expired" in await cause_of(provider, posted(text))


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"iss": "https://other.example.com"}, "another issuer"),
        ({"iss": ABSENT}, "another issuer"),
        ({"aud": "another-client"}, "another audience"),
        ({"aud": ABSENT}, "no audience"),
        ({"aud": []}, "no audience"),
        ({"aud": ["gate:way", "another-client"]}, "another audience"),
        ({"iat": ABSENT}, "no issue time"),
        ({"iat": "now"}, "not a time"),
        ({"iat": True}, "not a time"),
        ({"iat": 10**12}, "out of range"),
        ({"exp": 1}, "expired"),
        ({"exp": "never"}, "not a time"),
        ({"nbf": 10**11}, "not valid yet"),
        ({"jti": ABSENT}, "no id"),
        ({"jti": ""}, "no id"),
        ({"jti": 7}, "no id"),
        ({"jti": "x" * (MAX_ID + 1)}, "no id"),
        ({"events": ABSENT}, "no event"),
        ({"events": {}}, "no event"),
        ({"events": [EVENT]}, "no event"),
        ({"events": {EVENT: True}}, "no event"),
        ({"events": {"http://schemas.openid.net/event/other": {}}}, "no event"),
        ({"nonce": "n"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"sid": ABSENT, "sub": ABSENT}, "neither a session"),
        ({"sid": ""}, "sid is not a text"),
        ({"sid": ["sid-1"]}, "sid is not a text"),
        ({"sid": "x" * (MAX_ID + 1)}, "sid is not a text"),
        ({"sub": 7}, "sub is not a text"),
        ({"sub": "x" * 256}, "sub is not a text"),
    ],
)
async def test_claims_that_are_not_those_of_a_logout_are_refused(
    provider: OidcIdentity, issuer: Issuer, changes: dict[str, Any], cause: str
) -> None:
    assert cause in await cause_of(provider, posted(logout_token(issuer, **changes)))
    assert issuer.paths("/keys") == [], "what costs nothing is looked at before keys are fetched"


async def test_one_from_the_future_or_the_past_is_refused(
    provider: OidcIdentity, issuer: Issuer, clock: FakeClock
) -> None:
    text = logout_token(issuer)
    clock.set_back(seconds=61)
    assert "in the future" in await cause_of(provider, posted(text))
    clock.advance(seconds=61 + 120 + 60)
    assert "expired" in await cause_of(provider, posted(text))


@pytest.mark.parametrize(
    ("header", "cause"),
    [
        ({"alg": "none"}, "algorithm"),
        ({"alg": "HS256"}, "algorithm"),
        ({"alg": ABSENT}, "algorithm"),
        ({"typ": "at+jwt"}, "another kind"),
        ({"typ": 7}, "another kind"),
        ({"kid": "unknown"}, "no key"),
        ({"crit": ["b64"]}, "not a signed token"),
    ],
)
async def test_headers_that_would_change_how_it_is_read_are_refused(
    provider: OidcIdentity, issuer: Issuer, header: dict[str, Any], cause: str
) -> None:
    signed = {"alg": "ES256", **header} if header.get("alg") is not ABSENT else {"alg": "none"}
    assert cause in await cause_of(provider, posted(logout_token(issuer, header=signed)))


async def test_what_another_key_has_signed_is_a_forgery(provider: OidcIdentity, issuer: Issuer) -> None:
    forged = token(claims_of(issuer), ec_key(issuer.key.kid or ""))
    assert "no key of the issuer has signed it" in await cause_of(provider, posted(forged))
    head, payload, signature = logout_token(issuer).split(".")
    other = logout_token(issuer, sub="somebody-else").split(".")[1]
    assert "no key of the issuer has signed it" in await cause_of(provider, posted(f"{head}.{other}.{signature}"))
    assert "no key of the issuer has signed it" in await cause_of(provider, posted(f"{head}.{payload}."))


async def test_forgeries_do_not_become_as_many_questions_to_the_issuer(provider: OidcIdentity, issuer: Issuer) -> None:
    for number in range(20):
        await cause_of(provider, posted(logout_token(issuer, header={"kid": f"unknown-{number}"})))
    assert len(issuer.paths("/keys")) <= 2


async def test_an_id_token_is_no_logout_token(provider: OidcIdentity, issuer: Issuer) -> None:
    issuer.claims["jti"] = "id-1"
    assert "no event" in await cause_of(provider, posted(issuer.id_token()))
    issuer.claims["events"] = {EVENT: {}}
    assert "it is an ID token" in await cause_of(provider, posted(issuer.id_token("nonce")))


@pytest.mark.parametrize("text", ["", "x", "a.b", "a.b.c", "a.b.c.d", "\u00e9.b.c", "x" * 70_000])
async def test_what_is_no_token_is_refused(provider: OidcIdentity, text: str) -> None:
    assert "not a signed token" in await cause_of(provider, posted(text))


async def test_a_form_with_no_token_or_with_two_is_refused(provider: OidcIdentity, issuer: Issuer) -> None:
    assert "no logout_token, or several" in await cause_of(provider, posted())
    assert "no logout_token, or several" in await cause_of(provider, posted(*[logout_token(issuer)] * 2))
    in_query = LoginRequest("GET", "/auth/acme/logout", query=(("logout_token", logout_token(issuer)),))
    assert await cause_of(provider, in_query)


async def test_an_issuer_that_cannot_be_asked_for_its_keys_is_an_outage(provider: OidcIdentity, issuer: Issuer) -> None:
    issuer.metadata["jwks_uri"] = f"{issuer.url}/nowhere"
    with pytest.raises(ProviderError):
        await provider.handle_logout(posted(logout_token(issuer)))


# --- front channel ---


async def test_a_frame_ends_a_session_by_its_id_where_the_operator_allows_it(make: Make, issuer: Issuer) -> None:
    frames = make(front_channel_logout=True)
    logout = await frames.handle_logout(framed(iss=issuer.url, sid="sid-1"))
    assert logout == Logout(session_id="sid-1", verified=False), "anybody could have made the frame"
    assert "frontChannelLogout is not set" in await cause_of(make(), framed(iss=issuer.url, sid="sid-1"))


@pytest.mark.parametrize(
    "query",
    [
        {"sid": "sid-1"},
        {"iss": "https://other.example.com", "sid": "sid-1"},
        {"iss": ""},
        {"iss": "<issuer>"},
        {"iss": "<issuer>", "sid": ""},
        {"iss": "<issuer>", "sid": "x" * (MAX_ID + 1)},
    ],
)
async def test_a_frame_must_name_the_issuer_and_the_session(make: Make, issuer: Issuer, query: dict[str, str]) -> None:
    named = {name: issuer.url if value == "<issuer>" else value for name, value in query.items()}
    assert "front-channel" in await cause_of(make(front_channel_logout=True), framed(**named))


async def test_a_frame_that_names_two_sessions_is_refused(make: Make, issuer: Issuer) -> None:
    query = (("iss", issuer.url), ("sid", "sid-1"), ("sid", "sid-2"))
    assert "several" in await cause_of(make(front_channel_logout=True), LoginRequest("GET", "/x", query=query))


# --- signing out here ---


async def test_signing_out_leads_to_the_issuers_page_with_the_id_token_as_a_hint(make: Make, issuer: Issuer) -> None:
    issuer.metadata["end_session_endpoint"] = f"{issuer.url}/end?tenant=a+b"
    provider = make(ends_session=True)
    identified = await provider.handle_provider(issuer.visit(await provider.handle_client(VISIT)))
    assert identified.sign_out_hint is not None
    target = await provider.sign_out(SignOut(identified.sign_out_hint, HERE))
    assert isinstance(target, Redirect)
    assert {name: values[0] for name, values in parse_qs(urlsplit(target.url).query).items()} == {
        "tenant": "a b",
        "id_token_hint": identified.sign_out_hint.reveal(),
        "client_id": issuer.client_id,
        "post_logout_redirect_uri": HERE,
    }
    assert target.remember == ()


async def test_without_a_hint_the_client_is_named(make: Make, issuer: Issuer) -> None:
    issuer.metadata["end_session_endpoint"] = f"{issuer.url}/end"
    target = await make(ends_session=True).sign_out(SignOut(None, HERE))
    assert target is not None
    assert "id_token_hint" not in target.url
    assert "client_id=gate%3Away" in target.url


async def test_nobody_is_sent_anywhere_unless_it_is_asked_for_and_the_issuer_has_a_page(
    make: Make, issuer: Issuer
) -> None:
    assert await make(ends_session=True).sign_out(SignOut(Secret("hint"), HERE)) is None
    provider = make()
    issuer.metadata["end_session_endpoint"] = f"{issuer.url}/end"
    assert await provider.sign_out(SignOut(Secret("hint"), HERE)) is None
    identified = await provider.handle_provider(issuer.visit(await provider.handle_client(VISIT)))
    assert identified.sign_out_hint is None, "nothing is kept that nobody uses"


@pytest.mark.parametrize("page", ["http://elsewhere.example.com/end", "javascript:alert(1)", "https://a b/", 7])
async def test_a_page_that_no_browser_may_be_sent_to_is_an_error_of_the_issuer(
    make: Make, issuer: Issuer, page: object
) -> None:
    issuer.metadata["end_session_endpoint"] = page
    with pytest.raises(ProviderError):
        await make(ends_session=True).sign_out(SignOut(None, HERE))


@pytest.mark.parametrize("query", [{}, {"state": "x"}])
async def test_a_browser_comes_back(provider: OidcIdentity, query: dict[str, str]) -> None:
    assert await provider.handle_logout(framed(**query)) == Logout(is_return=True)


async def test_a_session_id_that_is_no_text_is_none(provider: OidcIdentity, issuer: Issuer) -> None:
    for odd in (7, ["sid"], "x" * (MAX_ID + 1)):
        issuer.claims["sid"] = odd
        identified = await provider.handle_provider(issuer.visit(await provider.handle_client(VISIT)))
        assert (identified.session_id, identified.subject) == ("", "7f3a")
