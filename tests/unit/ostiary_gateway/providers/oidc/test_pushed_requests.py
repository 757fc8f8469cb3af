"""A request that the gateway pushes to the issuer, in place of one that the browser carries (RFC 9126)."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.identity import LoginRequest, Redirect
from tests.support.http_server import Response
from tests.support.issuer import ABSENT, Issuer
from tests.unit.ostiary_gateway.providers.oidc.conftest import Make

CALLBACK = "https://gateway.example.com/auth/provider"
VISIT = LoginRequest("GET", "/auth", callback_url=CALLBACK)


def shown(redirect: Redirect) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(redirect.url).query).items()}


async def test_the_request_is_pushed_where_the_issuer_offers_it(make: Make, issuer: Issuer) -> None:
    """The browser carries a reference and the client's name; state, challenge and nonce stay out of its address."""
    issuer.offer_pushed_requests()
    provider = make(scopes=("email",))
    redirect = await provider.handle_client(VISIT)
    query, remembered = shown(redirect), dict(redirect.remember)
    assert set(query) == {"tenant", "client_id", "request_uri"}
    (request,) = [request for request in issuer.requests if request.path == "/par"]
    assert request.method == "POST"
    assert request.form["scope"] == "openid email"
    assert request.form["redirect_uri"] == CALLBACK
    assert (request.form["state"], request.form["nonce"]) == (remembered["state"], remembered["nonce"])
    assert request.form["code_challenge_method"] == "S256"
    assert "authorization" in request.headers
    assert remembered["verifier"] not in str(request)
    assert redirect.state == remembered["state"], "the gateway compares it, though it is not in the URL"
    identified = await provider.handle_provider(issuer.visit(redirect))
    assert identified.user == UserInfo("7f3a")


async def test_a_pushed_request_is_another_one_for_each_sign_in(make: Make, issuer: Issuer) -> None:
    issuer.offer_pushed_requests()
    provider = make()
    first, second = [await provider.handle_client(VISIT) for _ in range(2)]
    assert shown(first)["request_uri"] != shown(second)["request_uri"]
    # Whoever is given another person's reference comes back with another state.
    smuggled = issuer.visit(first)
    with pytest.raises(LoginRefused, match="start again"):
        await provider.handle_provider(
            LoginRequest("GET", "/auth/provider", smuggled.query, callback_url=CALLBACK, remembered=second.remember)
        )
    assert issuer.paths("/token") == []


async def test_a_public_client_names_itself(make: Make, issuer: Issuer) -> None:
    issuer.offer_pushed_requests()
    await make(client_secret_file=None).handle_client(VISIT)
    (request,) = [request for request in issuer.requests if request.path == "/par"]
    assert request.form["client_id"] == issuer.client_id
    assert "client_secret" not in request.form


async def test_without_an_endpoint_the_browser_carries_it(make: Make, issuer: Issuer) -> None:
    redirect = await make().handle_client(VISIT)
    assert shown(redirect)["state"] == redirect.state
    assert issuer.paths("/par") == []


async def test_never_is_obeyed_unless_the_issuer_takes_nothing_else(make: Make, issuer: Issuer) -> None:
    issuer.offer_pushed_requests()
    provider = make(pushed_authorization="never")
    assert "request_uri" not in shown(await provider.handle_client(VISIT))
    issuer.metadata["require_pushed_authorization_requests"] = True
    with pytest.raises(ProviderError) as outage:
        await make(pushed_authorization="never").handle_client(VISIT)
    assert "pushed requests only" in str(outage.value.cause)
    assert outage.value.hint == "leave out pushedAuthorization"


@pytest.mark.parametrize(
    ("setting", "metadata"),
    [("always", {}), ("auto", {"require_pushed_authorization_requests": True})],
    ids=["the setting", "the issuer"],
)
async def test_what_is_required_and_not_offered_is_an_outage(
    make: Make, issuer: Issuer, setting: str, metadata: dict[str, Any]
) -> None:
    issuer.metadata |= metadata
    with pytest.raises(ProviderError) as outage:
        await make(pushed_authorization=setting).handle_client(VISIT)
    assert "no endpoint for pushed requests" in str(outage.value.cause)


async def test_an_endpoint_without_tls_gets_no_secret(make: Make, issuer: Issuer) -> None:
    issuer.metadata["pushed_authorization_request_endpoint"] = "http://issuer.example.com/par"
    with pytest.raises(ProviderError, match="unavailable"):
        await make().handle_client(VISIT)


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Response(400, {"error": "invalid_request"}), id="refused"),
        pytest.param(Response(401, {"error": "invalid_client"}), id="an unknown client"),
        pytest.param(Response(429), id="too many"),
        pytest.param(Response(503, b"<html>"), id="down"),
        pytest.param(Response(201, {"expires_in": 60}), id="without a reference"),
        pytest.param(Response(201, {"request_uri": "urn:x"}), id="without a lifetime"),
        pytest.param(Response(201, {"request_uri": "urn:x", "expires_in": 0}), id="expired"),
        pytest.param(Response(201, {"request_uri": "urn:x", "expires_in": True}), id="no time"),
        pytest.param(Response(201, {"request_uri": "relative", "expires_in": 60}), id="no URI"),
        pytest.param(Response(201, {"request_uri": "urn:\x1b[31m", "expires_in": 60}), id="control characters"),
        pytest.param(Response(201, {"request_uri": "urn:" + "x" * 3000, "expires_in": 60}), id="too long"),
        pytest.param(Response(201, ["urn:x"]), id="no object"),
        pytest.param(Response(302, headers={"Location": "https://evil.example/par"}), id="elsewhere"),
    ],
)
async def test_a_push_that_fails_is_an_outage_and_is_not_sent_by_the_browser_instead(
    make: Make, issuer: Issuer, reply: Response
) -> None:
    """Nobody has signed in yet, so nobody is refused; and whoever disturbs the push must not get the other way."""
    issuer.offer_pushed_requests()
    issuer.failures["/par"] = reply
    with pytest.raises(ProviderError, match="the issuer is unavailable") as outage:
        await make().handle_client(VISIT)
    assert "canary" not in f"{outage.value}{outage.value.cause}"
    issuer.failures.clear()
    assert "request_uri" in shown(await make().handle_client(VISIT))


async def test_a_wrong_secret_is_told_at_the_push(make: Make, issuer: Issuer) -> None:
    issuer.offer_pushed_requests()
    issuer.failures["/par"] = Response(401, {"error": "invalid_client"})
    with pytest.raises(ProviderError) as outage:
        await make().handle_client(VISIT)
    assert "invalid_client" in str(outage.value.cause)
    assert outage.value.hint == "check clientID and clientSecretFile"


# --- the answer in a form ---


async def test_a_form_brings_the_code_back(make: Make, issuer: Issuer) -> None:
    provider = make(response_mode="form_post")
    assert provider.returns_by_post
    redirect = await provider.handle_client(VISIT)
    assert shown(redirect)["response_mode"] == "form_post"
    back = issuer.visit(redirect)
    assert back.method == "POST"
    assert (await provider.handle_provider(back)).user == UserInfo("7f3a")


async def test_the_trait_follows_the_setting(make: Make) -> None:
    assert make().returns_by_post is False
    assert "response_mode" not in shown(await make().handle_client(VISIT))


@pytest.mark.parametrize("mode", ["form_post", "query"])
async def test_an_answer_in_the_other_mode_is_refused_and_its_code_not_used(
    make: Make, issuer: Issuer, mode: str
) -> None:
    provider = make(response_mode=mode)
    back = issuer.visit(await provider.handle_client(VISIT))
    method = "GET" if mode == "form_post" else "POST"
    swapped = LoginRequest(
        method, back.path, back.form, back.query, callback_url=CALLBACK, remembered=back.remembered
    )  # fmt: skip
    with pytest.raises(LoginRefused, match="start again"):
        await provider.handle_provider(swapped)
    # Half and half neither: the method is right, and the parameters are in the other place.
    mixed = LoginRequest(
        back.method, back.path, back.form, back.query, callback_url=CALLBACK, remembered=back.remembered
    )  # fmt: skip
    with pytest.raises(LoginRefused, match="start again"):
        await provider.handle_provider(mixed)
    assert issuer.paths("/token") == []


async def test_the_issuer_in_a_form_is_compared(make: Make, issuer: Issuer) -> None:
    """RFC 9207."""
    issuer.returns["iss"] = "https://evil.example"
    provider = make(response_mode="form_post")
    with pytest.raises(LoginRefused) as refused:
        await provider.handle_provider(issuer.visit(await provider.handle_client(VISIT)))
    assert "iss" in str(refused.value.cause)


@pytest.mark.parametrize(("modes", "works"), [(ABSENT, True), (["query", "form_post"], True), (["query"], False)])
async def test_an_issuer_that_does_not_announce_forms_is_not_asked_for_one(
    make: Make, issuer: Issuer, modes: Any, works: bool
) -> None:
    issuer.metadata["response_modes_supported"] = modes
    provider = make(response_mode="form_post")
    if works:
        assert await provider.handle_client(VISIT)
        return
    with pytest.raises(ProviderError) as outage:
        await provider.handle_client(VISIT)
    assert outage.value.hint == "leave out responseMode"


async def test_both_together(make: Make, issuer: Issuer) -> None:
    issuer.offer_pushed_requests()
    provider = make(response_mode="form_post", pushed_authorization="always")
    assert (await provider.handle_provider(issuer.visit(await provider.handle_client(VISIT)))).user == UserInfo("7f3a")


async def test_why_the_issuer_rejects_a_pushed_request_is_told(make: Make, issuer: Issuer) -> None:
    issuer.offer_pushed_requests()
    told = {"error": "invalid_redirect_uri", "error_description": "redirect_uri did not match any of the client's"}
    issuer.failures["/par"] = Response(400, told)
    with pytest.raises(ProviderError) as outage:
        await make().handle_client(VISIT)
    assert outage.value.reported == """invalid_redirect_uri ("redirect_uri did not match any of the client's")"""
    assert outage.value.reported in str(outage.value.cause)
    assert CALLBACK in str(outage.value.hint)
