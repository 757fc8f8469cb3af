"""Browser sessions: begun at each sign-in, known by a cookie alone, and good for nothing but our pages."""

from __future__ import annotations

import re

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import RevocationKind, TokenKind
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.signing_in import (
    SESSION,
    URL,
    Browser,
    Make,
    Revalidating,
    Says,
    SaysGroups,
    body,
    members,
    text_of,
)


async def test_the_session_cookie_is_for_this_host_and_out_of_reach_of_scripts(make: Make) -> None:
    """L4."""
    for url, start, secure in ((URL, f"{SESSION}=osb_", True), ("http://127.0.0.1:1", "ostiary-session=osb_", False)):
        answer = await Browser(make(Revalidating(UserInfo("alice")), external_url=url)).get("/auth")
        (cookie,) = [value for name, value in answer.headers if name == "Set-Cookie" and "-session=" in value]
        assert cookie.startswith(start)
        assert all(part in cookie for part in ("Path=/", "HttpOnly", "SameSite=Lax", "Max-Age=86400"))
        assert ("Secure" in cookie) is secure


async def test_each_login_begins_a_new_session_and_ends_the_one_before(make: Make) -> None:
    """L4: whoever planted a cookie, or kept one, has nothing."""
    gateway = make(Says(UserInfo("mallory")), Says(UserInfo("alice")))
    browser = Browser(gateway)
    await browser.sign_in("/auth/idp1")
    planted = browser.cookies[SESSION]
    await browser.sign_in("/auth/idp2")
    assert browser.cookies[SESSION] != planted
    assert await gateway.tokens.find_browser(planted) is None
    (session,) = await gateway.store.sessions()
    assert session.user.username == "idp2:alice"
    assert session.client == "Chrome on Linux from 192.0.2.1"


async def test_a_made_up_cookie_is_never_taken_over(make: Make) -> None:
    """L4."""
    browser = Browser(make(Says(UserInfo("alice"))))
    browser.cookies[SESSION] = made_up = "osb_" + "a" * 51
    await browser.sign_in()
    assert browser.cookies[SESSION] != made_up


async def test_a_browsers_secret_is_no_bearer_token(alice: Browser) -> None:
    """L4: and a token is no browser's secret."""
    gateway = alice.gateway
    secret = alice.cookies[SESSION]
    bearer = (("authorization", f"Bearer {secret}"),)
    assert await gateway.tokens.find(secret) is None
    assert (await gateway.get("/auth/whoami", headers=bearer)).status == 401
    assert (await gateway.post("/auth/renew", renewal_token=secret)).status == 401
    await gateway.get("/auth/logout", method="POST", headers=bearer)
    assert (await alice.get("/auth/token")).status == 200, "and signs nobody out without a form"
    found = [token.kind for token in gateway.store._tokens.values()]  # type: ignore[attr-defined]
    assert found == [TokenKind.BROWSER]
    stranger = Browser(gateway)
    stranger.cookies[SESSION] = body(await gateway.get())["token"]
    assert (await stranger.get("/auth/token")).header("Location") == "/auth"


async def test_a_token_is_not_made_of_what_was_true_yesterday(make: Make, clock: FakeClock) -> None:
    """S36, S64: older than a token lives, and the providers are asked again."""
    provider, groups = Revalidating(UserInfo("alice")), SaysGroups(members("developers"))
    gateway = make(provider, groups=[groups])
    browser = Browser(gateway)
    await browser.sign_in()
    token = await browser.form_token()
    groups.of = members("operators")
    clock.advance(minutes=16)
    shown = await browser.post("/auth/token", {"form_token": token})
    (found,) = [await gateway.tokens.find(text) for text in re.findall(r"ost_\w{51}", text_of(shown))]
    assert found is not None
    assert found.session.user.groups == ("operators",)
    provider.said = ProviderError("down")
    assert (await browser.post("/auth/token", {"form_token": token})).status == 503
    provider.said = LoginRefused("the user is no longer known")
    refused = await browser.post("/auth/token", {"form_token": token})
    assert refused.status == 403
    assert "The user is no longer known." in text_of(refused)
    assert SESSION not in browser.cookies
    assert all(session.client.startswith("token page") for session in await gateway.store.sessions())


async def test_a_revoked_session_is_over_on_the_pages_too(alice: Browser, clock: FakeClock) -> None:
    """S64."""
    token = await alice.form_token()
    await alice.gateway.tokens.revoke(RevocationKind.USER, "alice")
    assert (await alice.get("/auth/sessions")).header("Location") == "/auth"
    assert (await alice.post("/auth/token", {"form_token": token})).status == 401
