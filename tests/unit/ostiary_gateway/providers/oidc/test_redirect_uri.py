"""Trying a redirect URI at an issuer without a person, by ``prompt=none``: accepted, rejected, or not to be told."""

from __future__ import annotations

import html
from urllib.parse import urlencode

import pytest

from ostiary.errors import ProviderError
from tests.support.http_server import Response
from tests.support.issuer import Issuer
from tests.unit.ostiary_gateway.providers.oidc.conftest import Make

URI = "https://gateway.example.com/auth/acme/provider"


def back(**answer: str) -> Response:
    return Response(302, headers={"Location": f"{URI}?{urlencode(answer)}"})


async def test_an_issuer_that_sends_the_browser_back_accepts_it(make: Make, issuer: Issuer) -> None:
    for error in ("login_required", "interaction_required", "consent_required", "server_error"):
        issuer.failures["/authorize"] = back(error=error, state="s")
        assert await make().probe_redirect_uri(URI)
    (request, *_) = [request for request in issuer.requests if request.path == "/authorize"]
    assert (request.query["prompt"], request.query["redirect_uri"]) == ("none", URI)
    assert issuer.paths("/token") == [], "nobody has signed in"


async def test_an_issuer_that_answers_with_a_form_accepts_it(make: Make, issuer: Issuer) -> None:
    issuer.metadata["response_modes_supported"] = ["query", "form_post"]
    form = f'<form method="post" action="{html.escape(URI)}"><input name="error" value="login_required"></form>'
    issuer.failures["/authorize"] = Response(200, form.encode())
    assert await make(response_mode="form_post").probe_redirect_uri(URI)


async def test_an_issuer_that_takes_a_pushed_request_accepts_it(make: Make, issuer: Issuer) -> None:
    issuer.offer_pushed_requests()
    assert await make().probe_redirect_uri(URI)
    assert issuer.paths("/authorize") == []


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Response(400, b"<h1>Unregistered redirect_uri</h1>"), "with status 400"),
        (Response(403, b"<p>Callback URL mismatch: redirect_uri</p>"), "with status 403"),
        (
            Response(400, {"error": "invalid_request", "error_description": "redirect_uri is wrong"}),
            'with status 400 and invalid_request ("redirect_uri is wrong")',
        ),
        (
            Response(302, headers={"Location": "https://sso.example.com/oops?error=redirect_uri_mismatch"}),
            "with status 302 and redirect_uri_mismatch",
        ),
    ],
)
async def test_an_issuer_that_rejects_it_is_quoted(make: Make, issuer: Issuer, reply: Response, told: str) -> None:
    issuer.failures["/authorize"] = reply
    with pytest.raises(ProviderError) as rejected:
        await make().probe_redirect_uri(URI)
    assert str(rejected.value.cause).endswith(told)
    assert rejected.value.hint == f"register the redirect URI {URI} for this client at the issuer"


async def test_what_else_is_wrong_with_the_request_is_told_too(make: Make, issuer: Issuer) -> None:
    issuer.failures["/authorize"] = back(error="invalid_scope", error_description="no scope groups")
    with pytest.raises(ProviderError) as rejected:
        await make().probe_redirect_uri(URI)
    assert 'invalid_scope ("no scope groups")' in str(rejected.value.cause)
    assert rejected.value.hint == "check clientID and scopes"


@pytest.mark.parametrize(
    "reply",
    [
        Response(200, b"<form action='/login'>Sign in</form>"),
        Response(302, headers={"Location": "/login?session=1"}),
        Response(302, headers={"Location": f"{URI}.example.org/"}),
        Response(403, b"prove that you are no robot"),
        Response(503),
    ],
    ids=["a login page", "a way to one", "somewhere else", "no robots", "unavailable"],
)
async def test_a_login_page_tells_nothing(make: Make, issuer: Issuer, reply: Response) -> None:
    issuer.failures["/authorize"] = reply
    assert not await make().probe_redirect_uri(URI)
