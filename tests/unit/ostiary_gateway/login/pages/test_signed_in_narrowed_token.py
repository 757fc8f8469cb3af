"""The page where a person makes a token that is less than they are."""

from __future__ import annotations

import html
import re
from datetime import timedelta

import pytest

from ostiary.core.scopes import decode
from ostiary_gateway.login.responses import LoginAnswer
from tests.unit.ostiary_gateway.login.pages.safe_page import assert_is_safe_page
from tests.unit.ostiary_gateway.signing_in import Browser, hidden, text_of

PAGE = "/auth/token/narrow"


async def fill_in(browser: Browser, **fields: str) -> LoginAnswer:
    form = {"scope": "get,list pods -n shop", "lifetime": "600", **fields}
    return await browser.post(PAGE, {"form_token": await browser.form_token(), **form})


def token_on(page: LoginAnswer) -> str:
    match = re.search(r'id="token"[^>]*>(ost_\w+)<', text_of(page))
    assert match is not None, text_of(page)
    return match[1]


async def test_the_token_is_for_what_was_chosen_and_shown_once(alice: Browser) -> None:
    assert_is_safe_page(await alice.get(PAGE))
    page = await fill_in(alice, actor="release-agent", discovery="true")
    assert page.status == 200
    assert_is_safe_page(page)
    record = await alice.gateway.tokens.find(token_on(page))
    assert record is not None
    delegation = decode(record.token.delegation)
    assert (str(delegation), delegation.actor) == ("discovery; get,list pods -n shop", "release-agent")
    assert record.session.user.username == "alice"
    assert record.token.expires_at - record.token.issued_at == timedelta(minutes=10)
    assert record.session.expires_at == record.token.expires_at
    for text in ("discovery; get,list pods -n shop", "release-agent", "alice"):
        assert text in html.unescape(text_of(page))


async def test_it_is_listed_with_the_sessions_and_ends_there(alice: Browser) -> None:
    token = token_on(await fill_in(alice, actor="release-agent"))
    page = await alice.get("/auth/sessions")
    assert "release-agent: get,list pods -n shop from" in text_of(page)
    record = await alice.gateway.tokens.find(token)
    assert record is not None
    form = {"form_token": hidden(page, "form_token"), "session": record.session.id}
    assert (await alice.post("/auth/sessions", form)).status == 303
    assert await alice.gateway.tokens.find(token) is None


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"scope": "get pods"}, "names no namespace"),
        ({"scope": ""}, "a rule is empty"),
        ({"scope": "get pods -n shop", "actor": "a > b"}, "name of the actor"),
        ({"scope": "<b>get</b> pods -n shop"}, "not a verb"),
    ],
)
async def test_a_mistake_is_told_beside_what_was_written(alice: Browser, fields: dict[str, str], problem: str) -> None:
    kept = await alice.gateway.tokens_kept()
    page = await fill_in(alice, **fields)
    assert page.status == 400
    assert_is_safe_page(page)
    shown = html.unescape(text_of(page))
    assert problem in shown
    assert f'name="scope" value="{fields["scope"]}"' in shown
    assert "ost_" not in shown
    assert await alice.gateway.tokens_kept() == kept


async def test_the_length_is_one_of_those_offered(alice: Browser) -> None:
    for asked, minutes in (("3600", 60), ("86400", 10), ("", 10), ("x", 10)):
        record = await alice.gateway.tokens.find(token_on(await fill_in(alice, lifetime=asked)))
        assert record is not None
        assert record.token.expires_at - record.token.issued_at == timedelta(minutes=minutes)


async def test_what_looks_misspelt_is_noted(alice: Browser) -> None:
    page = await fill_in(alice, scope="get deployments -n shop")
    assert page.status == 200
    assert 'did you mean "deployments.apps"' in html.unescape(text_of(page))


async def test_a_narrowed_token_opens_no_page(alice: Browser) -> None:
    token = token_on(await fill_in(alice))
    for path in (PAGE, "/auth/token", "/auth/sessions", "/auth/admin"):
        answer = await Browser(alice.gateway).get(path, headers=(("authorization", f"Bearer {token}"),))
        assert answer.header("Location") == "/auth"
        alone = Browser(alice.gateway)
        alone.cookies = dict.fromkeys(alice.cookies, token)
        assert (await alone.get(path)).header("Location") == "/auth"
