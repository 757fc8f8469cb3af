"""What browsers get of /auth: pages, a session of their own, and forms that nobody else can send."""

from __future__ import annotations

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.interfaces.identity import Challenge
from tests.unit.ostiary_gateway.login.pages.safe_page import assert_is_safe_page
from tests.unit.ostiary_gateway.signing_in import (
    SESSION,
    URL,
    Browser,
    Make,
    Says,
    body,
    events,
    hidden,
    text_of,
)

# --- the session ---


async def test_who_is_signed_in_is_not_asked_again(alice: Browser) -> None:
    assert (await alice.get("/auth")).header("Location") == "/auth/token"
    alice.gateway.identity[0].instance.asked.clear()  # type: ignore[attr-defined]
    await alice.get("/auth/idp1")
    assert len(alice.gateway.identity[0].instance.asked) == 1, "S30: but by name they are"  # type: ignore[attr-defined]


async def test_pages_send_those_who_are_not_signed_in_to_the_start(make: Make) -> None:
    browser = Browser(make(Says(Challenge("Basic x"))))
    for path in ("/auth/token", "/auth/sessions", "/auth/admin"):
        assert (await browser.get(path)).header("Location") == "/auth"


@pytest.mark.parametrize("path", ["/auth/token", "/auth/sessions", "/auth/logout", "/auth/admin"])
async def test_forms_of_others_change_nothing(alice: Browser, path: str) -> None:
    """L5."""
    kept = await alice.gateway.tokens_kept()
    token, session = await alice.form_token(), (await alice.gateway.store.sessions())[0].id
    ours = (("origin", URL),)
    for form_token, headers in (
        ("", ours),
        ("x", ours),
        ("\u00e9", ours),
        (token, ()),
        (token, (("origin", "https://evil.test"),)),
        (token, (("origin", "null"),)),
        (token, (*ours, *ours)),
        (token, (*ours, ("sec-fetch-site", "same-site"))),
        (token, (*ours, ("sec-fetch-mode", "cors"))),
        (token, (*ours, ("sec-fetch-mode", "no-cors"))),
    ):
        answer = await alice.post(path, {"form_token": form_token, "session": session}, headers=headers)
        assert answer.status == 403
        assert b"ost_" not in answer.body
    assert await alice.gateway.tokens_kept() == kept
    assert (await alice.get("/auth/token")).status == 200, "still signed in"


async def test_scripts_cannot_read_the_pages(alice: Browser) -> None:
    """An upstream on the same host has the same origin."""
    for mode in ("cors", "same-origin", "no-cors", "websocket"):
        assert (await alice.get("/auth/sessions", headers=(("sec-fetch-mode", mode),))).status == 403
    assert (await alice.get("/auth/sessions", headers=(("sec-fetch-mode", "navigate"),))).status == 200


# --- sessions ---


async def test_a_person_sees_their_sessions_and_ends_one(alice: Browser) -> None:
    gateway = alice.gateway
    laptop = body(await gateway.get(headers=(("user-agent", "kubectl/1.38"),)))
    page = await alice.get("/auth/sessions")
    assert_is_safe_page(page)
    for text in ("kubectl/1.38 from 192.0.2.1", "this browser", "developers", "g1", "idp1"):
        assert text in text_of(page)
    form = {"form_token": hidden(page, "form_token"), "session": laptop["session"]}
    assert (await alice.post("/auth/sessions", form)).header("Location") == "/auth/sessions"
    assert await gateway.tokens.find(laptop["token"]) is None
    assert "kubectl" not in text_of(await alice.get("/auth/sessions"))
    assert events(gateway)[-1] is LoginEventKind.ENDED


async def test_nobody_ends_the_session_of_somebody_else(make: Make) -> None:
    provider = Says(UserInfo("bob"))
    gateway = make(provider)
    bob = body(await gateway.get())
    provider.client = UserInfo("alice")
    browser = Browser(gateway)
    await browser.sign_in()
    assert bob["session"] not in text_of(await browser.get("/auth/sessions"))
    form = {"form_token": await browser.form_token(), "session": bob["session"]}
    assert (await browser.post("/auth/sessions", form)).status == 303
    assert await gateway.tokens.find(bob["token"]) is not None


async def test_signing_out_here_and_everywhere(alice: Browser) -> None:
    gateway = alice.gateway
    other = Browser(gateway)
    await other.sign_in()
    laptop = body(await gateway.get())
    answer = await alice.post("/auth/logout", {"form_token": await alice.form_token()})
    assert_is_safe_page(answer)
    assert SESSION not in alice.cookies
    assert await gateway.tokens.find(laptop["token"]) is not None
    await other.post("/auth/logout", {"form_token": await other.form_token(), "everywhere": "true"})
    assert await gateway.store.sessions() == []


async def test_ending_the_own_session_signs_out(alice: Browser) -> None:
    (session,) = await alice.gateway.store.sessions()
    answer = await alice.post("/auth/sessions", {"form_token": await alice.form_token(), "session": session.id})
    assert "signed out" in text_of(answer)
    assert SESSION not in alice.cookies


# --- what people look for ---


async def test_signing_out_is_one_click_on_every_page_of_a_person(alice: Browser) -> None:
    for path in ("/auth/token", "/auth/sessions"):
        page = await alice.get(path)
        navigation = text_of(page).partition("<nav")[2].partition("</nav>")[0]
        assert "Sign out" in navigation
        assert 'action="/auth/logout"' in navigation
    token = hidden(await alice.get("/auth/token"), "form_token")
    assert (await alice.post("/auth/logout", {"form_token": token})).status == 200
    assert (await alice.get("/auth/token")).status == 303
